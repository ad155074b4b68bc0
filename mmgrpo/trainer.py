"""The program, in one sentence that can be read aloud.

It never asks which engine, adapter or device it has: ``assemble.py`` chooses once and hands the parts in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmgrpo.config.loss import Loss
from mmgrpo.grpo.advantages import group_advantages
from mmgrpo.running.quota import Quota, with_equal_names
from mmgrpo.running.run import Run
from mmgrpo.types import Group, OptimizerBatch, Prompt, Sampling, ScoredGroup, UpdateStats


class Learns(Protocol):
    """The update: batches in, new weights."""

    def __call__(self, batches: Sequence[OptimizerBatch]) -> UpdateStats:
        """Take all optimizer steps of a rollout."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loop is made of; every part is a function, already timed."""

    take: Callable[[int], list[Prompt]]
    """The next prompts."""
    generate: Callable[[Sequence[Prompt], Sequence[int], Sampling], list[Group]]
    """Prompts to groups."""
    score: Callable[[Sequence[Group], int], list[ScoredGroup]]
    """Groups to scored groups, given the step."""
    share: Callable[[Sequence[ScoredGroup]], list[ScoredGroup]]
    """The scored groups of this process to those of all."""
    pack: Callable[[Sequence[ScoredGroup], Sequence[Tensor]], list[OptimizerBatch]]
    """Scored groups and advantages to packed batches."""
    update: Learns
    sync: Callable[[int], None]
    """Hand the new weights to the engine, with their version."""
    first_step: Callable[[Sequence[ScoredGroup]], None]
    """Checks on the first rollout of this process, before it is learned from."""
    quota: Callable[[], Quota]
    """What the next step asks for."""
    sampling: Sampling
    loss: Loss


def fit(parts: Parts, run: Run) -> None:
    """Run all steps that are left.

    Args:
        parts: What the loop is made of.
        run: Which steps, and what follows each.

    Raises:
        MmgrpoError: Whatever a part raises; a checkpoint written before it stays whole.
    """
    first = True
    for step in run.steps():
        quota = parts.quota()
        scored = collect(parts, quota, step)
        if first:
            parts.first_step(scored)
            first = False
        batches = parts.pack(scored, advantages(scored, parts.loss))
        stats = parts.update(batches)
        parts.sync(step + 1)
        run.record(step, scored, stats, quota.metrics())


def collect(parts: Parts, quota: Quota, step: int) -> list[ScoredGroup]:
    """Roll out and score until the step's quota is met: once, unless it asks for more."""
    scored: list[ScoredGroup] = []
    while want := quota.open(scored):
        prompts = parts.take(want.prompts)
        groups = parts.generate(prompts, want.counts, parts.sampling)
        scored = quota.merge(scored, parts.share(parts.score(groups, step)))
    return with_equal_names(scored)


def advantages(scored: Sequence[ScoredGroup], loss: Loss) -> list[Tensor]:
    """Compare the completions of each group: one tensor of G advantages per group, float64."""
    sizes = [len(s.totals) for s in scored]
    group = torch.repeat_interleave(torch.arange(len(scored)), torch.tensor(sizes))
    totals = torch.cat([s.totals for s in scored])
    return list(group_advantages(totals, group, scale=loss.scale_rewards).split(sizes))
