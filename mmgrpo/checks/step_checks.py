"""Checks of every step: metrics that tell of a run that learns nothing.

:class:`StepWarnings` warns, once of each kind, with an example, and stops nothing. :class:`RewardCoverageCheck` stops
a run whose rewards apply to nothing: it would write checkpoints of a policy that never learned.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmgrpo.config.checks import Checks
from mmgrpo.errors import RewardError, counted, explain
from mmgrpo.types import ScoredGroup

MAX_PROMPTS_WITHOUT_TOTAL = 16
"""So many prompts in a row without any total stop the run."""
_SEPARATES = 1e-9
"""Values closer than this are equal: they teach nothing."""


class RewardCoverageCheck:
    """Counts prompts that no reward gave a total, and stops a run that has nothing else.

    One prompt without a ground truth among many is no fault, so a number of prompts in a row decide, or the whole run.
    A run in which rewards apply and never differ may be meant (a rehearsal); it is warned of at its end.

    Args:
        limit: How many prompts in a row are too many.
    """

    def __init__(self, limit: int = MAX_PROMPTS_WITHOUT_TOTAL) -> None:
        self.limit = limit
        self._without_total = 0
        self._any_total = False
        self._steps = self._optimizer_steps = 0
        self._last: Sequence[ScoredGroup] = ()

    def observe(self, scored: Sequence[ScoredGroup], metrics: Mapping[str, float]) -> None:
        """Count the prompts of one step.

        Args:
            scored: Its groups.
            metrics: Its metrics; ``optimizer_steps`` is read.

        Raises:
            RewardError: No reward has applied to any completion of the last ``limit`` prompts or more.
        """
        self._steps += 1
        self._optimizer_steps += int(metrics.get("optimizer_steps", 0))
        if any(not bool(s.totals.isnan().all()) for s in scored):
            self._without_total, self._any_total, self._last = 0, True, ()
            return
        self._without_total, self._last = self._without_total + len(scored), scored
        if self._without_total >= self.limit:
            raise RewardError(self._message())

    def finish(self) -> None:
        """Look back at the end of a run.

        Raises:
            RewardError: It had steps, and no reward applied in any of them.

        Warns:
            UserWarning: Rewards applied, and no optimizer step was taken.
        """
        if self._last and not self._any_total:
            raise RewardError(self._message())
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
        return {"empty": self._without_total, "ever": self._any_total, **taken}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; what an older checkpoint does not say counts as well."""
        self._without_total, self._any_total = state.get("empty", 0), state.get("ever", True)
        self._steps, self._optimizer_steps = state.get("steps", 0), state.get("optimizer_steps", 1)

    def _message(self) -> str:
        first = self._last[0]
        sample, text = first.group.prompt.sample, first.group.completions[0].text
        many = self._without_total > 1
        return explain(
            f"No reward applies to any completion of the last {self._without_total} prompts: nothing is learned"
            if many
            else "No reward applies to any completion: nothing is learned",
            where=f"rewards {', '.join(first.rewards)}; for example sample {sample.id}",
            expected="a number from at least one reward that is added, for at least one completion",
            got=f"no value for any; the sample's answer is {sample.answer!r:.80}, a completion of it {text!r:.120}",
            fix="Is there a ground truth in the rows (data.columns.answer), in the form that the reward reads? For a "
            "completion that is wrong or cannot be read return 0, not None. Try it: mmgrpo rewards try.",
        )


