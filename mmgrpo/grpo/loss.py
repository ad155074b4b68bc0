"""The policy loss of one micro-batch, as a share of its optimizer step's loss.

Works on packed tokens (K completion tokens in a flat row, S completions). Knows nothing of models, of how the
log-probs were computed, or of how many micro-batches and ranks there are: :class:`Counts` carries all of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.errors import explain
from mmgrpo.grpo.kl import kl_estimate
from mmgrpo.grpo.objective import Counts, Objective
from mmgrpo.grpo.ratio import clipped_loss, log_ratios
from mmgrpo.grpo.reduce import reduce_tokens
from mmgrpo.grpo.sums import LossSums, loss_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """What :func:`policy_loss` gives."""

    loss: Float[Tensor, ""]
    """This micro-batch's share of the optimizer step's loss; call ``backward`` on it."""
    sums: LossSums
    """Detached sums for the metrics, for :func:`mmgrpo.grpo.sums.loss_metrics`."""


def policy_loss(
    logprobs: Float[Tensor, "K"],
    old_logprobs: Float[Tensor, "K"],
    advantages: Float[Tensor, "S"],
    sequence: Int[Tensor, "K"],
    loss_mask: Bool[Tensor, "K"],
    *,
    objective: Objective,
    counts: Counts,
    ref_logprobs: Float[Tensor, "K"] | None = None,
) -> PolicyLoss:
    """Work out the clipped policy loss, with its KL term, of one micro-batch.

    loss = average over loss tokens t of  -min(w[t] A, clip(w[t], 1 - epsilon, 1 + epsilon_high) A) + beta * k3[t]

    with w[t] = p_now[t] / p_old[t] (or one w per completion), A the advantage of the token's completion, and the
    average of the loss type (:func:`mmgrpo.grpo.reduce.reduce_tokens`). The losses of all micro-batches of an
    optimizer step add up to the step's loss: do not divide again. ``old_logprobs`` and ``ref_logprobs`` are constants:
    no gradient reaches them.

    Where all advantages of a group are 0, the policy part and its gradient are exactly 0; with ``beta`` above 0 the KL
    term still draws the policy towards the reference. ``beta=0`` switches that off.

    Args:
        logprobs: Log-prob of each completion token under the policy now, in nats.
        old_logprobs: The same at the start of the step; pass ``logprobs.detach()`` where the policy has not moved.
        advantages: One per completion.
        sequence: Which completion (0 to S - 1) each token belongs to.
        loss_mask: True where the token is trained. Elsewhere log-probs may be anything: they give exactly 0 loss and
            0 gradient.
        objective: The settings.
        counts: Denominators of the whole optimizer step. ``num_tokens`` of 0 gives a loss of exactly 0.
        ref_logprobs: Log-probs under the reference; needed when ``objective.beta`` is above 0.

    Returns:
        The differentiable loss, and detached sums for the metrics.

    Raises:
        ValueError: Shapes differ, or ``beta`` is above 0 without ``ref_logprobs``.

    Source: DeepSeekMath, arXiv:2402.03300, equation 3; see :mod:`mmgrpo.grpo.ratio` and :mod:`mmgrpo.grpo.reduce` for
        the variants.

    Example:
        >>> import torch
        >>> logprobs = torch.tensor([-1.0, -2.0, -3.0])
        >>> found = policy_loss(
        ...     logprobs, logprobs, torch.tensor([1.0, -1.0]), torch.tensor([0, 0, 1]), logprobs < 0,
        ...     objective=Objective(loss_type="dapo"),
        ...     counts=Counts(num_tokens=3, num_sequences=2, max_completion_length=4),
        ... )
        >>> found.loss
        tensor(-0.3333)
    """
    _check_shapes(logprobs, old_logprobs=old_logprobs, sequence=sequence, loss_mask=loss_mask)
    # Masked before any arithmetic: what stands outside the mask can then become neither inf nor NaN.
    now = logprobs.masked_fill(~loss_mask, 0)
    old = old_logprobs.detach().masked_fill(~loss_mask, 0)
    fixed = advantages.detach().to(logprobs.dtype)
    ratios = log_ratios(now - old, fixed, sequence, loss_mask, level=objective.importance_sampling_level)

    def average(values: Float[Tensor, "K"]) -> Float[Tensor, ""]:
        kind = objective.loss_type
        return reduce_tokens(
            values, sequence, loss_mask, loss_type=kind, counts=counts, num_completions=len(advantages)
        )

    per_ratio = clipped_loss(ratios, objective)
    policy = average(per_ratio if objective.importance_sampling_level == "token" else per_ratio[sequence])
    loss, kl = policy, None
    if objective.beta > 0:
        kl = kl_estimate(now, _reference(ref_logprobs, logprobs).masked_fill(~loss_mask, 0))
        loss = policy + objective.beta * average(kl)
    return PolicyLoss(loss=loss, sums=loss_sums(loss, policy, ratios, kl, objective=objective))


def _reference(ref_logprobs: Tensor | None, logprobs: Tensor) -> Tensor:
    if ref_logprobs is None:
        raise ValueError(
            explain("beta is above 0 but there are no log-probs of a reference", expected="ref_logprobs", got="None")
        )
    _check_shapes(logprobs, ref_logprobs=ref_logprobs)
    return ref_logprobs.detach()


def _check_shapes(logprobs: Tensor, **others: Tensor) -> None:
    """Refuse tensors that torch would broadcast silently."""
    for name, tensor in others.items():
        if tensor.shape != logprobs.shape:
            expected, got = list(logprobs.shape), list(tensor.shape)
            raise ValueError(explain(f"{name} does not fit logprobs", expected=f"shape {expected}", got=f"{got}"))
