"""Metrics of an update: of the loss, of engine against trainer, over micro-batches, ranks and optimizer steps.

Every metric carries its reduction and what it was counted over (:mod:`mmgrpo.metrics`): the mean of means is
not the mean where the parts differ in size. Knows names and numbers; does not know models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.grpo.inputs import Counts
from mmgrpo.grpo.logprobs import mismatch
from mmgrpo.grpo.loss import PolicyLoss
from mmgrpo.metrics import Max, Mean, Metric, Min
from mmgrpo.training.baseline_logprobs import FirstPass, MicroBatch

LogprobPair = tuple[Float[Tensor, "K"], Float[Tensor, "K"], Bool[Tensor, "K"]]
"""Log-probs of the trainer and of the engine, in nats, and which of them are of trained tokens; on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """What one micro-batch adds to the metrics of its optimizer step: plain numbers, so that ranks can exchange them.

    Everything adds up over micro-batches and ranks, save ``ratio_min`` and ``ratio_max``, of which the extreme counts.
    """

    loss: float
    """Contribution to the step's loss."""
    policy_loss: float
    """The same without terms."""
    num_tokens: int
    """Loss tokens computed."""
    token_sums: Mapping[str, float]
    """Sums over loss tokens, by metric: terms of the loss (``kl``), ``entropy``, and what the surrogate measured."""
    ratio: float
    """Sum of the ratios, before clipping."""
    num_ratios: float
    """How many ratios: loss tokens, or completions with a loss token."""
    ratio_min: float
    """Smallest ratio; inf where there is none."""
    ratio_max: float
    """Largest ratio; -inf where there is none."""
    clipped_low: float
    """How many ratios were clipped from below."""
    clipped_high: float
    """How many ratios were clipped from above."""
    per_sequence: bool
    """True: a ratio per completion. False: a ratio per token."""


def loss_sums(found: PolicyLoss, loss_mask: Bool[Tensor, "K"], entropy: Float[Tensor, "K"] | None = None) -> LossSums:
    """Add up what a micro-batch gives to the metrics.

    Args:
        found: Its loss.
        loss_mask: True where a token is trained.
        entropy: Of the policy at each token, in nats; None where it was not measured.

    Returns:
        The sums.
    """
    ratios = found.ratios
    ratio = ratios.log_ratio.exp()[ratios.trained]
    token_values = {**found.terms, **found.metrics} | ({} if entropy is None else {"entropy": entropy})
    return LossSums(
        loss=float(found.loss.detach()),
        policy_loss=float(found.policy_loss),
        num_tokens=int(loss_mask.sum()),
        token_sums={name: float(v.detach().masked_fill(~loss_mask, 0).sum()) for name, v in token_values.items()},
        ratio=float(ratio.sum()),
        num_ratios=len(ratio),
        ratio_min=float(ratio.min()) if len(ratio) else float("inf"),
        ratio_max=float(ratio.max()) if len(ratio) else float("-inf"),
        clipped_low=int(ratios.clipped_low.sum()),
        clipped_high=int(ratios.clipped_high.sum()),
        per_sequence=ratios.per_sequence,
    )


def loss_metrics(sums: Sequence[LossSums], counts: Counts) -> dict[str, Metric]:
    """Turn the sums of an optimizer step into its metrics.

    Clip fractions are of all loss tokens of the step (of all completions, where each has one ratio), also those that
    were not computed because their advantages are 0: such a token is never clipped. So is ``kl``, whose groups are all
    computed. The mean of the ratio, the entropy and what a surrogate measured are of the tokens computed.

    Args:
        sums: One per micro-batch of the step, of all ranks; may be empty.
        counts: The step's denominators, the same that the loss was given.

    Returns:
        ``loss`` (as the loss type averages), ``policy_loss`` (without terms), ``kl`` (nats per token; only where beta
        is above 0), ``entropy`` (nats per token), ``ratio/mean``, ``ratio/min``, ``ratio/max`` (only where there is a
        ratio), ``clip_ratio/low_mean``, ``clip_ratio/high_mean``, ``clip_ratio/region_mean`` (either). A step without
        loss tokens gives zeros.

    Example:
        >>> loss_metrics([], Counts(num_tokens=0, num_sequences=0, max_completion_length=8))["loss"]
        Mean(value=0.0, count=1)
    """
    total = counts.num_sequences if sums and sums[0].per_sequence else counts.num_tokens
    low, high = sum(s.clipped_low for s in sums), sum(s.clipped_high for s in sums)
    # each optimizer step has one loss: the mean over steps is that of the steps
    metrics: dict[str, Metric] = {
        "loss": Mean(sum(s.loss for s in sums) + 0.0),
        "policy_loss": Mean(sum(s.policy_loss for s in sums) + 0.0),
    }
    computed = sum(s.num_tokens for s in sums)
    for name in dict.fromkeys(name for s in sums for name in s.token_sums):
        value = sum(s.token_sums[name] for s in sums if name in s.token_sums)
        metrics[name] = _mean(value, counts.num_tokens if name == "kl" else computed)
    num_ratios = sum(s.num_ratios for s in sums)
    if num_ratios:
        metrics["ratio/mean"] = _mean(sum(s.ratio for s in sums), num_ratios)
        metrics["ratio/min"] = Min(min(s.ratio_min for s in sums))
        metrics["ratio/max"] = Max(max(s.ratio_max for s in sums))
    # A ratio cannot be clipped at both ends: the region's fraction is their sum.
    return metrics | {
        "clip_ratio/low_mean": _mean(low, total),
        "clip_ratio/high_mean": _mean(high, total),
        "clip_ratio/region_mean": _mean(low + high, total),
    }


def logprob_pairs(micros: Sequence[MicroBatch]) -> list[LogprobPair]:
    """Give the log-probs of the micro-batches that were computed.

    Args:
        micros: Micro-batches; those without old log-probs are left out.
    """
    # to the CPU first: not every device has the float64 in which thousands of small differences are averaged
    return [
        (m.old_logprobs.cpu(), m.tokens.rollout_logprobs.cpu(), m.tokens.loss_mask.cpu())
        for m in micros
        if not isinstance(m.old_logprobs, FirstPass)
    ]


def sampling_metrics(pairs: Sequence[LogprobPair]) -> dict[str, float]:
    """Compare the engine's log-probs with the trainer's, on trained tokens, under the weights at the step's start.

    difference[t] = |old_logprobs[t] - rollout_logprobs[t]|,  ratio[t] = exp(old_logprobs[t] - rollout_logprobs[t])

    Args:
        pairs: From :func:`logprob_pairs`, of all ranks.

    Returns:
        ``sampling/sampling_logp_difference/{mean,max}`` in nats and ``sampling/importance_sampling_ratio/
        {min,mean,max}``; nothing where no token was computed.
    """
    if not pairs:
        return {}
    old, rollout, mask = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return mismatch(old.double(), rollout.double(), mask).metrics()


def longest(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Give the longest time of each name: all ranks wait for the slowest.

    Args:
        seconds: One mapping per rank, which need not have the same names.

    Example:
        >>> longest([{}, {"a": 1.0}, {"a": 2.0}])
        {'a': 2.0}
    """
    names = dict.fromkeys(name for part in seconds for name in part)
    return {name: max(part[name] for part in seconds if name in part) for name in names}


def _mean(total: float, count: float) -> Mean:
    """A mean of 0 over nothing is 0, and counts for nothing where it is merged."""
    return Mean(total / count, count) if count else Mean(0.0, 0)
