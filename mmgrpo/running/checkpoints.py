"""The checkpoints of one run: what they gather from its parts, when they may be written, and how a run goes on.

A step that fails is as if it had never begun: what is saved then is the run after the step before, prompts and random
numbers included. Only where the failed step had begun to change the weights there is nothing to save. How a checkpoint
lies on disk is ``training/checkpoint.py``'s concern.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.contracts import Stateful
from mmgrpo.errors import CheckpointError, explain
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.running.state import RunState
from mmgrpo.training import checkpoint, random_streams
from mmgrpo.training.learner import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """Everything that a checkpoint holds beside weights and optimizer, at the end of a step."""

    states: Mapping[str, Any]
    random: Mapping[str, Any]
    updates: int
    """Optimizer steps that had been begun."""


class CheckpointWriter:
    """Writes and reads the checkpoints of a run; fulfils :class:`mmgrpo.contracts.Checkpoints`.

    Args:
        folder: The run's ``checkpoints`` folder.
        learner: Its policy, optimizer and reference.
        stateful: The parts whose state belongs to the run, by the name that it is kept under; ``feed`` is the source
            of prompts.
        dist: The first process writes; the others wait.
        limit: Keep the newest so many, and the best; None keeps all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        learner: Learner,
        stateful: Mapping[str, Stateful],
        dist: Strategy,
        limit: int | None,
    ) -> None:
        self.folder = folder
        self._learner, self._stateful, self._dist, self._limit = learner, dict(stateful), dist, limit
        self._moment: _Moment | None = None

    def begin_step(self) -> None:
        """Remember the run as it is now: the step that begins may fail. All processes call this at once."""
        self._moment = self._now()

    def end_step(self) -> None:
        """Remember the run with the weights that the step has made. All processes call this at once."""
        self._moment = self._now()

    def save(self, run: RunState, *, again: bool = False) -> None:
        """Write a checkpoint of the steps done so far, unless it is written already.

        Args:
            run: Where the run stands.
            again: Write it in any case: what is known of the step has changed.

        Raises:
            CheckpointError: It cannot be written; earlier ones are untouched.
        """
        if again or run.saved_step != run.step:
            moment = self._now()
            self._dist.on_main(lambda: self._write(run, moment))
            run.saved_step = run.step

    def save_after_failure(self, run: RunState) -> None:
        """Write the steps done before the one that failed, where they would be lost.

        Nothing is written where they are written already, where nothing was learned yet, or where the failed step has
        begun to change the weights. Asks nothing of other processes: they may have ended.

        Args:
            run: Where the run stands.

        Raises:
            CheckpointError: It cannot be written; earlier ones are untouched.
        """
        moment = self._moment
        if moment is None or run.saved_step == run.step or moment.updates != self._learner.updates_begun:
            return
        if not (self._learner.has_learned or run.warm_started):
            return
        if self._dist.is_main_process:
            self._write(run, moment)
        run.saved_step = run.step

    def restore(self, run: RunState) -> None:
        """Continue from the checkpoint that the run was resumed from.

        Args:
            run: Gets the steps done.

        Raises:
            CheckpointError: It is not whole, does not fit, or lacks the reference that the loss needs.
        """
        assert run.resumed_from is not None
        progress = checkpoint.load(run.resumed_from, policy=self._learner.policy, optimizer=self._learner.optimizer)
        if self._learner.needs_reference and self._learner.policy.reference_state() is None:
            raise CheckpointError(
                explain(
                    "The checkpoint holds no reference for the KL term",
                    where=f"loss.beta {self._learner.beta:g}, {run.resumed_from}",
                    fix="The run was started with loss.beta 0. Resume it so, or start a new run from its policy: "
                    f"model.name={run.resumed_from}/policy",
                )
            )
        states = {"feed": progress.feed, "monitor": progress.extras, **progress.extras}  # monitor: older checkpoints
        for name, part in self._stateful.items():
            part.load_state(states.get(name, {}))
        run.load_state(states["run"])
        run.step = run.saved_step = progress.step

    def _now(self) -> _Moment:
        states = {name: part.state() for name, part in self._stateful.items()}
        return _Moment(
            states=copy.deepcopy(states), random=random_streams.capture(), updates=self._learner.updates_begun
        )

    def _write(self, run: RunState, moment: _Moment) -> None:
        extras = {**moment.states, "run": run.state()}
        progress = checkpoint.Progress(
            step=run.step, policy_version=run.step, feed=extras.pop("feed"), best_step=run.best_step, extras=extras
        )
        checkpoint.save(
            self.folder,
            progress,
            policy=self._learner.policy,
            optimizer=self._learner.optimizer,
            limit=self._limit,
            random=moment.random,
        )
