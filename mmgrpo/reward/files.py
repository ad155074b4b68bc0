"""Find a plug-in file and import it by path.

A file may stand beside the YAML, in the working folder, or among the rewards that come with mmgrpo. Knows nothing of
what the file holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

from mmgrpo.config.paths import bundled_folder
from mmgrpo.errors import ConfigError, explain
from mmgrpo.reward.swift import stand_in

_NAME = "mmgrpo_plugin_"
Stamp = tuple[int, int]
"""When a file was changed last, in nanoseconds, and its size in bytes."""
Stamps = dict[Path, Stamp | None]
_imported: dict[Path, tuple[Stamps, ModuleType]] = {}
"""Plug-in files with their modules, and the stamps of all files that these came from."""
_beside: dict[str, tuple[Path, Stamp | None]] = {}
"""Modules that plug-ins imported from beside themselves, by name: their files as they were then."""


def shipped_rewards() -> Path:
    """The folder of the rewards that come with mmgrpo: in the wheel, or the repository's in an editable install."""
    return (bundled_folder() or Path.cwd()) / "rewards"


def find_file(path: str, base: Path) -> Path:
    """Find a plug-in file.

    Args:
        path: As written in the YAML; ``~`` is the home folder.
        base: Folder of the YAML.

    Returns:
        The file: in ``base``, else in the working folder, else among the shipped rewards (where the folder name
        ``rewards/`` may be written or left out).

    Raises:
        ConfigError: It is in none of these places; the message names them.
    """
    shipped, written = shipped_rewards(), Path(path).expanduser()
    places = [base / written, Path.cwd() / written, shipped.parent / written, shipped / written]
    for place in places:
        if place.is_file():
            return place.resolve()
    looked = "; ".join(dict.fromkeys(str(place.absolute()) for place in places))
    have = ", ".join(sorted(file.name for file in shipped.glob("*.py")))
    raise ConfigError(
        explain(
            f"Reward file {path} does not exist",
            expected=f"one of {looked}",
            got="no such file",
            fix=f"Correct the path. Rewards that come with mmgrpo: {have}.",
        )
    )


def import_file(path: Path, *, stand_in_for_swift: bool = False) -> ModuleType:
    """Import a Python file by its path, once per content.

    Args:
        path: The file.
        stand_in_for_swift: Let ``import swift`` succeed where ms-swift is not installed.

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
    name = f"{_NAME}{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    try:
        with _siblings(path.parent), stand_in() if stand_in_for_swift else contextlib.nullcontext():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a plug-in may raise anything while it is imported
        del sys.modules[name]
        raise ConfigError(
            explain(
                f"Reward file {path} cannot be imported: {type(error).__name__}: {error}",
                where=f"{path}:{_line(error, path)}",
                fix="Run python on the file to see the whole error.",
            )
        ) from error
    for other in set(sys.modules) - known - {name}:
        file = getattr(sys.modules[other], "__file__", None)
        if file and Path(file).parent == path.parent and "." not in other and not other.startswith(_NAME):
            _beside[other] = (Path(file), _stamp(Path(file)))
    siblings = {file: stamp for file, stamp in _beside.values() if file.parent == path.parent}
    _imported[path] = ({**siblings, path: stamp}, module)
    return module


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
    return import_file(find_file(name, Path(beside).parent))


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
