"""Check what a reward function returned: one finite number, or None, per completion.

Nothing is guessed: anything else is an error that names the function and the sample.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from mmgrpo.errors import RewardError, explain


class BadReturn(RewardError):
    """A reward broke its contract, at one row if that is known."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class Unanswered(RewardError):
    """A call of a reward gave no answer: it took too long, or its process died."""


def check_returns(values: Any, ids: Sequence[str], *, name: str) -> list[float]:
    """Turn what a reward returned into floats.

    Args:
        values: A list or tuple, or an array or tensor of any shape that flattens to one number per completion.
        ids: The sample of each completion.
        name: The reward.

    Returns:
        One float per completion; NaN where the reward returned None or NaN (it does not apply). True counts as 1.0.

    Raises:
        RewardError: Wrong length, text, an infinite number, or something that is no number.

    Example:
        >>> check_returns([1, None, True], ["a", "a", "b"], name="mine")
        [1.0, nan, 1.0]
    """
    rows = _flatten(values, name)
    if len(rows) != len(ids):
        raise BadReturn(
            explain(
                f"Reward {name} returned the wrong number of values",
                where=f"samples {some_ids(ids)}",
                expected=f"{len(ids)}, one per completion",
                got=str(len(rows)),
                fix="Return a list as long as completions, with None where the reward does not apply.",
            )
        )
    return [_number(value, row, ids[row], name) for row, value in enumerate(rows)]


def _flatten(values: Any, name: str) -> list[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if hasattr(values, "tolist") and hasattr(values, "reshape"):
        return list(values.reshape(-1).tolist())
    if isinstance(values, list | tuple):
        return [value for item in values for value in _scalar(item)]
    raise BadReturn(
        explain(
            f"Reward {name} returned {_kind(values)}",
            expected="a list of one number (or None) per completion",
            got=f"{values!r:.80}",
            fix="Return a list as long as completions.",
        )
    )


def _scalar(item: Any) -> list[Any]:
    """An array or tensor inside a list stands for its numbers: ``[tensor(1.0), tensor([0.5])]``."""
    if hasattr(item, "detach"):
        item = item.detach().cpu()
    if hasattr(item, "tolist") and hasattr(item, "reshape"):
        return list(item.reshape(-1).tolist())
    return [item]


def _number(value: Any, row: int, sample: str, name: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, numbers.Real):
        number = as_float(value)
        if not math.isinf(number):
            return number
    raise BadReturn(
        explain(
            f"Reward {name} returned {_kind(value)} for sample {sample}",
            where=f"completion {row} of the call",
            expected="a finite number, or None where the reward does not apply",
            got=f"{value!r:.80}",
            fix="Return a float; return None where the reward cannot judge.",
        ),
        row,
    )


def as_float(value: float | numbers.Real) -> float:
    """Give a number as a float; infinite where it is a whole number too large for one.

    Example:
        >>> as_float(10**400), as_float(True)
        (inf, 1.0)
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _kind(value: Any) -> str:
    if isinstance(value, numbers.Real):
        return "an infinite number" if math.isinf(as_float(value)) else "a single number"
    return "text" if isinstance(value, str) else f"{type(value).__name__}"


def some_ids(ids: Sequence[str]) -> str:
    """Name a few samples, each once."""
    names = list(dict.fromkeys(ids))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
