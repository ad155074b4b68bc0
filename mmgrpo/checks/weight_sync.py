"""After each weight sync: does the engine write with the trainer's new weights?

A fixed prompt is answered with a few tokens from a fixed random stream. The engine's log-probs of them must be the
trainer's, and where the trainer's have moved since the last sync, the engine's must have moved with them: an engine
that is one update behind is found although one update changes little. Costs a handful of tokens per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.checks.first_step import batch_of, bounds_of
from mmgrpo.contracts import Engine
from mmgrpo.errors import WeightSyncError, explain
from mmgrpo.policy.model.policy import Policy
from mmgrpo.types import Completion, Group, Prompt, Sampling

TOKENS = 8
"""Length of the probe's answer."""
_TELLING = 10.0
"""The trainer has moved enough to tell, where its log-probs moved this many times what the two differed by before."""


class WeightProbe:
    """Compares engine and trainer after each sync.

    Args:
        policy: The trainer's side.
        engine: The other; one that shares the trainer's tensors is not asked.
        sampling: Of the rollout; the probe draws from a stream of its own.
    """

    def __init__(self, policy: Policy, engine: Engine, sampling: Sampling) -> None:
        self._policy, self._engine = policy, engine
        self._sampling = replace(
            sampling,
            stream="probe",
            max_completion_length=min(TOKENS, sampling.max_completion_length),
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
        )
        self._prompt: Prompt | None = None
        self._before: tuple[Int[Tensor, "C"], Float[Tensor, "C"], float] | None = None
        """The last answer's tokens, the trainer's log-probs of them then, and how far the engine's were from these."""

    def begin(self, prompts: Sequence[Prompt], version: int) -> dict[str, float]:
        """Choose the prompt, and check the weights of the first rollout.

        Args:
            prompts: Of the first rollout; the shortest serves.
            version: Weight updates of the policy so far.

        Returns:
            As :meth:`check`.

        Raises:
            WeightSyncError: As :meth:`check`.
        """
        if prompts:
            self._prompt = min(prompts, key=lambda prompt: len(prompt.token_ids))
        return self.check(version)

    def check(self, version: int) -> dict[str, float]:
        """Let the engine answer, and compare.

        Args:
            version: Weight updates of the policy so far.

        Returns:
            ``checks/weight_sync/{mean,max}``, nats between engine and trainer; nothing where nothing can differ.

        Raises:
            WeightSyncError: The engine's weights are not the trainer's.
        """
        if self._engine.shares_weights or self._prompt is None:
            return {}
        answer = self._engine.generate([self._prompt], [1], self._sampling)[0].completions[0]
        if answer.policy_version != version:
            raise self._stale("version of the weights", str(version), str(answer.policy_version))
        engine, trainer = answer.rollout_logprobs.cpu().double(), self._trainer_logprobs(answer)
        bounds = bounds_of(self._policy.dtype)
        mean, largest = float((engine - trainer).abs().mean()), float((engine - trainer).abs().max())
        if not (mean <= bounds.mean_logprob and largest <= bounds.max_logprob):
            raise self._stale(
                "log-probs",
                f"at most {bounds.mean_logprob:g} (mean) and {bounds.max_logprob:g} (max) nats apart",
                f"{mean:.3g} (mean) and {largest:.3g} (max)",
            )
        self._require_followed(answer, trainer, largest)
        self._before = (answer.token_ids, trainer, largest)
        return {"checks/weight_sync/mean": mean, "checks/weight_sync/max": largest}

    def _require_followed(self, answer: Completion, trainer: Float[Tensor, "C"], apart: float) -> None:
        """Where the same tokens were written as last time, an engine that stayed where it was is behind."""
        if self._before is None or not torch.equal(self._before[0], answer.token_ids):
            return
        _, before, noise = self._before
        moved = float((trainer - before).abs().max())
        if moved > _TELLING * noise and apart > moved / 2:
            raise self._stale(
                "log-probs", f"a change of {moved:.3g} nats, as the trainer's", f"{apart:.3g} nats apart"
            )

    def _trainer_logprobs(self, answer: Completion) -> Float[Tensor, "C"]:
        assert self._prompt is not None
        group = Group(prompt=self._prompt, completions=(answer,))
        with torch.no_grad():
            scores = self._policy.logprobs(batch_of([group]), temperature=self._sampling.temperature)
        return scores.logprobs.cpu().double()

    def _stale(self, what: str, expected: str, got: str) -> WeightSyncError:
        return WeightSyncError(
            explain(
                f"The engine does not write with the trainer's weights: {what} differ",
                where="check weight_sync",
                expected=expected,
                got=got,
                fix="Its load_weights does not take all weights, or takes them late; do not train on this.",
            )
        )
