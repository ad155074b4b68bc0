"""Showing every process the groups of all, so that each compares, counts and logs the whole step.

Pictures and processed tensors stay where they were made: only texts, tokens and rewards travel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmgrpo.training.parallel import Processes
from mmgrpo.types import ScoredGroup

_REMEMBERED = 64
"""Exchanges that are remembered: more than the rollouts of a step."""


class Exchange:
    """Exchanges the groups of one step after another."""

    def __init__(self, processes: Processes) -> None:
        """Exchange between ``processes``."""
        self._processes = processes
        self._own: deque[frozenset[int]] = deque(maxlen=_REMEMBERED)

    def share(self, own: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """Give the groups of all processes, in the order in which one process would have drawn them.

        Args:
            own: Those of this process.

        Returns:
            All; those of others without pixels, tensors and columns.
        """
        self._own.append(frozenset(scored.group.prompt.occurrence for scored in own))
        if self._processes.world == 1:
            return list(own)
        mine = {scored.group.prompt.occurrence: scored for scored in own}
        found = [scored for part in self._processes.gather([_light(s) for s in own]) for scored in part]
        found.sort(key=lambda scored: scored.group.prompt.occurrence)
        return [mine.get(scored.group.prompt.occurrence, scored) for scored in found]

    def is_mine(self, scored: ScoredGroup) -> bool:
        """Tell whether a group of the newest step was made here, and so is learned from here."""
        return any(scored.group.prompt.occurrence in own for own in self._own)


def _light(scored: ScoredGroup) -> ScoredGroup:
    group, prompt = scored.group, scored.group.prompt
    media = tuple(replace(medium, data=None) for medium in prompt.media)
    named = tuple(replace(m, source=m.source if isinstance(m.source, Path) else None) for m in prompt.sample.media)
    sample = replace(prompt.sample, media=named, extras={})
    prompt = replace(prompt, sample=sample, model_inputs={}, media=media)
    completions = tuple(
        replace(
            one, token_ids=one.token_ids.cpu(), rollout_logprobs=one.rollout_logprobs.cpu(),
            loss_mask=one.loss_mask.cpu(), spans=tuple(replace(span, media=()) for span in one.spans),
        )
        for one in group.completions
    )  # fmt: skip
    extra = {name: [str(value) for value in column] for name, column in scored.extra.items()}
    return replace(scored, group=replace(group, prompt=prompt, completions=completions), extra=extra)
