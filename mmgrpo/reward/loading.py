"""Find a reward function by its spec: ``path.py:name``, ``module:name``, an entry point, or a Python object.

Builds classes from the YAML's ``args`` and binds ``args`` of plain functions. Knows nothing of calling.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, cast

from mmgrpo.errors import ConfigError, explain
from mmgrpo.reward.blame import place_of
from mmgrpo.reward.facts import RewardFacts, facts_of
from mmgrpo.reward.files import find_file, import_file
from mmgrpo.reward.signature import Wants, wants

Style = Literal["auto", "native", "trl", "swift", "easyr1"]
ENTRY_POINTS = "mmgrpo.rewards"
_ORMS = frozenset({"ORM", "AsyncORM"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A reward that is ready to be called."""

    function: Callable[..., Any]
    """The function, or the object built from a class."""
    name: str
    """How logs and messages call it."""
    source: str
    """The spec it was loaded from, or the object's own name."""
    style: Literal["native", "trl", "swift", "easyr1"]
    """Whose conventions it follows."""
    asked: Wants
    """The arguments that it takes."""
    facts: RewardFacts
    """What it declares of itself."""
    is_async: bool
    """Whether calling it gives a coroutine."""


def load_reward(
    spec: str | Callable[..., Any],
    *,
    base: Path,
    args: Mapping[str, Any] | None = None,
    style: Style = "auto",
    name: str | None = None,
    build: bool = True,
) -> Loaded:
    """Load one reward.

    Args:
        spec: ``path.py:name`` (relative to ``base``, then the working folder, then the rewards that come with
            mmgrpo), ``module:name``, the name of an entry point of the group ``mmgrpo.rewards``, or a callable.
        base: Folder of the YAML.
        args: Keyword arguments: of the constructor for a class, of every call for a function.
        style: Whose conventions it follows; ``auto`` knows ms-swift classes and EasyR1 functions by their shape.
        name: Name in logs; default: the function's own.
        build: False leaves a class as it is: its signature is read, and another process will build it.

    Returns:
        The reward, ready to be called.

    Raises:
        ConfigError: There is no such file or name, it cannot be imported, or it is not callable.

    Example:
        >>> load_reward("clevr_counting.py:count_accuracy", base=Path.cwd()).name
        'count_accuracy'
    """
    args = dict(args or {})
    target, source = (_find(spec, base, style), spec) if isinstance(spec, str) else (spec, _own_name(spec))
    if not callable(target):
        raise ConfigError(
            explain("A reward must be callable", where=source, got=type(target).__name__, fix="Name a function.")
        )
    style = _style(target) if style == "auto" else style
    built = _build(target, args, style, source) if build or not inspect.isclass(target) else target.__call__
    label = name or _own_name(built if build else target)
    asked = wants(built, name=label)
    if not build and inspect.isclass(target):
        asked = asked.without_self()
    return Loaded(
        function=built,
        name=label,
        source=source,
        style=style,
        asked=asked,
        facts=facts_of(built if build else target),
        is_async=_is_async(built),
    )


def _find(spec: str, base: Path, style: Style) -> Any:
    where, _, name = spec.rpartition(":")
    if not where:
        return _entry_point(spec)
    if where.endswith(".py"):
        module = import_file(find_file(where, base), stand_in_for_swift=style in ("auto", "swift"))
    else:
        module = _import_module(where, spec)
    return _attribute(module, name, spec)


def _import_module(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            explain(
                f"Reward module {name} cannot be imported",
                where=spec,
                got=str(error),
                fix="Install it, or name a file: path/to/file.py:function.",
            )
        ) from error


def _entry_point(spec: str) -> Any:
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    if spec in points.names:
        return points[spec].load()
    raise ConfigError(
        explain(
            f"No reward is called {spec!r}",
            expected="path/to/file.py:function, module:function, or an entry point "
            f"({', '.join(sorted(points.names)) or 'none is installed'})",
            got=spec,
            fix="Write the file and the function, with a colon between them.",
        )
    )


def _attribute(module: ModuleType, name: str, spec: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    registered = getattr(module, "orms", None)
    if value is None and isinstance(registered, dict):
        value = registered.get(name)  # ms-swift names rewards in a registry
    if value is not None:
        return value
    offers = _offers(module)
    near = difflib.get_close_matches(name, offers, n=1)
    raise ConfigError(
        explain(
            f"There is no reward {name!r} in {getattr(module, '__file__', None) or module.__name__}",
            where=spec,
            expected=", ".join(offers) or "a public function or class; the file has none",
            got=name,
            fix=f"Did you mean {near[0]}?" if near else "Write one of these names.",
        )
    )


def _offers(module: ModuleType) -> list[str]:
    """Names of public functions and classes that the module itself defines."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    )


def _style(target: Any) -> Literal["native", "swift", "easyr1"]:
    if inspect.isclass(target):
        return "swift" if any(kind.__name__ in _ORMS for kind in target.__mro__[1:]) else "native"
    if any(kind.__name__ in _ORMS for kind in type(target).__mro__[1:]):
        return "swift"
    names = wants(target, name=_own_name(target)).names
    return "easyr1" if "reward_inputs" in names or "reward_input" in names else "native"


def _build(target: Any, args: dict[str, Any], style: Style, source: str) -> Callable[..., Any]:
    try:
        if inspect.isclass(target):
            kind = cast("Callable[..., Any]", target)
            return kind(**(_swift_arguments(kind, args) if style == "swift" else args))
        if args:
            inspect.signature(target).bind_partial(**args)
            return _bind(target, args)
    except (Exception, SystemExit) as error:  # the user's constructor may raise anything
        raise ConfigError(
            explain(
                f"The reward could not be built: {type(error).__name__}: {error}",
                where=f"{source}, at {place_of(error, target)}",
                expected=f"arguments {inspect.signature(target)}",
                got=f"args: {args}",
                fix="Correct args under this reward in the YAML.",
            )
        ) from error
    return target


def _bind(function: Callable[..., Any], args: dict[str, Any]) -> Callable[..., Any]:
    bound: Callable[..., Any] = functools.partial(function, **args)
    functools.update_wrapper(bound, function, assigned=("__name__", "__doc__"))
    del bound.__wrapped__  # type: ignore[attr-defined]  (else its signature would still ask for what is bound)
    return bound


def _swift_arguments(target: Any, args: dict[str, Any]) -> dict[str, Any]:
    """ms-swift hands a class the trainer's settings as ``args``; here these are the YAML's ``args``."""
    names = inspect.signature(target).parameters
    named = {key: value for key, value in args.items() if key in names}
    return {**named, "args": SimpleNamespace(**args)} if "args" in names else named


def _own_name(target: Any) -> str:
    name = getattr(target, "__name__", None) or type(target).__name__
    return "lambda" if name == "<lambda>" else str(name)


def _is_async(function: Any) -> bool:
    inner = function.func if isinstance(function, functools.partial) else function
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004
