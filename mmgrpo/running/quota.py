"""What one step asks for: how many prompts to roll out, and whether groups that teach nothing are replaced.

Counts groups and compares totals; knows no engine and no rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mmgrpo.config.schema import Config
from mmgrpo.types import ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """How many prompts to roll out next in this process, and completions of each."""

    prompts: int
    completions: int

    @property
    def counts(self) -> list[int]:
        """Completions per prompt."""
        return [self.completions] * self.prompts


@dataclass(slots=True, kw_only=True)
class Quota:
    """One rollout of so many prompts, so many completions each. One object serves one step."""

    prompts: int
    """Groups of the step, over all processes."""
    completions: int
    """Completions of each."""
    world: int = 1
    """Processes that share the prompts."""

    def request(self, scored: Sequence[ScoredGroup]) -> RolloutRequest | None:
        """What is still missing; None: nothing.

        Args:
            scored: The groups that the step has, of all processes.
        """
        missing = self.prompts - len(scored)
        return RolloutRequest(prompts=-(-missing // self.world), completions=self.completions) if missing > 0 else None

    def merge(self, scored: Sequence[ScoredGroup], more: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """Put new groups behind those that are there."""
        return [*scored, *more]

    def metrics(self) -> dict[str, float]:
        """What the step says of its quota."""
        return {}


@dataclass(slots=True, kw_only=True)
class DynamicSampling(Quota):
    """Dynamic sampling: groups whose totals are all equal are replaced by groups of other prompts, a few times.

    What is missing after the last time is filled with such groups: they cost no update, and the step keeps its size.

    Source: DAPO, arXiv:2503.14476, section 3.2.
    """

    resamples: int
    """Further rollouts at the most."""
    _rollouts: int = 0
    _kept: int = 0
    _equal: list[ScoredGroup] = field(default_factory=list[ScoredGroup])
    _sum: float = 0.0
    _values: int = 0

    def merge(self, scored: Sequence[ScoredGroup], more: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """Keep the groups that teach something; after the last rollout fill up with others, newest first."""
        self._rollouts += 1
        self._note(more)
        self._equal += [group for group in more if not has_reward_signal(group)]
        kept_groups = [*scored, *(group for group in more if has_reward_signal(group))]
        missing = self.prompts - len(kept_groups)
        self._kept = len(kept_groups)
        if missing <= 0 or self._rollouts <= self.resamples:
            return kept_groups
        return sorted([*kept_groups, *self._equal[-missing:]], key=lambda one: one.group.prompt.draw_index)

    def metrics(self) -> dict[str, float]:
        """Give the rollouts of the step, the groups replaced, and the mean total of all that was sampled."""
        replaced = len(self._equal) - max(0, self.prompts - self._kept)
        return {
            "dynamic_sampling/rollouts": float(self._rollouts),
            "dynamic_sampling/replaced_groups": float(max(0, replaced)),
            "dynamic_sampling/reward_all": self._sum / self._values if self._values else float("nan"),
        }

    def _note(self, more: Sequence[ScoredGroup]) -> None:
        for group in more:
            totals = group.totals[~group.totals.isnan()]
            self._sum += float(totals.sum())
            self._values += len(totals)


def quota_of(config: Config, *, world: int = 1) -> Quota:
    """Give the quota of one step.

    Args:
        config: Sizes, and whether groups are replaced.
        world: Processes that share the prompts.
    """
    prompts, rollout = config.train.prompts_per_step, config.rollout
    if not rollout.dynamic_sampling:
        return Quota(prompts=prompts, completions=rollout.num_generations, world=world)
    return DynamicSampling(
        prompts=prompts, completions=rollout.num_generations, world=world, resamples=rollout.max_resample_times
    )


def with_equal_names(scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """Give every group the same rewards, NaN where it has none: what a reward says may differ from call to call.

    Args:
        scored: Groups of several rollouts or processes.
    """
    names = dict.fromkeys(name for group in scored for name in group.rewards)
    if all(len(group.rewards) == len(names) for group in scored):
        return list(scored)
    return [
        replace(group, rewards={name: group.rewards.get(name, group.totals * float("nan")) for name in names})
        for group in scored
    ]


def has_reward_signal(scored: ScoredGroup) -> bool:
    """Tell whether a group has two different totals.

    Args:
        scored: A group; completions that no reward applies to do not count.
    """
    totals = scored.totals[~scored.totals.isnan()]
    return len(totals) > 1 and bool((totals != totals[0]).any())
