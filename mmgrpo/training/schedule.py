"""The learning rate of each optimizer step. Knows numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleKind = Literal["constant", "linear", "cosine"]


def learning_rate_at(step: int, *, peak: float, warmup_steps: int, total_steps: int, kind: ScheduleKind) -> float:
    """Give the learning rate of one optimizer step.

    With s the step, W the warm-up and L the total, s < W:  peak (s + 1) / (W + 1).  Later, with
    x = (s - W) / (L - W):  constant peak; linear peak (1 - x); cosine peak (1 + cos(pi x)) / 2.

    The rise starts just above zero and the fall would reach zero at step L, one after the last: no optimizer step is
    spent on a rate of zero.

    Args:
        step: 0 for the first optimizer step.
        peak: Largest learning rate, reached at step W.
        warmup_steps: W, optimizer steps of linear rise.
        total_steps: L, optimizer steps of the whole run.
        kind: Shape after the warm-up.

    Returns:
        The learning rate; 0 past the end of a falling schedule.

    Example:
        >>> [learning_rate_at(s, peak=1.0, warmup_steps=1, total_steps=5, kind="linear") for s in range(6)]
        [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if kind == "constant":
        return peak
    progress = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return peak * (1.0 - progress) if kind == "linear" else peak * (1.0 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning rate for each optimizer step; see :func:`learning_rate_at`."""

    peak: float
    """Largest learning rate."""
    warmup_steps: int = 0
    """Optimizer steps of linear rise."""
    total_steps: int = 0
    """Optimizer steps of the whole run; unused by "constant"."""
    kind: ScheduleKind = "constant"
    """Shape after the warm-up."""

    def at(self, step: int) -> float:
        """Give the learning rate of an optimizer step, counted from 0."""
        return learning_rate_at(
            step, peak=self.peak, warmup_steps=self.warmup_steps, total_steps=self.total_steps, kind=self.kind
        )
