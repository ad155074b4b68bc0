"""Metrics of the loss: sums that can be added over micro-batches and ranks, and the names they are logged under.

Knows nothing of where metrics go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.grpo.objective import Counts, Objective
from mmgrpo.grpo.ratio import Ratios, is_clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """What one micro-batch adds to the metrics of its optimizer step; all tensors are detached scalars.

    Everything adds up over micro-batches and ranks, save ``ratio_min`` and ``ratio_max``, of which the extreme counts.
    """

    loss: Float[Tensor, ""]
    """Share of the step's loss."""
    policy_loss: Float[Tensor, ""]
    """The same without the KL term."""
    kl: Float[Tensor, ""] | None
    """Sum of the KL estimates over loss tokens, in nats; None where beta is 0."""
    ratio: Float[Tensor, ""]
    """Sum of the ratios, before clipping."""
    num_ratios: Float[Tensor, ""]
    """How many ratios: loss tokens, or completions with a loss token."""
    ratio_min: Float[Tensor, ""]
    """Smallest ratio; inf where there is none."""
    ratio_max: Float[Tensor, ""]
    """Largest ratio; -inf where there is none."""
    clipped_low: Float[Tensor, ""]
    """How many ratios were clipped at 1 - epsilon."""
    clipped_high: Float[Tensor, ""]
    """How many ratios were clipped at 1 + epsilon_high."""
    per_sequence: bool
    """True: a ratio per completion. False: a ratio per token."""

    def cpu(self) -> LossSums:
        """Copy to the CPU, whence sums can go to other processes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.cpu() for name, value in values.items() if isinstance(value, Tensor)})


def loss_sums(
    loss: Float[Tensor, ""],
    policy: Float[Tensor, ""],
    ratios: Ratios,
    kl: Float[Tensor, "K"] | None,
    *,
    objective: Objective,
) -> LossSums:
    """Gather what a micro-batch adds to the metrics, without waiting for the device.

    Args:
        loss: Share of the step's loss.
        policy: Share of the step's policy loss.
        ratios: Log-ratios, before clipping.
        kl: KL estimate of each token, 0 outside the mask; None where beta is 0.
        objective: Gives the clip range and the level of the ratios.

    Returns:
        Detached sums.
    """
    ratio = ratios.log_ratio.detach().exp()
    low, high = is_clipped(ratios, objective)
    none = ratio.new_full((1,), torch.inf)
    return LossSums(
        loss=loss.detach(),
        policy_loss=policy.detach(),
        kl=None if kl is None else kl.detach().sum(),
        ratio=ratio.masked_fill(~ratios.trained, 0).sum(),
        num_ratios=ratios.trained.to(ratio.dtype).sum(),
        ratio_min=torch.cat([ratio.masked_fill(~ratios.trained, torch.inf), none]).min(),
        ratio_max=torch.cat([ratio.masked_fill(~ratios.trained, -torch.inf), -none]).max(),
        clipped_low=low.to(ratio.dtype).sum(),
        clipped_high=high.to(ratio.dtype).sum(),
        per_sequence=objective.importance_sampling_level == "sequence",
    )


def loss_metrics(sums: Sequence[LossSums], counts: Counts) -> dict[str, float]:
    """Turn the sums of an optimizer step into metrics by their logged names.

    Clip shares are of all loss tokens of the step (of all completions, where each has one ratio), also those that were
    not computed because their advantages are 0: such a token is never clipped. The ratio's mean is of those computed.

    Args:
        sums: One per micro-batch of the step; may be empty.
        counts: The step's denominators, the same that the loss was given.

    Returns:
        ``loss`` (as the loss type averages), ``policy_loss`` (without KL), ``kl`` (nats per token; only where beta is
        above 0), ``ratio/mean``, ``ratio/min``, ``ratio/max`` (only where there is a ratio), ``clip_ratio/low_mean``,
        ``clip_ratio/high_mean``, ``clip_ratio/region_mean`` (either). A step without loss tokens gives zeros.

    Example:
        >>> loss_metrics([], Counts(num_tokens=0, num_sequences=0, max_completion_length=8))["loss"]
        0.0
    """
    per_sequence = bool(sums) and sums[0].per_sequence
    total = max(counts.num_sequences if per_sequence else counts.num_tokens, 1)
    low, high = _total([s.clipped_low for s in sums]) / total, _total([s.clipped_high for s in sums]) / total
    metrics = {"loss": _total([s.loss for s in sums]), "policy_loss": _total([s.policy_loss for s in sums])}
    kls = [s.kl for s in sums if s.kl is not None]
    if kls:
        metrics["kl"] = _total(kls) / max(counts.num_tokens, 1)
    num_ratios = _total([s.num_ratios for s in sums])
    if num_ratios:
        metrics["ratio/mean"] = _total([s.ratio for s in sums]) / num_ratios
        metrics["ratio/min"] = min(s.ratio_min.item() for s in sums)
        metrics["ratio/max"] = max(s.ratio_max.item() for s in sums)
    # A ratio cannot be clipped at both ends: the region's share is their sum.
    return metrics | {
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": low + high,
    }


def _total(parts: Sequence[Tensor]) -> float:
    """Add in Python's float64: counts of float32 tensors stay exact beyond 2^24."""
    return sum((part.item() for part in parts), 0.0)
