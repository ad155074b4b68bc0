"""What a reward function asks for: the names in its signature, and which of them the run cannot give.

Pure inspection; nothing is called here.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.errors import ConfigError, explain

SINGLE = ("completion", "reward_input")
"""A function that names one of these is called once per completion, with one row's values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """The arguments that a reward function takes."""

    names: tuple[str, ...]
    """Every argument it names."""
    required: frozenset[str]
    """Those without a default."""
    everything: bool
    """It has ``**kwargs`` and so takes every column."""
    first: str | None
    """Its first argument."""

    def without_self(self) -> Wants:
        """Of a method that is read from its class."""
        rest = self.names[1:]
        return Wants(
            names=rest,
            required=self.required - {self.names[0]},
            everything=self.everything,
            first=rest[0] if rest else None,
        )

    def lacking(self, available: Collection[str]) -> tuple[str, ...]:
        """Name the required arguments that are not available, in the order of the signature."""
        return tuple(name for name in self.names if name in self.required and name not in available)

    @property
    def single(self) -> bool:
        """Whether it is called once per completion instead of once for all."""
        return "completions" not in self.names and any(name in self.names for name in SINGLE)


def wants(function: Callable[..., Any], *, name: str = "") -> Wants:
    """Read the signature of a reward function.

    Args:
        function: The reward: a function or an object with ``__call__``.
        name: How messages call it.

    Returns:
        Its argument names.

    Raises:
        ConfigError: It cannot be called by keyword.

    Example:
        >>> wants(lambda completions, answer, **columns: []).required == {"completions", "answer"}
        True
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            explain(
                f"The arguments of reward {name or function!r} cannot be read",
                got=str(error),
                fix="Wrap it in a Python function that names its arguments.",
            )
        ) from error
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if positional:
        raise ConfigError(
            explain(
                f"Reward {name or function!r} takes arguments only by position",
                expected="arguments that can be given by name",
                got=", ".join(positional),
                fix="Remove the / from its signature.",
            )
        )
    return Wants(
        names=tuple(p.name for p in named),
        required=frozenset(p.name for p in named if p.default is p.empty),
        everything=any(p.kind is p.VAR_KEYWORD for p in parameters),
        first=named[0].name if named else None,
    )


def missing_columns(function: Callable[..., Any], available: Iterable[str]) -> tuple[str, ...]:
    """Name the required arguments of a reward that the run has no column for.

    Args:
        function: The reward function.
        available: What the run can give: the columns of the data and the names of :mod:`mmgrpo.reward.columns`.

    Returns:
        Missing names, in the order of the signature.

    Example:
        >>> missing_columns(lambda completions, truth: [], ["completions", "answer"])
        ('truth',)
    """
    return wants(function).lacking(set(available))


def missing_message(name: str, missing: Collection[str], columns: Collection[str], given: Collection[str]) -> str:
    """Say which arguments of a reward have no column, and which columns there are.

    Args:
        name: The reward.
        missing: Its arguments without a column.
        columns: The columns of the data.
        given: What mmgrpo gives beside them.

    Returns:
        The message of a ConfigError.
    """
    near = difflib.get_close_matches(next(iter(missing)), [*columns, *given], n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return explain(
        f"Reward {name} asks for {', '.join(missing)}, which the data does not have",
        expected=f"a column of the data ({', '.join(sorted(columns)) or 'none'}) or one of {', '.join(sorted(given))}",
        got=", ".join(missing),
        fix=f"{hint}Rename the argument, add the column, give the argument a default, or set it under args.",
    )


def select(asked: Wants, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what the signature names, or everything under ``**kwargs``."""
    return dict(columns) if asked.everything else {k: v for k, v in columns.items() if k in asked.names}