class StepWarnings:
    """Counts how long each reward has been constant, and warns once of each kind of trouble.

    Args:
        settings: The ``checks`` section.
        masks_truncated: Whether completions that hit the length limit are left out of the loss.
    """

    def __init__(self, settings: Checks, *, masks_truncated: bool = False) -> None:
        self.settings = settings
        self.masks_truncated = masks_truncated
        self._constant: dict[str, list[float]] = {}
        self._cancels: dict[str, int] = {}
        self._flat = 0
        self._warned: set[str] = set()

    def observe(self, scored: Sequence[ScoredGroup], metrics: Mapping[str, float]) -> None:
        """Look at one step.

        Args:
            scored: The step's groups.
            metrics: The step's metrics.

        Warns:
            UserWarning: A reward is constant or cancels, all groups are flat, too many completions are cut off, or
                engine and trainer drift apart.
        """
        if not scored:
            return
        if self.settings.constant_reward_steps:
            for name in scored[0].rewards:
                self._reward(name, scored)
            self._groups(scored)
        self._truncated(scored)
        self._sampling(metrics)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "constant": self._constant,
            "cancels": self._cancels,
            "flat": self._flat,
            "warned": sorted(self._warned),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self._constant = {k: list(v) for k, v in state.get("constant", {}).items()}
        self._cancels = dict(state.get("cancels", {}))
        self._flat = state.get("flat", 0)
        self._warned = set(state.get("warned", ()))

    def _reward(self, name: str, scored: Sequence[ScoredGroup]) -> None:
        limit = self.settings.constant_reward_steps
        values = torch.cat([s.rewards[name] for s in scored])
        values = values[~values.isnan()]
        if not len(values):
            return
        low, high = float(values.min()), float(values.max())
        seen = self._constant.get(name)
        if high - low > _SEPARATES:
            self._constant[name] = [low, 0]
        elif seen is None or not seen[1] or abs(low - seen[0]) > _SEPARATES:
            self._constant[name] = [low, 1]
        else:
            seen[1] += 1
        cancels = all(_spread(s.rewards[name]) <= _SEPARATES for s in scored)
        self._cancels[name] = self._cancels.get(name, 0) + 1 if cancels else 0
        if self._constant[name][1] >= limit:
            self._warn(
                f"constant:{name}",
                f"Reward {name} has been constant at {low:g} for {counted(limit, 'step')}",
                got=_example(scored),
                fix="If that is its best value, it has nothing left to teach. If not: is the form that it looks for "
                "in the prompt, and does the policy ever write it?",
            )
        elif self._cancels[name] >= limit:
            self._warn(
                f"cancels:{name}",
                f"Reward {name} has the same value for every completion of a group, for {counted(limit, 'step')}",
                got=_example(scored),
                fix="It cancels in GRPO and teaches nothing. A reward must tell completions of a prompt apart.",
            )

    def _groups(self, scored: Sequence[ScoredGroup]) -> None:
        limit = self.settings.constant_reward_steps
        self._flat = self._flat + 1 if all(_spread(s.totals) <= _SEPARATES for s in scored) else 0
        named = all({f"constant:{name}", f"cancels:{name}"} & self._warned for name in scored[0].rewards)
        if self._flat >= limit and not named:  # where each reward was named, this would say it again
            self._warn(
                "flat",
                f"No group has had two different totals for {counted(limit, 'step')}: nothing is learned",
                got=_example(scored),
                fix="Use harder or easier prompts, a graded reward, or a higher temperature.",
            )

    def _truncated(self, scored: Sequence[ScoredGroup]) -> None:
        completions = [c for s in scored for c in s.group.completions]
        fraction = sum(c.status == "length" for c in completions) / len(completions)
        if fraction == 1.0 and self.masks_truncated:
            self._warn(
                "masked",
                "Every completion of a step hit the length limit and is left out of the loss: nothing is learned",
                got=_example(scored),
                fix="Raise rollout.max_completion_length, or set loss.mask_truncated_completions: false.",
            )
        if fraction > self.settings.truncated_share:
            self._warn(
                "truncated",
                f"{100 * fraction:.0f} % of the completions hit the length limit",
                got=_example(scored),
                fix="Raise rollout.max_completion_length, add rollout.stop, or check the end token.",
            )

    def _sampling(self, metrics: Mapping[str, float]) -> None:
        drift = metrics.get("sampling/sampling_logp_difference/mean", 0.0)
        if drift > self.settings.drift_logprobs:
            self._warn(
                "drift",
                "The engine's log-probs drift away from the trainer's",
                expected=f"at most {self.settings.drift_logprobs:g} nats on average",
                got=f"{drift:.3g}",
                fix="Lower the learning rate or optimizer steps per rollout; on another engine check its weights.",
            )
        removed = metrics.get("sampling/removed_probability", 0.0)
        if removed > 0.01:
            self._warn(
                "removed",
                "Truncated sampling draws from another distribution than the loss assumes",
                got=f"{100 * removed:.1f} % of the probability is cut away on average",
                expected="at most 1 %",
                fix="Use rollout.top_p 1, top_k 0, min_p 0 and no repetition penalty while training.",
            )

    def _warn(self, kind: str, what: str, **facts: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(explain(what, **facts), stacklevel=5)


def _spread(values: torch.Tensor) -> float:
    values = values[~values.isnan()]
    return float(values.max() - values.min()) if len(values) else 0.0


def _example(scored: Sequence[ScoredGroup]) -> str:
    text = scored[0].group.completions[0].text
    return f"for example {text[:200]!r}{'…' if len(text) > 200 else ''}"
