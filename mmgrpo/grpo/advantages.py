"""Rewards to advantages: each completion compared with the others of its group.

:class:`GroupAdvantages` is what a run uses unless ``loss.advantages_fn`` names another; :func:`load_advantages` finds
that. The formulas know where each completion belongs and what it scored; nothing of how the reward came about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.contracts import Advantages
from mmgrpo.errors import ConfigError, TrainingError, explain
from mmgrpo.plugins import build_object, load_object, plugin_errors
from mmgrpo.types import Completion, ScoredGroup

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


class GroupAdvantages:
    """GRPO's own estimator, of the totals alone; fulfils :class:`mmgrpo.contracts.Advantages`.

    Args:
        scale: What differences to the group's mean are divided by.
    """

    def __init__(self, scale: Scale = "group") -> None:
        self.scale: Scale = scale

    def compute(self, scored: Sequence[ScoredGroup]) -> list[Tensor]:
        """Compare the completions of each group: one tensor of G advantages per group, float64."""
        sizes = [len(one.totals) for one in scored]
        group = torch.repeat_interleave(torch.arange(len(scored)), torch.tensor(sizes))
        totals = torch.cat([one.totals for one in scored])
        return list(group_advantages(totals, group, scale=self.scale).split(sizes))

    def state(self) -> Mapping[str, Any]:
        """Nothing is remembered from step to step."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing is remembered from step to step."""


def load_advantages(spec: str | None, args: Mapping[str, Any], *, scale: Scale, folder: Path) -> Advantages:
    """Find the estimator of a run.

    Args:
        spec: ``path.py:name``, ``module:name``, or an entry point of ``mmgrpo.advantages``; None: the built-in one. A
            class is built with ``args``; a function of the scored groups gets them as keyword arguments of every call.
        args: Keyword arguments.
        scale: Of the built-in one.
        folder: Folder of the YAML.

    Returns:
        The estimator; whatever a user's own raises, and results that do not fit, become one message.

    Raises:
        ConfigError: There is none, or it cannot be built.

    Example:
        >>> load_advantages(None, {}, scale="none", folder=Path()).scale
        'none'
    """
    if spec is None:
        return GroupAdvantages(scale)
    target = load_object(spec, kind="advantages", folder=folder, where="loss.advantages_fn")
    if isinstance(target, type) or not args:
        target = build_object(target, args, spec=spec, where="loss.advantages_fn")
    else:
        target = partial(target, **args)
    compute = getattr(target, "compute", target)
    if not callable(compute):
        raise ConfigError(
            explain(
                f"{spec} cannot be used as an advantage estimator",
                where="loss.advantages_fn",
                expected="a function of the scored groups, or a class with compute(scored)",
                got=type(target).__name__,
            )
        )
    return _UserAdvantages(target, compute, spec)


class _UserAdvantages:
    """A user's estimator: its errors become one message, its results are checked.

    Args:
        target: What the user wrote; may have ``state`` and ``load_state``.
        compute: The function.
        spec: How it was named.
    """

    def __init__(self, target: Any, compute: Callable[[Sequence[ScoredGroup]], Any], spec: str) -> None:
        self._target, self._compute, self._spec = target, compute, spec

    def _errors(self) -> Any:
        return plugin_errors(
            f"The advantage estimator {self._spec} raised", where="loss.advantages_fn", fix="Correct it.",
            error=TrainingError,
        )  # fmt: skip

    def compute(self, scored: Sequence[ScoredGroup]) -> list[Tensor | list[Tensor]]:
        """Call it; give one tensor of G values per group, or a list of G tensors of one value per token."""
        with self._errors():
            groups = list(self._compute(scored))
            values = [_tensors(one) for one in groups]
        if len(values) != len(scored):
            raise TrainingError(
                explain(
                    f"The advantage estimator {self._spec} gave a result for {len(values)} groups",
                    where="loss.advantages_fn",
                    expected=f"one entry for each of {len(scored)} groups",
                )
            )
        return values

    def state(self) -> Mapping[str, Any]:
        """Where it stands; empty where it has no ``state``."""
        with self._errors():
            return self._target.state() if hasattr(self._target, "state") else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood."""
        if hasattr(self._target, "load_state"):
            with self._errors():
                self._target.load_state(state)


def _tensors(values: Any) -> Tensor | list[Tensor]:
    """Read what a user gave for one group: G numbers, or for each completion one number per token."""
    if isinstance(values, Tensor):
        return values.double()
    listed = list(values)
    if any((isinstance(one, Tensor) and one.ndim) or isinstance(one, list | tuple) for one in listed):
        return [torch.as_tensor(one, dtype=torch.float64) for one in listed]
    return torch.tensor([float(one) for one in listed], dtype=torch.float64)


def check_advantages(scored: ScoredGroup, advantages: Tensor | Sequence[Tensor]) -> tuple[float | Tensor, ...]:
    """Give the advantages of a group's completions as they are trained with, 0 where no reward applies.

    Args:
        scored: The group.
        advantages: G values, or for each completion one value per token.

    Returns:
        For each completion one number, or a float64 tensor of one per token.

    Raises:
        TrainingError: One is not finite, or there is not one per completion or token.
    """
    completions, totals = scored.group.completions, scored.totals.tolist()
    listed = list(advantages) if not isinstance(advantages, Tensor) or advantages.ndim == 1 else [advantages]
    fits = len(listed) == len(completions) and all(
        one.ndim == 0 or one.shape == completion.token_ids.shape
        for one, completion in zip(listed, completions, strict=True)
    )
    values = [torch.zeros(()) if total != total else one for one, total in zip(listed, totals, strict=False)]
    if not fits or not all(bool(one.isfinite().all()) for one in values):
        raise TrainingError(
            explain(
                "Advantages cannot be used",
                where=f"sample {scored.group.prompt.sample.id}",
                expected=f"{len(completions)} finite numbers, or one per token of each completion",
                got=f"{[one.tolist() for one in listed]}"[:500],
                fix="Look at the rewards of this sample: one of them is infinite or missing.",
            )
        )
    return tuple(one.double().cpu() if one.ndim else float(one) for one in values)


def mean_advantage(advantage: Tensor, completion: Completion) -> float:
    """Give one number for the log: the advantage of a completion, or the mean over its trained tokens."""
    if advantage.ndim == 0:
        return float(advantage)
    trained = advantage[completion.loss_mask.cpu()]
    return float(trained.mean()) if len(trained) else 0.0


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
        """Name the figures as they are logged: ``reward_std`` is ``group_std``; TRL's is ``batch_std``."""
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
