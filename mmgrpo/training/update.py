"""The update: from the packed micro-batches of a rollout to new weights.

Iterations over optimizer steps over micro-batches. Does not know how completions were drawn or scored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmgrpo.config.loss import Loss
from mmgrpo.contracts import TrainablePolicy
from mmgrpo.grpo.inputs import Counts, TokenInputs
from mmgrpo.grpo.loss import PolicyLoss, Surrogate, clip, policy_loss
from mmgrpo.metrics import Mean, Metric, merge, values
from mmgrpo.training.baseline_logprobs import FirstPass, MicroBatch, prepare
from mmgrpo.training.optimizer import Optimizer
from mmgrpo.training.packing import sample_names
from mmgrpo.training.update_metrics import (
    LossSums,
    logprob_pairs,
    longest,
    loss_metrics,
    loss_sums,
    sampling_metrics,
)
from mmgrpo.types import OptimizerBatch, UpdateStats


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """How a rollout is learned from."""

    loss: Loss
    """The ``loss:`` section; its ``beta`` decides whether the reference is read."""
    temperature: float
    """That of the rollout: log-probs are of the distribution that was sampled from."""
    max_completion_length: int
    """Tokens; ``dr_grpo`` divides by it."""
    surrogate: Surrogate = clip
    """The loss of each token."""
    entropy: bool = True
    """Measure the policy's entropy."""
    check_finite: bool = True
    """Stop before an optimizer step whose loss or gradient is not finite."""

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss reads the entropy, with its gradient."""
        return bool(getattr(self.surrogate, "needs_entropy", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What one training pass over one micro-batch left behind."""

    micro: MicroBatch
    """With its old log-probs."""
    sums: LossSums


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
        Metrics over all optimizer steps, each weighted by what it was counted over (``loss``, ``policy_loss`` and
        ``grad_norm`` before clipping: once per optimizer step; ``entropy`` in nats per trained token that was
        computed; ``learning_rate``: of the last), counts and seconds. ``num_tokens`` are those of training passes.

    Raises:
        TrainingError: A loss or gradient is not finite. The optimizer step in question was not taken.
    """
    start = time.perf_counter()
    wanted = settings.loss.beta > 0
    micros, seconds = prepare(policy, batches, temperature=settings.temperature, with_reference=wanted)
    metrics: list[dict[str, Metric]] = []
    rate = optimizer.learning_rate
    for _ in range(settings.loss.num_iterations):
        for index, step in enumerate(batches):
            rate = optimizer.learning_rate
            if not step.learns:
                optimizer.skip()
                continue
            passes, norm = _optimizer_step(policy, micros[index], step, settings=settings, optimizer=optimizer)
            micros[index] = tuple(p.micro for p in passes)
            everyone = [sums for rank in optimizer.dist.all_gather([p.sums for p in passes]) for sums in rank]
            metrics.append(loss_metrics(everyone, _counts(step, settings)) | {"grad_norm": Mean(norm)})
    nothing = Counts(num_tokens=0, num_sequences=0, max_completion_length=1)
    merged = values(merge(metrics or [loss_metrics([], nothing) | {"grad_norm": Mean(0.0)}]))
    tokens = sum(b.num_tokens for step in batches for b in step.batches)
    local = (logprob_pairs([m for step in micros for m in step]), tokens, seconds)
    pairs, every_tokens, every_seconds = zip(*optimizer.dist.all_gather(local), strict=True)
    merged["skipped_groups"] = float(sum(step.num_skipped_groups for step in batches))  # of all ranks already
    merged |= {"learning_rate": rate} | sampling_metrics([pair for rank in pairs for pair in rank])
    merged |= longest(every_seconds)
    return UpdateStats(
        metrics=merged,
        optimizer_steps=len(metrics),
        skipped_optimizer_steps=settings.loss.num_iterations * len(batches) - len(metrics),
        num_tokens=settings.loss.num_iterations * sum(every_tokens),
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
    return optimizer.run_step(
        lambda: [_train(policy, m, counts=counts, settings=settings, optimizer=optimizer) for m in micros]
    )


def _train(
    policy: TrainablePolicy, micro: MicroBatch, *, counts: Counts, settings: UpdateSettings, optimizer: Optimizer
) -> _Pass:
    """Read one micro-batch, and add its gradient."""
    needs_entropy = settings.needs_entropy
    stats = policy.logprobs(
        micro.batch,
        temperature=settings.temperature,
        entropy=settings.entropy or needs_entropy,
        entropy_gradient=needs_entropy,
    )
    first = isinstance(micro.old_logprobs, FirstPass)
    old = stats.logprobs.detach() if isinstance(micro.old_logprobs, FirstPass) else micro.old_logprobs
    tokens = micro.tokens
    inputs = TokenInputs(
        logprobs=stats.logprobs,
        old_logprobs=old,
        rollout_logprobs=tokens.rollout_logprobs,
        ref_logprobs=micro.ref_logprobs,
        entropy=stats.entropy if needs_entropy else None,
        advantages=tokens.advantages,
        loss_mask=tokens.loss_mask,
        sequence=tokens.sequence,
        num_sequences=tokens.num_sequences,
    )
    found: PolicyLoss = policy_loss(inputs, settings.loss, counts, surrogate=settings.surrogate)
    optimizer.backward(found.loss, where=sample_names(micro.batch), check_finite=settings.check_finite)
    sums = loss_sums(found, tokens.loss_mask, stats.entropy if settings.entropy else None)
    return _Pass(micro=replace(micro, old_logprobs=old) if first else micro, sums=sums)


def _counts(step: OptimizerBatch, settings: UpdateSettings) -> Counts:
    return Counts(
        num_tokens=step.num_tokens,
        num_sequences=step.num_sequences,
        max_completion_length=settings.max_completion_length,
    )
