"""Log-probs that stay fixed during an update: of the policy at the start of the step, and of the reference.

Knows which passes can be saved. Does not know losses or optimizers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.contracts import TrainablePolicy
from mmgrpo.training.packing import PackedTokens, flatten_completions
from mmgrpo.types import Batch, OptimizerBatch


class FirstPass(Enum):
    """Where old log-probs come from when nothing was computed before the update."""

    GIVES_OLD_LOGPROBS = "the policy has not moved yet: its first training pass gives them"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A micro-batch with what stays fixed while the policy moves."""

    batch: Batch
    tokens: PackedTokens
    """Its per-token tensors, on the policy's device."""
    old_logprobs: Float[Tensor, "K"] | FirstPass = FirstPass.GIVES_OLD_LOGPROBS
    """Under the weights at the start of the step."""
    ref_logprobs: Float[Tensor, "K"] | None = None
    """Under the reference; None: there is no KL term."""


def prepare(
    policy: TrainablePolicy, steps: Sequence[OptimizerBatch], *, temperature: float, with_reference: bool
) -> tuple[list[tuple[MicroBatch, ...]], dict[str, float]]:
    """Compute the fixed log-probs of a rollout, before its first optimizer step.

    The policy has not moved when the first optimizer step reads its micro-batches, so these get their old log-probs
    from that very pass: an update of one optimizer step computes none here, whatever its number of iterations.

    Args:
        policy: At the start of the step.
        steps: The rollout, packed.
        temperature: That of the rollout.
        with_reference: Also compute the reference's log-probs.

    Returns:
        Micro-batches by optimizer step; and the seconds spent, by metric name, for the passes that were needed.
    """
    micros = [
        tuple(MicroBatch(batch=b, tokens=flatten_completions(b).to(policy.device)) for b in step.batches)
        for step in steps
    ]
    seconds: dict[str, float] = {}
    # by what any rank learns from: the policy moves here, too, where this rank has nothing to read
    first = next((i for i, step in enumerate(steps) if step.learns), len(micros))
    if any(micros[first + 1 :]):
        start = time.perf_counter()
        for i in range(first + 1, len(micros)):
            micros[i] = tuple(
                replace(m, old_logprobs=_read(policy, m.batch, temperature=temperature)) for m in micros[i]
            )
        seconds["old_logprobs_seconds"] = time.perf_counter() - start
    if with_reference and any(micros):
        start = time.perf_counter()
        with policy.reference():
            micros = [
                tuple(replace(m, ref_logprobs=_read(policy, m.batch, temperature=temperature)) for m in step)
                for step in micros
            ]
        seconds["ref_logprobs_seconds"] = time.perf_counter() - start
    return micros, seconds


@torch.no_grad()
def _read(policy: TrainablePolicy, batch: Batch, *, temperature: float) -> Float[Tensor, "K"]:
    return policy.logprobs(batch, temperature=temperature).logprobs
