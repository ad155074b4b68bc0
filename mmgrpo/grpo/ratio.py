"""Importance ratios: how much likelier the policy finds a token, or a completion, than when the step began.

Ratios stay logarithms until they are masked and clipped; only then is ``exp`` taken. Knows nothing of KL, of averages
over tokens, or of where the log-probs come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.grpo.objective import Level, Objective
from mmgrpo.grpo.reduce import sequence_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """The log-ratios of a micro-batch, one per token (U = K) or one per completion (U = S)."""

    log_ratio: Float[Tensor, "U"]
    """log p_now - log p_old, differentiable; 0 where nothing is trained."""
    advantages: Float[Tensor, "U"]
    """What each ratio is multiplied by."""
    trained: Bool[Tensor, "U"]
    """True for loss tokens, and for completions that have one."""


def log_ratios(
    log_ratio: Float[Tensor, "K"],
    advantages: Float[Tensor, "S"],
    sequence: Int[Tensor, "K"],
    loss_mask: Bool[Tensor, "K"],
    *,
    level: Level,
) -> Ratios:
    """Take the ratios at the level asked for.

    token:    log w[t] = log p_now[t] - log p_old[t]
    sequence: log w[s] = mean over the loss tokens t of completion s of (log p_now[t] - log p_old[t])

    Args:
        log_ratio: Differences of each token's log-probs, in nats, already 0 outside the mask.
        advantages: One per completion.
        sequence: Which completion each token belongs to.
        loss_mask: True where the token is trained.
        level: "token", or "sequence" for one ratio per completion.

    Returns:
        Ratios with their advantages. The gradient of a sequence's ratio reaches each of its loss tokens alike.

    Source: GSPO, arXiv:2507.18071, section 4 (sequence).

    Example:
        >>> found = log_ratios(
        ...     torch.tensor([0.1, 0.3]), torch.tensor([1.0]), torch.tensor([0, 0]), torch.tensor([True, True]),
        ...     level="sequence",
        ... )
        >>> found.log_ratio
        tensor([0.2000])
    """
    if level == "token":
        return Ratios(log_ratio=log_ratio, advantages=advantages[sequence], trained=loss_mask)
    lengths = sequence_sums(loss_mask.to(log_ratio.dtype), sequence, len(advantages))
    means = sequence_sums(log_ratio, sequence, len(advantages)) / lengths.clamp(min=1)
    return Ratios(log_ratio=means, advantages=advantages, trained=lengths > 0)


def clipped_loss(ratios: Ratios, objective: Objective) -> Float[Tensor, "U"]:
    """Work out the clipped policy loss of each ratio.

    loss = -min(min(w, delta) A, clip(w, 1 - epsilon, 1 + epsilon_high) A)

    which is -w' A, with w' = min(w, 1 + epsilon_high) where A >= 0 and w' = min(max(w, 1 - epsilon), delta) where
    A < 0. The bounds are put on log w, so that a clipped ratio cannot overflow: its gradient is 0, never NaN. Where A
    is 0 the loss and its gradient are exactly 0.

    Args:
        ratios: Log-ratios and their advantages.
        objective: Gives epsilon, epsilon_high and delta.

    Returns:
        One loss per ratio. Without a bound (A < 0, no delta) a ratio that overflows gives an honest infinity.

    Source: DeepSeekMath, arXiv:2402.03300, equation 3; DAPO, arXiv:2503.14476, section 3.1 (epsilon_high);
        INTELLECT-2, arXiv:2505.07291, "Two-sided GRPO clipping" (delta).

    Example:
        >>> twice = torch.tensor([2.0, 2.0]).log()
        >>> both = Ratios(log_ratio=twice, advantages=torch.tensor([1.0, -1.0]), trained=torch.tensor([True, True]))
        >>> clipped_loss(both, Objective(epsilon=0.25))
        tensor([-1.2500,  2.0000])
    """
    low, high, delta = objective.log_bounds()
    negative = ratios.advantages < 0
    floor = torch.full_like(ratios.log_ratio, -torch.inf).masked_fill(negative, low)
    ceiling = torch.full_like(ratios.log_ratio, high).masked_fill(negative, delta)
    return -ratios.log_ratio.clamp(floor, ceiling).exp() * ratios.advantages


def is_clipped(ratios: Ratios, objective: Objective) -> tuple[Bool[Tensor, "U"], Bool[Tensor, "U"]]:
    """Tell which ratios are clipped below (w < 1 - epsilon, A < 0) and above (w > 1 + epsilon_high, A > 0).

    Args:
        ratios: Log-ratios and their advantages.
        objective: Gives epsilon and epsilon_high.

    Returns:
        Two masks, clipped low and clipped high; False where nothing is trained (there log w is 0). The bound ``delta``
        is not counted.

    Example:
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> both = Ratios(log_ratio=half, advantages=torch.tensor([1.0, -1.0]), trained=torch.tensor([True, True]))
        >>> is_clipped(both, Objective(epsilon=0.25))
        (tensor([False,  True]), tensor([False, False]))
    """
    low, high, _ = objective.log_bounds()
    is_low = (ratios.log_ratio < low) & (ratios.advantages < 0)
    is_high = (ratios.log_ratio > high) & (ratios.advantages > 0)
    return is_low, is_high
