"""Showing every rank the groups of all, so that each compares, counts and logs the whole step.

Images and processed tensors stay where they were made: only texts, tokens and rewards travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmgrpo.parallel.strategy import Strategy
from mmgrpo.types import ScoredGroup


def all_gather_groups(dist: Strategy, groups: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """Give every rank the groups of all, in the order in which one process would have drawn them. All ranks.

    Args:
        dist: This rank among those of the run.
        groups: Those that this rank rolled out.

    Returns:
        All; those of other ranks have ``is_local`` False and hold no pixels, tensors or columns.
    """
    if dist.world_size == 1:
        return list(groups)
    shards = dist.all_gather([_light(one) for one in groups])
    everyone = [
        one for rank, shard in enumerate(shards) for one in (groups if rank == dist.rank else shard)
    ]  # this rank's with all they hold
    return sorted(everyone, key=lambda one: one.group.prompt.draw_index)


def _light(scored: ScoredGroup) -> ScoredGroup:
    group, prompt = scored.group, scored.group.prompt
    media = tuple(replace(item, data=None) for item in prompt.media)
    named = tuple(
        replace(item, source=item.source if isinstance(item.source, Path) else None) for item in prompt.sample.media
    )
    sample = replace(prompt.sample, media=named, extras={})
    prompt = replace(prompt, sample=sample, model_inputs={}, media=media)
    completions = tuple(
        replace(
            one,
            token_ids=one.token_ids.cpu(),
            rollout_logprobs=one.rollout_logprobs.cpu(),
            loss_mask=one.loss_mask.cpu(),
            spans=tuple(replace(span, media=()) for span in one.spans),
        )
        for one in group.completions
    )
    extra = {name: [_plain(value) for value in column] for name, column in scored.extra.items()}
    return replace(scored, group=replace(group, prompt=prompt, completions=completions), extra=extra, is_local=False)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
