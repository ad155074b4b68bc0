"""The run: which step is next, and what happens when one is done.

After each step, in this order: figures, watching, completions, logging, evaluation, checkpoint, callback. Everything
that it does is handed to it; it imports no engine, no policy and no evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmgrpo.errors import ConfigError, explain
from mmgrpo.running.figures import step_figures
from mmgrpo.running.stop import Stops
from mmgrpo.types import ScoredGroup, UpdateStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a run calls. Each is a function, so that a test or a notebook can hand in its own."""

    seconds: Callable[[], Mapping[str, float]]
    """Seconds per phase since the last call."""
    figures: Callable[[], Mapping[str, float]] = dict
    """Further metrics of the step: of the engine, of the rewards."""
    watch: Callable[[Sequence[ScoredGroup], Mapping[str, float]], None] = lambda scored, metrics: None
    """Looks for a run that teaches nothing."""
    log: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None
    """Writes metrics."""
    show: Callable[[Mapping[str, float]], None] = lambda metrics: None
    """Moves the progress bar."""
    write_completions: Callable[[int, Sequence[ScoredGroup]], None] = lambda step, scored: None
    """Writes a sample of completions."""
    evaluate: Callable[[int], Mapping[str, float]] = lambda step: {}
    """Evaluates held-out rows, writes a row of metrics of its own, and returns them."""
    save: Callable[[int, int | None], None] = lambda step, best: None
    """Writes a checkpoint: steps done, and which of them is the best."""
    on_step: Callable[[int, Mapping[str, float]], bool | None] = lambda step, metrics: None
    """The user's callback; returning False stops the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """How often things happen, in steps; 0: never while running."""

    log: int
    evaluate: int
    save: int
    best_metric: str | None = None
    """Keep the checkpoint with the highest value of this eval metric."""


@dataclass(slots=True, kw_only=True)
class Run:
    """Where a run stands."""

    num_steps: int
    """Steps of the whole run."""
    hooks: Hooks
    every: Every
    stop: Stops
    done: int = 0
    """Steps done, also before a resume."""
    best_step: int | None = None
    best_value: float | None = None
    last: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of the newest step."""
    saved: int | None = None
    """Step of the newest checkpoint."""
    stopped: str | None = None
    """Why the run ended early; None: it did not."""

    def steps(self) -> Iterator[int]:
        """Steps that are left, until the last one or a reason to stop."""
        while self.done < self.num_steps:
            self.stopped = self.stopped or self.stop.reason
            if self.stopped:
                return
            yield self.done

    def record(
        self,
        step: int,
        scored: Sequence[ScoredGroup],
        stats: UpdateStats,
        collected: Mapping[str, float] | None = None,
    ) -> None:
        """Do everything that follows a step.

        Args:
            step: The step's number, from 0.
            scored: Its groups.
            stats: What its update said.
            collected: What its quota said; None: nothing.
        """
        hooks, every = self.hooks, self.every
        self.done = step + 1
        metrics = {**step_figures(scored, stats, hooks.seconds()), **hooks.figures(), **(collected or {})}
        hooks.watch(scored, metrics)
        if _due(self.done, every.log) or self.done == self.num_steps:
            hooks.write_completions(self.done, scored)
        hooks.log(self.done, metrics)
        hooks.show(metrics)
        if _due(self.done, every.evaluate) and self.done < self.num_steps:
            found = hooks.evaluate(self.done)
            self.note_best(found)
            metrics |= found
        self.last = metrics
        if _due(self.done, every.save) or self.best_step == self.done:
            self.save()
        if hooks.on_step(self.done, metrics) is False and self.done < self.num_steps:
            self.stopped = "the on_step callback"

    def note_best(self, metrics: Mapping[str, float]) -> bool:
        """Remember the step if the chosen eval metric is higher than ever.

        Args:
            metrics: Of an evaluation of the policy as it is now.

        Returns:
            Whether it is the best so far.

        Raises:
            ConfigError: The evaluation has no such metric.
        """
        if self.every.best_metric is None:
            return False
        value = self.best_of(metrics)
        better = value > (-math.inf if self.best_value is None else self.best_value)
        if not better:  # NaN, too: the metric applied to no row
            return False
        self.best_value, self.best_step = value, self.done
        return True

    def best_of(self, metrics: Mapping[str, float]) -> float:
        """Read the metric that chooses the best checkpoint.

        Raises:
            ConfigError: The evaluation has no such metric.
        """
        name = str(self.every.best_metric)
        if name not in metrics:
            raise ConfigError(
                explain("There is no such eval metric", where="train.save_best", got=name, expected=", ".join(metrics))
            )
        return metrics[name]

    def save(self, *, again: bool = False) -> None:
        """Write a checkpoint of the steps done so far, unless it is written already.

        Args:
            again: Write it in any case: what is known of the step has changed.
        """
        if again or self.saved != self.done:
            self.hooks.save(self.done, self.best_step)
            self.saved = self.done

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the run itself."""
        return {"best_step": self.best_step, "best_value": self.best_value}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self.best_step, self.best_value = state.get("best_step"), state.get("best_value")


def _due(done: int, every: int) -> bool:
    return bool(every) and done % every == 0
