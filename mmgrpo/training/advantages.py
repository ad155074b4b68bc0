"""Advantages of a step: each completion compared with the others of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mmgrpo.grpo.advantages import group_advantages
from mmgrpo.types import ScoredGroup


class GroupAdvantages:
    """GRPO's own; fulfils :class:`mmgrpo.contracts.Advantages`.

    Args:
        scale: What differences to the group's mean are divided by.
    """

    def __init__(self, scale: Literal["group", "batch", "none"] = "group") -> None:
        self.scale = scale

    def compute(self, scored: Sequence[ScoredGroup]) -> list[Tensor]:
        """Compare the completions of each group: one tensor of G advantages per group, float64."""
        sizes = [len(s.totals) for s in scored]
        group = torch.repeat_interleave(torch.arange(len(scored)), torch.tensor(sizes))
        totals = torch.cat([s.totals for s in scored])
        return list(group_advantages(totals, group, scale=self.scale).split(sizes))
