"""Where a run stands: steps done, what is due, the best checkpoint so far, and why it ended.

Does nothing itself; ``trainer.py`` asks it and tells it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmgrpo.contracts import Evaluation, StopCondition
from mmgrpo.errors import ConfigError, explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often things happen, in steps; 0: never between the first step and the last."""

    log: int
    evaluate: int = 0
    save: int = 0
    at_start: bool = False
    """Evaluate before the first step."""
    best_metric: str | None = None
    """Keep the checkpoint with the highest value of this metric of the evaluations."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """One run, as far as it has come."""

    num_steps: int
    """Steps of the whole run."""
    intervals: Intervals
    stop: StopCondition
    resumed_from: Path | None = None
    """The checkpoint that it continues from; None: it begins."""
    had_ended: bool = False
    """Whether that checkpoint is of its last step."""
    warm_started: bool = False
    """Whether supervised steps were taken in this process."""
    step: int = 0
    """Steps done, also before a resume; so also the number of the next step."""
    best_step: int | None = None
    best_value: float | None = None
    saved_step: int | None = None
    """Step of the newest checkpoint."""
    stopped: str | None = None
    """Why the run ended early; None: it did not."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of the newest step, and of its evaluation where there was one."""
    before: Evaluation | None = None
    """Evaluation before the first step; None: there was none."""
    newest: Evaluation | None = None
    """The newest evaluation; None: there was none after the first step."""
    after: Evaluation | None = None
    """Evaluation after the last step; None: there was none, or the run was stopped."""

    @property
    def at_end(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.num_steps

    def steps(self) -> Iterator[int]:
        """Numbers of the steps that are left, until the last one or a reason to stop."""
        while not self.at_end:
            self.stopped = self.stopped or self.stop.reason
            if self.stopped:
                return
            yield self.step

    def is_due(self, interval: int) -> bool:
        """Whether something that happens every ``interval`` steps happens after the newest one."""
        return bool(interval) and self.step % interval == 0

    def note_best(self, metrics: Mapping[str, float]) -> bool:
        """Remember the step if the chosen metric is higher than ever.

        Args:
            metrics: Of an evaluation of the policy as it is now.

        Returns:
            Whether it is the best so far.

        Raises:
            ConfigError: The evaluation has no such metric.
        """
        if self.intervals.best_metric is None:
            return False
        value = self.best_metric_of(metrics)
        better = value > (-math.inf if self.best_value is None else self.best_value)
        if not better:  # NaN, too: the metric applied to no row
            return False
        self.best_value, self.best_step = value, self.step
        return True

    def best_metric_of(self, metrics: Mapping[str, float]) -> float:
        """Read the metric that chooses the best checkpoint.

        Raises:
            ConfigError: The evaluation has no such metric.
        """
        name = str(self.intervals.best_metric)
        if name not in metrics:
            raise ConfigError(
                explain("There is no such eval metric", where="train.save_best", got=name, expected=", ".join(metrics))
            )
        return metrics[name]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the run itself."""
        return {"best_step": self.best_step, "best_value": self.best_value}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self.best_step, self.best_value = state.get("best_step"), state.get("best_value")
