"""The update: from the packed micro-batches of a rollout to new weights.

Iterations over optimizer steps over micro-batches. Does not know how completions were drawn or scored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmgrpo.grpo.loss import policy_loss
from mmgrpo.grpo.objective import Counts, Objective
from mmgrpo.grpo.sums import LossSums, loss_metrics
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.training.backward import backward
from mmgrpo.training.contract import TrainablePolicy
from mmgrpo.training.frozen import MicroBatch, prepare
from mmgrpo.training.measure import known_logprobs, longest, masked_sum, mean_over_steps, sampling_metrics
from mmgrpo.training.optimizer import Optimizer
from mmgrpo.types import OptimizerBatch, UpdateStats


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """How a rollout is learned from."""

    objective: Objective
    """The loss; its ``beta`` decides whether the reference is read."""
    temperature: float
    """That of the rollout: log-probs are of the distribution that was sampled from."""
    max_completion_length: int
    """Tokens; ``dr_grpo`` divides by it."""
    num_iterations: int = 1
    """Passes over the rollout."""
    entropy: bool = True
    """Measure the policy's entropy."""
    check_finite: bool = True
    """Stop before an optimizer step whose loss or gradient is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What one training pass over one micro-batch left behind."""

    micro: MicroBatch
    sums: LossSums
    entropy: float | None
    """Sum over trained tokens, in nats."""


def update(
    policy: TrainablePolicy, batches: Sequence[OptimizerBatch], *, settings: UpdateSettings, optimizer: Optimizer
) -> UpdateStats:
    """Take all optimizer steps that follow from one rollout.

    Losses are divided by the counts of the whole optimizer step, so that micro-batches of any size add up to the
    same gradient. An optimizer step without micro-batches is skipped and counted, and the schedule advances.

    Args:
        policy: What learns.
        batches: One entry per optimizer step, from :func:`mmgrpo.training.packing.pack`.
        settings: How.
        optimizer: Built over ``policy.trainable()``.

    Returns:
        Metrics (means over optimizer steps; ``grad_norm`` before clipping; ``learning_rate`` of the last; ``entropy``
        in nats per trained token that was computed), counts and seconds. ``num_tokens`` are those of training passes.

    Raises:
        TrainingError: A loss or gradient is not finite. The optimizer step in question was not taken.
    """
    start = time.perf_counter()
    wanted = settings.objective.beta > 0
    micros, seconds = prepare(policy, batches, temperature=settings.temperature, with_reference=wanted)
    metrics: list[Mapping[str, float]] = []
    rate = optimizer.learning_rate
    for _ in range(settings.num_iterations):
        for index, step in enumerate(batches):
            rate = optimizer.learning_rate
            if not step.learns:
                optimizer.skip()
                continue
            passes, norm = _optimizer_step(policy, micros[index], step, settings=settings, optimizer=optimizer)
            micros[index] = tuple(p.micro for p in passes)
            found = _step_metrics(passes, _counts(step, settings), optimizer.dist)
            metrics.append(found | {"grad_norm": norm})
    nothing = loss_metrics([], Counts(num_tokens=0, num_sequences=0, max_completion_length=1)) | {"grad_norm": 0.0}
    found = mean_over_steps(metrics) if metrics else nothing
    tokens = sum(b.num_tokens for step in batches for b in step.batches)
    own = (known_logprobs([m for step in micros for m in step]), tokens, seconds)
    known, every_tokens, every_seconds = zip(*optimizer.dist.all_gather(own), strict=True)
    found["skipped_groups"] = float(sum(step.num_skipped_groups for step in batches))  # of all processes already
    found |= {"learning_rate": rate} | sampling_metrics([pair for part in known for pair in part])
    found |= longest(every_seconds)
    return UpdateStats(
        metrics=found,
        optimizer_steps=len(metrics),
        skipped_optimizer_steps=settings.num_iterations * len(batches) - len(metrics),
        num_tokens=settings.num_iterations * sum(every_tokens),
        seconds=time.perf_counter() - start,
    )


def _optimizer_step(
    policy: TrainablePolicy,
    micros: Sequence[MicroBatch],
    step: OptimizerBatch,
    *,
    settings: UpdateSettings,
    optimizer: Optimizer,
) -> tuple[list[_Pass], float]:
    """Sum the gradients of all micro-batches, then change the weights; give the gradient's norm, too."""
    counts = _counts(step, settings)
    optimizer.zero_grad()
    try:
        passes = [_train(policy, m, counts=counts, settings=settings, optimizer=optimizer) for m in micros]
        return passes, optimizer.step()
    finally:
        # Whatever interrupts a step, no half-summed gradient may reach the next.
        optimizer.zero_grad()


def _train(
    policy: TrainablePolicy, micro: MicroBatch, *, counts: Counts, settings: UpdateSettings, optimizer: Optimizer
) -> _Pass:
    """Read one micro-batch, and add its gradient."""
    stats = policy.logprobs(micro.batch, temperature=settings.temperature, entropy=settings.entropy)
    old = stats.logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
    found = policy_loss(
        stats.logprobs,
        old,
        micro.rows.advantages,
        micro.rows.sequence,
        micro.rows.loss_mask,
        objective=settings.objective,
        counts=counts,
        ref_logprobs=micro.ref_logprobs,
    )
    backward(found.loss, micro.batch, optimizer=optimizer, check_finite=settings.check_finite)
    entropy = None if stats.entropy is None else masked_sum(stats.entropy, micro.rows.loss_mask)
    return _Pass(micro=replace(micro, old_logprobs=old), sums=found.sums, entropy=entropy)


def _counts(step: OptimizerBatch, settings: UpdateSettings) -> Counts:
    return Counts(
        num_tokens=step.num_tokens,
        num_sequences=step.num_sequences,
        max_completion_length=settings.max_completion_length,
    )


def _step_metrics(passes: Sequence[_Pass], counts: Counts, dist: Strategy) -> dict[str, float]:
    own = [(p.sums.cpu(), p.entropy, int(p.micro.rows.loss_mask.sum())) for p in passes]
    everyone = [one for part in dist.all_gather(own) for one in part]
    metrics = loss_metrics([sums for sums, _, _ in everyone], counts)
    measured = [entropy for _, entropy, _ in everyone if entropy is not None]
    computed = sum(tokens for _, _, tokens in everyone)
    if measured and computed:
        metrics["entropy"] = sum(measured) / computed
    return metrics
