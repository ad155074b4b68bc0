"""The warm start: imitate given answers before GRPO, through the same packed forward, optimizer and checks.

Does not know where prompts and targets come from, or that GRPO follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.contracts import TrainablePolicy
from mmgrpo.training.optimizer import Optimizer
from mmgrpo.training.packing import pack_segments, sample_names
from mmgrpo.types import Batch, Completion, Prompt, Segment

Target = tuple[Prompt, Int[Tensor, "C"]]
"""A prompt and the tokens to write after it, the end token included."""
TargetSource = Callable[[], Sequence[Target]]
"""Gives the rows of the next optimizer step."""
OnStep = Callable[[int, Mapping[str, float]], None]
"""Gets the step, counted from 0, and its metrics."""


def warm_start(
    policy: TrainablePolicy,
    source: TargetSource,
    *,
    num_steps: int,
    max_batch_tokens: int,
    optimizer: Optimizer,
    check_finite: bool = True,
    on_step: OnStep | None = None,
) -> dict[str, float]:
    """Train the policy to write the targets.

    loss = - sum over target tokens of all rows of log p(token | everything before it) / number of target tokens

    Args:
        policy: What learns.
        source: Called once per step.
        num_steps: Optimizer steps.
        max_batch_tokens: Packed tokens per micro-batch.
        optimizer: Built over ``policy.trainable()``; not the one that GRPO uses later.
        check_finite: Stop before an optimizer step whose loss or gradient is not finite.
        on_step: Called after each step.

    Returns:
        ``loss/first`` and ``loss/last`` in nats per token, ``steps``, ``tokens`` (targets learned from) and
        ``seconds``.

    Raises:
        TrainingError: A loss or gradient is not finite; the weights are those of the step before.
    """
    start = time.perf_counter()
    losses: list[float] = []
    tokens = 0
    for step in range(num_steps):
        metrics = imitate(
            policy, source(), max_batch_tokens=max_batch_tokens, optimizer=optimizer, check_finite=check_finite
        )
        losses.append(metrics["loss"])
        tokens += int(metrics["tokens"])
        if on_step is not None:
            on_step(step, metrics)
    ends = {"loss/first": losses[0], "loss/last": losses[-1]} if losses else {}
    return ends | {"steps": len(losses), "tokens": tokens, "seconds": time.perf_counter() - start}


def imitate(
    policy: TrainablePolicy,
    rows: Sequence[Target],
    *,
    max_batch_tokens: int,
    optimizer: Optimizer,
    check_finite: bool = True,
) -> dict[str, float]:
    """Take one supervised optimizer step.

    Args:
        policy: What learns.
        rows: Prompts and targets, at least one.
        max_batch_tokens: Packed tokens per micro-batch.
        optimizer: Takes the step.
        check_finite: Stop on a loss or gradient that is not finite.

    Returns:
        ``loss`` in nats per token, ``grad_norm`` before clipping, ``learning_rate``, ``tokens`` and ``seconds``.

    Raises:
        TrainingError: Loss or gradient is not finite; the weights are unchanged.
    """
    start = time.perf_counter()
    segments = [target_segment(prompt, token_ids) for prompt, token_ids in rows]
    batches = pack_segments(segments, max_batch_tokens=max_batch_tokens, share_prompts=policy.layout == "packed")
    total = sum(optimizer.dist.all_gather(sum(len(token_ids) for _, token_ids in rows)))
    rate = optimizer.learning_rate
    losses, norm = optimizer.run_step(
        lambda: [_learn(policy, batch, total, optimizer=optimizer, check_finite=check_finite) for batch in batches]
    )
    loss = sum(optimizer.dist.all_gather(sum(losses)))
    seconds = time.perf_counter() - start
    return {"loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens": total, "seconds": seconds}


def target_segment(prompt: Prompt, token_ids: Int[Tensor, "C"]) -> Segment:
    """Dress a target as a completion of its prompt, every token trained."""
    completion = Completion(
        token_ids=token_ids,
        rollout_logprobs=torch.zeros(len(token_ids)),
        loss_mask=torch.ones(len(token_ids), dtype=torch.bool),
        text="",
        status="stop",
        policy_version=0,
    )
    return Segment(prompt=prompt, completions=(completion,), advantages=(0.0,))


def _learn(policy: TrainablePolicy, batch: Batch, total: int, *, optimizer: Optimizer, check_finite: bool) -> float:
    """Add a micro-batch's gradient; give its part of the loss."""
    loss = -policy.logprobs(batch, temperature=1.0).logprobs.sum() / total
    optimizer.backward(loss, where=sample_names(batch), check_finite=check_finite)
    return float(loss.detach())
