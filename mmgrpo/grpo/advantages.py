"""Rewards to advantages: each completion compared with the others of its group.

Knows where each completion belongs and what it scored; nothing of prompts, tokens or how the reward came about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.errors import explain

Scale = Literal["group", "batch", "none"]
"""What advantages are divided by."""


def group_advantages(
    rewards: Float[Tensor, "S"], group: Int[Tensor, "S"], *, scale: Scale = "group", eps: float = 1e-4
) -> Float[Tensor, "S"]:
    """Compare each completion with the others of its group.

    A[s] = (r[s] - mean(r over the group of s)) / (std(r over the group of s) + eps)

    A reward of NaN is left out of mean and standard deviation. Equal rewards give exactly 0, without rounding noise.

    Args:
        rewards: Total reward of each completion, in the reward's own unit; NaN where no reward applies.
        group: Which group each completion belongs to; groups may differ in size and stand in any order.
        scale: "group" divides by the group's standard deviation (GRPO; the unbiased estimate, n - 1), "batch" by that
            of all rewards given here, "none" by nothing (Dr. GRPO). The mean is the group's in every case.
        eps: Keeps a group of equal rewards finite.

    Returns:
        Advantages, 0 where the reward is NaN and where it is the only one of its group.

    Raises:
        ValueError: A group of fewer than two completions has nothing to compare, or ``scale`` is unknown.

    Source: DeepSeekMath, arXiv:2402.03300, section 4.1; Dr. GRPO, arXiv:2503.20783, section 3.

    Example:
        >>> group_advantages(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), scale="none")
        tensor([ 0.5000, -0.5000])
    """
    if scale not in get_args(Scale):
        raise ValueError(explain("Unknown scale", expected=" or ".join(get_args(Scale)), got=repr(scale)))
    names, member, sizes = torch.unique(group, return_inverse=True, return_counts=True)
    if (sizes < 2).any():
        alone = names[sizes < 2]
        raise ValueError(
            explain(
                "A group of fewer than two completions has nothing to compare",
                where=f"group {', '.join(map(str, alone.tolist()))}",
                expected="at least 2 completions per group",
                got="1",
                fix="Give every prompt at least two completions.",
            )
        )
    centred, group_std = _deviations(rewards, member, len(names))
    if scale == "none":
        return centred
    if scale == "group":
        return centred / (group_std[member] + eps)
    _, batch_std = _deviations(rewards, torch.zeros_like(member), 1)
    return centred / (batch_std + eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardStatistics:
    """How the rewards of a batch spread, over the batch and inside its groups: two things that logs often mix up."""

    mean: float
    """Mean reward; NaN where no completion has one."""
    batch_std: float
    """Unbiased standard deviation over all rewards of the batch."""
    group_std: float
    """Mean over the groups of each group's unbiased standard deviation: what GRPO learns from."""
    frac_reward_zero_std: float
    """Share of groups (0 to 1) whose rewards are all equal, or fewer than two: their advantages are all 0."""

    def metrics(self) -> dict[str, float]:
        """Name the figures as they are logged: ``reward_std`` is ``group_std``, as in TRL."""
        return {
            "reward": self.mean,
            "reward_std": self.group_std,
            "reward_batch_std": self.batch_std,
            "frac_reward_zero_std": self.frac_reward_zero_std,
        }


def reward_statistics(rewards: Float[Tensor, "S"], group: Int[Tensor, "S"]) -> RewardStatistics:
    """Summarise the rewards of a batch.

    Args:
        rewards: Total reward of each completion; NaN where no reward applies (left out).
        group: Which group each completion belongs to.

    Returns:
        Mean, spread over the batch, spread inside groups, and the share of groups that teach nothing.

    Example:
        >>> found = reward_statistics(torch.tensor([1.0, 1.0, 4.0, 4.0]), torch.tensor([0, 0, 1, 1]))
        >>> found.mean, found.group_std, found.frac_reward_zero_std
        (2.5, 0.0, 1.0)
    """
    names, member = torch.unique(group, return_inverse=True)
    _, group_std = _deviations(rewards, member, len(names))
    _, batch_std = _deviations(rewards, torch.zeros_like(member), 1)
    return RewardStatistics(
        mean=rewards.nanmean().item(),
        batch_std=batch_std.item(),
        group_std=group_std.mean().item() if len(names) else 0.0,
        frac_reward_zero_std=(group_std == 0).to(rewards.dtype).mean().item() if len(names) else 0.0,
    )


def _deviations(
    rewards: Float[Tensor, "S"], member: Int[Tensor, "S"], count: int
) -> tuple[Float[Tensor, "S"], Float[Tensor, "N"]]:
    """Each reward's distance from the mean of its set (0 where NaN), and each set's unbiased standard deviation.

    Rewards are first measured from the lowest of their set: equal rewards then are exact zeros, and stay so.
    """
    known = ~rewards.isnan()
    sizes = _sums(known.to(rewards.dtype), member, count)
    high = rewards.new_full((count,), torch.inf)
    lowest = high.scatter_reduce(0, member, rewards.masked_fill(~known, torch.inf), "amin")
    above = (rewards - lowest[member]).masked_fill(~known, 0)
    mean = _sums(above, member, count) / sizes.clamp(min=1)
    centred = (above - mean[member]).masked_fill(~known, 0)
    variance = _sums(centred.square(), member, count) / (sizes - 1).clamp(min=1)
    return centred, variance.sqrt()


def _sums(values: Float[Tensor, "S"], member: Int[Tensor, "S"], count: int) -> Float[Tensor, "N"]:
    return values.new_zeros(count).index_add(0, member, values)
