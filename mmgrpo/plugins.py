"""Code of a user's own: rewards, adapters, losses, advantages, engines, families, evaluations, by name.

A YAML names an object in one of three ways: ``path/to/file.py:name``, ``package.module:name``, or the bare name of an
installed entry point. Files are looked for in one order for all kinds: beside the YAML, in the working folder, then
among the files that come with mmgrpo. Knows nothing of what a plug-in does.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from mmgrpo.config.paths import BUNDLED, bundled_folder
from mmgrpo.errors import ConfigError, MmgrpoError, explain

Kind = Literal["rewards", "adapters", "losses", "advantages", "engines", "families", "evaluations", "formats"]
"""Kinds of plug-ins; an installed package offers its own under the entry points ``mmgrpo.<kind>``."""
_ONE = {
    "rewards": "reward",
    "adapters": "media adapter",
    "losses": "loss",
    "advantages": "advantage estimator",
    "engines": "engine",
    "families": "model family",
    "evaluations": "evaluation metric",
    "formats": "row format",
}
assert set(_ONE) == set(get_args(Kind))

_MODULE = "mmgrpo_plugin_"
Stamp = tuple[int, int]
"""When a file was changed last, in nanoseconds, and its size in bytes."""
_imported: dict[Path, tuple[dict[Path, Stamp | None], ModuleType]] = {}
"""Plug-in files with their modules, and the stamps of all files that these came from."""
_beside: dict[str, tuple[Path, Stamp | None]] = {}
"""Modules that plug-ins imported from beside themselves, by name: their files as they were then."""


def load_object(
    spec: str,
    *,
    kind: Kind,
    folder: Path,
    where: str,
    while_importing: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    also: Callable[[ModuleType, str], Any] = lambda module, name: None,
) -> Any:
    """Load what a spec names.

    Args:
        spec: ``path.py:name``, ``module:name``, or the name of an entry point of the group ``mmgrpo.<kind>``.
        kind: What is wanted.
        folder: Folder of the YAML.
        where: The key of the YAML, for messages.
        while_importing: Entered while a file is imported.
        also: Looks a name up that the module has no attribute for; None: not there either.

    Returns:
        The function, class or object.

    Raises:
        ConfigError: There is no such file or name, or importing it raised.

    Example:
        >>> load_object("format.py:think_answer", kind="rewards", folder=Path.cwd(), where="rewards.0.fn").__name__
        'think_answer'
    """
    file, _, name = spec.rpartition(":")
    if not file:
        return _entry_point(spec, kind, where)
    if file.endswith(".py"):
        module = import_file(find_plugin_file(file, folder, kind=kind, where=where), while_importing=while_importing)
    else:
        module = _import_module(file, spec, kind, where)
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    value = also(module, name) if value is None else value
    if value is None:
        raise _no_such_name(module, name, spec, kind, where)
    return value


def build_object(target: Any, args: Mapping[str, Any], *, spec: str, where: str) -> Any:
    """Build a plug-in that is a class, with the YAML's ``args``; give anything else back as it is.

    Args:
        target: From :func:`load_object`.
        args: Keyword arguments of the constructor.
        spec: How it was named, for messages.
        where: The key of the YAML, for messages.

    Raises:
        ConfigError: The constructor raised, or arguments are given to something that is no class.
    """
    if not isinstance(target, type) and not args:
        return target
    with plugin_errors(f"{spec} could not be built", where=where, fix="Correct its args in the YAML."):
        return target(**args)


@contextlib.contextmanager
def plugin_errors(
    what: str, *, where: str, fix: str, expected: str = "", error: type[MmgrpoError] = ConfigError
) -> Generator[None]:
    """Turn whatever a plug-in raises into one message; Ctrl-C stays a stop.

    Args:
        what: What failed, as a sentence without its full stop.
        where: The file, line or key.
        fix: What to do.
        expected: What the plug-in should be or do.
        error: What is raised.
    """
    try:
        yield
    except (KeyboardInterrupt, MmgrpoError):
        raise
    except BaseException as raised:  # a plug-in may raise anything, GeneratorExit and SystemExit too
        raise error(explain(what, where=where, expected=expected, got=describe(raised), fix=fix)) from raised


def requested_names(signature: inspect.Signature, offered: Sequence[str], *, after: int = 0) -> tuple[str, ...]:
    """Give those of the offered names that a function asks for by name; all of them where it takes ``**kwargs``.

    Args:
        signature: Of the function.
        offered: What it may ask for.
        after: Arguments at its front that are passed by place.

    Example:
        >>> requested_names(inspect.signature(lambda step, groups: None), ("policy", "groups"), after=1)
        ('groups',)
    """
    parameters = signature.parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return tuple(name for name in offered if takes_all or name in list(parameters)[after:])


def describe(raised: BaseException, limit: int = 500) -> str:
    """Name an exception with its text; one whose text cannot be had, by its type alone.

    Args:
        raised: The exception.
        limit: Characters of the text at the most.

    Example:
        >>> describe(ValueError("no"))
        'ValueError: no'
    """
    name = type(raised).__name__
    try:
        text = str(raised)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its __str__ is the plug-in's own
        return f"{name} (its text cannot be read)"
    text = text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
    return f"{name}: {text}" if text else name


def find_plugin_file(path: str, folder: Path, *, kind: Kind, where: str = "") -> Path:
    """Find the file of a plug-in.

    Args:
        path: As written in the YAML; ``~`` is the home folder.
        folder: Folder of the YAML.
        kind: What is wanted.
        where: The key of the YAML, for messages.

    Returns:
        The file: in ``folder``, else in the working folder, else among the files that come with mmgrpo (in
        ``rewards/`` or ``examples/``, whose names may be left out).

    Raises:
        ConfigError: It is in none of these places; the message names them, and a file whose name is close.
    """
    written, bundled = Path(path).expanduser(), bundled_folder() or Path.cwd()
    shipped = [bundled / written, *(bundled / name / written for name in BUNDLED)]
    places = [folder / written, Path.cwd() / written, *shipped]
    with contextlib.suppress(OSError, ValueError):  # a name that is too long, or holds a NUL
        for place in places:
            if place.is_file():
                return place.resolve()
    looked = "; ".join(dict.fromkeys(str(place.absolute()) for place in places[:-1]))
    near = _near_file(written.name, {place.parent for place in places})
    have = ", ".join(sorted(file.name for file in (bundled / "rewards").glob("*.py")))
    advice = f"Did you mean {near}?" if near else "Correct the path."
    raise ConfigError(
        explain(
            f"{_ONE[kind].capitalize()} file {path:.300} does not exist",
            where=where,
            expected=f"one of {looked:.2000}",
            got="no such file",
            fix=f"{advice} Rewards that come with mmgrpo: {have}." if kind == "rewards" else advice,
        )
    )


def import_file(
    path: Path, *, while_importing: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
) -> ModuleType:
    """Import a Python file by its path, once per content.

    Args:
        path: The file.
        while_importing: Entered while it is imported.

    Returns:
        The module. A file that changed since (in a notebook session), or one that it imports from beside itself, is
        imported anew.

    Raises:
        ConfigError: Importing it raised.
    """
    if path in _imported and all(_stamp(file) == stamp for file, stamp in _imported[path][0].items()):
        return _imported[path][1]
    _forget_siblings(path.parent)
    known = set(sys.modules)
    stamp = _stamp(path)
    name = f"{_MODULE}{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    try:
        with _siblings(path.parent), while_importing():
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ConfigError(  # a plug-in may raise anything while it is imported
            explain(
                f"{path} cannot be imported: {describe(error)}",
                where=f"{path}:{_line(error, path)}",
                fix="Run python on the file to see the whole error.",
            )
        ) from error
    for other in set(sys.modules) - known - {name}:
        file = getattr(sys.modules[other], "__file__", None)
        if file and Path(file).parent == path.parent and "." not in other and not other.startswith(_MODULE):
            _beside[other] = (Path(file), _stamp(Path(file)))
    siblings = {file: stamp for file, stamp in _beside.values() if file.parent == path.parent}
    _imported[path] = ({**siblings, path: stamp}, module)
    return module


def load_plugin(name: str, *, beside: str) -> ModuleType:
    """Import another plug-in file from a plug-in file.

    Args:
        name: The file, for example ``clip.py``.
        beside: ``__file__`` of the importing plug-in; the shipped rewards are looked through as well.

    Returns:
        Its module.

    Raises:
        ConfigError: There is no such file, or importing it raised.

    Example:
        >>> load_plugin("format.py", beside=__file__).answer_only(["<answer>3</answer>"])
        [1.0]
    """
    return import_file(find_plugin_file(name, Path(beside).parent, kind="rewards"))


def _entry_point(name: str, kind: Kind, where: str) -> Any:
    points = importlib.metadata.entry_points(group=f"mmgrpo.{kind}")
    if name in points.names:
        with plugin_errors(f"The entry point {name} cannot be loaded", where=where, fix="Repair its package."):
            return points[name].load()
    near = difflib.get_close_matches(name, points.names, n=1)
    raise ConfigError(
        explain(
            f"No {_ONE[kind]} is called {name!r:.200}",
            where=where,
            expected="path/to/file.py:name, module:name, or an entry point "
            f"({', '.join(sorted(points.names)) or 'none is installed'})",
            got=f"{name:.200}",
            fix=f"Did you mean {near[0]}?" if near else "Write the file and the name, with a colon between them.",
        )
    )


def _import_module(name: str, spec: str, kind: Kind, where: str) -> ModuleType:
    fix = "Install it, or name a file: path/to/file.py:name."
    with plugin_errors(
        f"{_ONE[kind].capitalize()} module {name:.200} cannot be imported", where=where or spec, fix=fix
    ):
        return importlib.import_module(name)


def _no_such_name(module: ModuleType, name: str, spec: str, kind: Kind, where: str) -> ConfigError:
    offers = sorted(
        other
        for other, value in vars(module).items()
        if not other.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    )
    near = difflib.get_close_matches(name, offers, n=1)
    return ConfigError(
        explain(
            f"There is no {_ONE[kind]} {name!r} in {getattr(module, '__file__', None) or module.__name__}",
            where=where or spec,
            expected=", ".join(offers) or "a public function or class; the file has none",
            got=name,
            fix=f"Did you mean {near[0]}?" if near else "Write one of these names.",
        )
    )


def _near_file(name: str, folders: set[Path]) -> str:
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            names = [file.name for file in folder.glob("*.py")]
            if near := difflib.get_close_matches(name, names, n=1, cutoff=0.7):
                return str(folder / near[0])
    return ""


def _forget_siblings(folder: Path) -> None:
    """Let an import from this folder read its file, not that of another folder, or this one as it was before."""
    for name, (file, stamp) in list(_beside.items()):
        if (folder / f"{name}.py").is_file() and (file.parent != folder or _stamp(file) != stamp):
            sys.modules.pop(name, None)
            del _beside[name]
    importlib.invalidate_caches()


def _stamp(path: Path) -> Stamp | None:
    if not path.is_file():
        return None
    state = path.stat()
    return (state.st_mtime_ns, state.st_size)


@contextlib.contextmanager
def _siblings(folder: Path) -> Generator[None]:
    """Let a plug-in import files beside it, without shadowing anything that is installed."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _line(error: BaseException, path: Path) -> int:
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path) and f.lineno]
    return lines[-1] if lines else 1
