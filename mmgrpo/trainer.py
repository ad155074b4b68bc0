"""The program, in one sentence that can be read aloud.

It never asks which engine, adapter or device it has: ``assemble.py`` chooses once and hands the parts in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmgrpo.config.learn import Loss
from mmgrpo.grpo.advantages import group_advantages
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
    first_step: Callable[[Sequence[Group]], None]
    """Checks on the first rollout of this process, before it is learned from."""
    prompts_per_step: int
    """Of this process."""
    num_generations: int
    sampling: Sampling
    loss: Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """How many prompts to roll out next, and completions of each."""

    prompts: int
    completions: int

    @property
    def counts(self) -> list[int]:
        """Completions per prompt."""
        return [self.completions] * self.prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one step asks for. Fixed here: one rollout of so many prompts, so many completions each."""

    prompts: int
    completions: int

    def open(self, scored: Sequence[ScoredGroup]) -> Want | None:
        """What is still missing; None: nothing."""
        missing = self.prompts - len(scored)
        return Want(prompts=missing, completions=self.completions) if missing > 0 else None

    def merge(self, scored: Sequence[ScoredGroup], more: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """Put new groups behind those that are there."""
        return [*scored, *more]


def fit(parts: Parts, run: Run) -> None:
    """Run all steps that are left.

    Args:
        parts: What the loop is made of.
        run: Which steps, and what follows each.

    Raises:
        MmgrpoError: Whatever a part raises; a checkpoint written before it stays whole.
    """
    quota = Quota(prompts=parts.prompts_per_step, completions=parts.num_generations)
    first = True
    for step in run.steps():
        own = collect(parts, quota, step)
        if first:
            parts.first_step([s.group for s in own])
            first = False
        scored = parts.share(own)
        batches = parts.pack(scored, advantages(scored, parts.loss))
        stats = parts.update(batches)
        parts.sync(step + 1)
        run.record(step, scored, stats)


def collect(parts: Parts, quota: Quota, step: int) -> list[ScoredGroup]:
    """Roll out and score until the step's quota is met: once, unless it asks for more."""
    scored: list[ScoredGroup] = []
    while want := quota.open(scored):
        prompts = parts.take(want.prompts)
        groups = parts.generate(prompts, want.counts, parts.sampling)
        scored = quota.merge(scored, parts.score(groups, step))
    return scored


def advantages(scored: Sequence[ScoredGroup], loss: Loss) -> list[Tensor]:
    """Compare the completions of each group: one tensor of G advantages per group, float64."""
    sizes = [len(s.totals) for s in scored]
    group = torch.repeat_interleave(torch.arange(len(scored)), torch.tensor(sizes))
    totals = torch.cat([s.totals for s in scored])
    return list(group_advantages(totals, group, scale=loss.scale_rewards).split(sizes))
