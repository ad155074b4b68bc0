"""What a reward function can ask for by name: one list per name, over all completions of a step.

Turns groups into columns. Knows nothing of functions; torch is not imported here, so that worker processes start fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmgrpo.types import Completion, Decoded, Group, Prompt

GIVEN = (
    "completions",
    "prompts",
    "messages",
    "completion_ids",
    "answer",
    "solution",
    "images",
    "audios",
    "videos",
    "completion_media",
    "ids",
    "finish_reasons",
    "group",
)
"""Columns that every run has, whatever its data."""
CONTEXT = ("trainer_state", "log_extra", "log_metric")
"""Single values that every run gives: not one per completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """What a reward may know of the run, for curricula."""

    global_step: int
    """Steps done so far."""


@dataclass(slots=True)
class Journal:
    """What rewards logged through ``log_metric`` and ``log_extra`` in one call."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Last value of each name."""
    extra: dict[str, list[Any]] = field(default_factory=dict[str, "list[Any]"])
    """Columns for the completions table."""

    def log_metric(self, name: str, value: float) -> None:
        """Log one number."""
        self.metrics[name] = float(value)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log one value per completion."""
        self.extra[column] = list(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of one step: completions of a group stand side by side."""

    columns: Mapping[str, Sequence[Any]]
    """By name; all of the same length."""
    bounds: tuple[tuple[int, int], ...]
    """First row and row after the last of each group."""

    @property
    def rows(self) -> int:
        """How many completions."""
        return len(self.columns["completions"])

    def take(self, rows: Iterable[int]) -> dict[str, list[Any]]:
        """Some rows of every column."""
        chosen = list(rows)
        return {name: [values[row] for row in chosen] for name, values in self.columns.items()}


def table(groups: Sequence[Group], *, known: Iterable[str] = ()) -> Table:
    """Lay the groups of a step out as columns.

    Args:
        groups: Prompts with their completions.
        known: Columns of the data that no sample of this step happens to have; they are filled with None.

    Returns:
        One row per completion. ``completions`` is what the template wrote of the answer plus what the policy wrote.
        ``solution`` is the answer again, unless the data has a column of that name. Names of :data:`GIVEN` win over
        a data column of the same name.
    """
    pairs = [(group.prompt, completion) for group in groups for completion in group.completions]
    extras = dict.fromkeys([*known, *(key for group in groups for key in group.prompt.sample.extras)])
    columns: dict[str, list[Any]] = {key: [p.sample.extras.get(key) for p, _ in pairs] for key in extras}
    columns.setdefault("solution", [p.sample.answer for p, _ in pairs])
    for name, read in _READERS.items():
        columns[name] = [read(p, c) for p, c in pairs]
    columns["group"] = [index for index, group in enumerate(groups) for _ in group.completions]
    bounds: list[tuple[int, int]] = []
    for group in groups:
        start = bounds[-1][1] if bounds else 0
        bounds.append((start, start + len(group.completions)))
    return Table(columns=columns, bounds=tuple(bounds))


def _media(kind: str) -> Callable[[Prompt, Completion], list[Any]]:
    return lambda prompt, _: [_plain(m) for m in prompt.media if m.kind == kind]


def _plain(medium: Decoded) -> Any:
    """A picture is handed over as the PIL picture itself; sound and video keep their rate beside them."""
    return medium.data if medium.kind == "image" else medium


_READERS: dict[str, Callable[[Prompt, Completion], Any]] = {
    "completions": lambda p, c: p.prefill + c.text,
    "prompts": lambda p, _: p.text,
    "messages": lambda p, _: list(p.sample.messages),
    "completion_ids": lambda _, c: c.token_ids.tolist(),
    "answer": lambda p, _: p.sample.answer,
    "images": _media("image"),
    "audios": _media("audio"),
    "videos": _media("video"),
    "completion_media": lambda _, c: [_plain(m) for m in c.media],
    "ids": lambda p, _: p.sample.id,
    "finish_reasons": lambda _, c: c.status,
}
