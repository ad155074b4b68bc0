"""Checks of every step: figures that tell of a run that teaches nothing. One clear warning each, with an example.

They look at rewards and completions only, and stop nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmgrpo.config.checks import Checks
from mmgrpo.errors import counted, explain
from mmgrpo.types import ScoredGroup

_SEPARATES = 1e-9


class Watch:
    """Remembers what it has seen of each reward, and warns once of each kind of trouble.

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

    def look(self, scored: Sequence[ScoredGroup], metrics: Mapping[str, float]) -> None:
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
        told = all({f"constant:{name}", f"cancels:{name}"} & self._warned for name in scored[0].rewards)
        if self._flat >= limit and not told:  # where each reward was named, this would say it again
            self._warn(
                "flat",
                f"No group has had two different totals for {counted(limit, 'step')}: nothing is learned",
                got=_example(scored),
                fix="Use harder or easier prompts, a graded reward, or a higher temperature.",
            )

    def _truncated(self, scored: Sequence[ScoredGroup]) -> None:
        completions = [c for s in scored for c in s.group.completions]
        share = sum(c.status == "length" for c in completions) / len(completions)
        if share == 1.0 and self.masks_truncated:
            self._warn(
                "masked",
                "Every completion of a step hit the length limit and is left out of the loss: nothing is learned",
                got=_example(scored),
                fix="Raise rollout.max_completion_length, or set loss.mask_truncated_completions: false.",
            )
        if share > self.settings.truncated_share:
            self._warn(
                "truncated",
                f"{100 * share:.0f} % of the completions hit the length limit",
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
