"""Find a reward function by its spec: ``path.py:name``, ``module:name``, an entry point, or a Python object.

Builds classes from the YAML's ``args`` and binds ``args`` of plain functions. Knows nothing of calling.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, cast

from mmgrpo.errors import ConfigError, explain
from mmgrpo.plugins import describe, load_object
from mmgrpo.reward.blame import place_of
from mmgrpo.reward.facts import RewardFacts, facts_of
from mmgrpo.reward.signature import Wants, wants
from mmgrpo.reward.swift import stand_in

Style = Literal["auto", "native", "trl", "swift", "easyr1"]
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
    return load_object(
        spec,
        kind="rewards",
        folder=base,
        where="",
        while_importing=stand_in if style in ("auto", "swift") else contextlib.nullcontext,
        also=_from_registry,
    )


def _from_registry(module: ModuleType, name: str) -> Any:
    """Look a name up where ms-swift files keep their rewards."""
    registered = getattr(module, "orms", None)
    return registered.get(name) if isinstance(registered, dict) else None


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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's constructor may raise anything
        raise ConfigError(
            explain(
                f"The reward could not be built: {describe(error)}",
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
