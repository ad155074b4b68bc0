"""A run whose rewards apply to nothing must not go on: it would write checkpoints of a policy that never learned.

One prompt without a truth among many is no fault, so a number of prompts in a row decide, or the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.errors import RewardError, explain
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
        self._last: Sequence[ScoredGroup] = ()

    def look(self, scored: Sequence[ScoredGroup]) -> None:
        """Look at one step.

        Args:
            scored: Its groups.

        Raises:
            RewardError: No reward has applied to any completion of the last ``limit`` prompts or more.
        """
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
        """
        if self._last and not self._ever:
            raise RewardError(self._told())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"empty": self._empty, "ever": self._ever}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; what an older checkpoint does not say is taken for good."""
        self._empty, self._ever = state.get("empty", 0), state.get("ever", True)

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
