"""A run whose rewards apply to nothing must not go on: it would write checkpoints of a policy that never learned.

One prompt without a truth among many is no fault, so a number of prompts in a row decide, or the whole run. A run in
which rewards apply and never differ may be meant (a rehearsal); at its end it is told.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.errors import RewardError, counted, explain
from mmgrpo.types import ScoredGroup

LIMIT = 16
"""So many prompts in a row without any total stop the run."""


class Applies:
    """Counts prompts that no reward gave a total, and stops a run that has nothing else.

    Args:
        limit: How many prompts in a row are too many.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._empty = 0
        self._ever = False
        self._steps = self._optimizer_steps = 0
        self._last: Sequence[ScoredGroup] = ()

    def look(self, scored: Sequence[ScoredGroup], metrics: Mapping[str, float]) -> None:
        """Look at one step.

        Args:
            scored: Its groups.
            metrics: Its metrics; ``optimizer_steps`` is read.

        Raises:
            RewardError: No reward has applied to any completion of the last ``limit`` prompts or more.
        """
        self._steps += 1
        self._optimizer_steps += int(metrics.get("optimizer_steps", 0))
        if any(not bool(s.totals.isnan().all()) for s in scored):
            self._empty, self._ever, self._last = 0, True, ()
            return
        self._empty, self._last = self._empty + len(scored), scored
        if self._empty >= self.limit:
            raise RewardError(self._told())

    def end(self) -> None:
        """Look back at the end of a run.

        Raises:
            RewardError: It had steps, and no reward applied in any of them.

        Warns:
            UserWarning: Rewards applied, and no optimizer step was taken.
        """
        if self._last and not self._ever:
            raise RewardError(self._told())
        if self._steps and not self._optimizer_steps:
            warnings.warn(
                explain(
                    "The policy is as it was: not one optimizer step was taken",
                    where=f"all of {counted(self._steps, 'step')}",
                    got="groups in which all totals are equal, or all completions are masked",
                    fix="Look at the completions of the run. Use easier prompts, a graded reward, a warm start, or a "
                    "higher temperature; train longer if right answers are rare.",
                ),
                stacklevel=2,
            )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        taken = {"steps": self._steps, "optimizer_steps": self._optimizer_steps}
        return {"empty": self._empty, "ever": self._ever, **taken}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; what an older checkpoint does not say is taken for good."""
        self._empty, self._ever = state.get("empty", 0), state.get("ever", True)
        self._steps, self._optimizer_steps = state.get("steps", 0), state.get("optimizer_steps", 1)

    def _told(self) -> str:
        first = self._last[0]
        sample, written = first.group.prompt.sample, first.group.completions[0].text
        many = self._empty > 1
        return explain(
            f"No reward applies to any completion of the last {self._empty} prompts: nothing is learned"
            if many
            else "No reward applies to any completion: nothing is learned",
            where=f"rewards {', '.join(first.rewards)}; for example sample {sample.id}",
            expected="a number from at least one reward that is added, for at least one completion",
            got=f"no value for any; the sample's answer is {sample.answer!r:.80}, a completion of it {written!r:.120}",
            fix="Is there a truth in the rows (data.columns.answer), in the form that the reward reads? For a "
            "completion that is wrong or cannot be read return 0, not None. Try it: mmgrpo rewards try.",
        )
