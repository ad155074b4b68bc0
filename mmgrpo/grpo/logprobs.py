"""Logits to log-probs and entropy, how far two sets of log-probs lie apart, and what that says of two policies.

Knows nothing of the head that made the logits, of chunks, masks or sequences: whoever calls decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.errors import explain

KlKind = Literal["k1", "k2", "k3"]
"""Which estimator."""


def log_distribution(logits: Float[Tensor, "K V"], *, temperature: float = 1.0) -> Float[Tensor, "K V"]:
    """Give the log-prob of every token, for whoever reads more than one figure from a row of logits.

    log p[k, v] = z[k, v] - log sum_u exp(z[k, u]),  z = logits / temperature

    Args:
        logits: One row per predicted token; -inf bans a token.
        temperature: Above 0.

    Returns:
        Log-probs in nats: float64 for float64 logits, float32 for all others.

    Raises:
        ValueError: The temperature is not above 0.

    Example:
        >>> log_distribution(torch.zeros(1, 4))
        tensor([[-1.3863, -1.3863, -1.3863, -1.3863]])
    """
    if not temperature > 0:
        raise ValueError(
            explain("A log-prob needs a temperature above 0", got=f"{temperature:g}", fix="Greedy has no log-probs.")
        )
    # Half precision is widened before it is scaled, or the division would round.
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (wide if temperature == 1 else wide / temperature).log_softmax(1)


def chosen_logprobs(logprobs: Float[Tensor, "K V"], token_ids: Int[Tensor, "K"]) -> Float[Tensor, "K"]:
    """Take one token's log-prob from each row of :func:`log_distribution`."""
    return logprobs.gather(1, token_ids.unsqueeze(1)).squeeze(1)


def entropy_of(logprobs: Float[Tensor, "K V"]) -> Float[Tensor, "K"]:
    """Give the entropy of each row of :func:`log_distribution`, in nats."""
    # 0 log 0 is 0; left alone it would be 0 times -inf, which is NaN.
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0)).sum(1)


def kl_estimate(
    logprobs: Float[Tensor, "K"], ref_logprobs: Float[Tensor, "K"], *, kind: KlKind = "k3"
) -> Float[Tensor, "K"]:
    """Estimate KL(policy || reference) at each token, in nats.

    With d = log p_ref - log p, of a token sampled from the policy:

        k1 = -d              unbiased, may be negative
        k2 = d^2 / 2         biased, never negative; its gradient is the KL's
        k3 = exp(d) - d - 1  unbiased, never negative

    Args:
        logprobs: Log-prob of each token under the policy, in nats.
        ref_logprobs: The same tokens under the reference, in nats.
        kind: The estimator; k3 is the one that GRPO uses.

    Returns:
        One estimate per token; 0 where both agree.

    Raises:
        ValueError: ``kind`` is unknown.

    Source: Schulman, "Approximating KL Divergence", 2020, joschu.net/blog/kl-approx.html; DeepSeekMath,
        arXiv:2402.03300, equation 4 (k3).

    Example:
        >>> kl_estimate(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -2.0]))
        tensor([0.0000, 0.3679])
    """
    difference = ref_logprobs - logprobs
    match kind:
        case "k1":
            return -difference
        case "k2":
            return difference.square() / 2
        case "k3":
            # expm1 keeps the small values, which exp(d) - 1 would round away near 0.
            return difference.expm1() - difference
        case _:
            raise ValueError(explain("Unknown kind of KL estimate", expected=", ".join(get_args(KlKind)), got=kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """How far the trainer's log-probs lie from those recorded when the tokens were sampled."""

    num_tokens: int
    """Loss tokens compared. With 0 the differences are 0 and the ratios 1."""
    mean_abs: float
    """Mean absolute difference per token, in nats."""
    max_abs: float
    """Largest absolute difference of a token, in nats."""
    mean_ratio: float
    """Mean of p_trainer / p_engine."""
    min_ratio: float
    """Smallest ratio."""
    max_ratio: float
    """Largest ratio."""

    def metrics(self) -> dict[str, float]:
        """Name the figures as they are logged; empty where no token was compared."""
        if not self.num_tokens:
            return {}
        return {
            "sampling/sampling_logp_difference/mean": self.mean_abs,
            "sampling/sampling_logp_difference/max": self.max_abs,
            "sampling/importance_sampling_ratio/min": self.min_ratio,
            "sampling/importance_sampling_ratio/mean": self.mean_ratio,
            "sampling/importance_sampling_ratio/max": self.max_ratio,
        }


def mismatch(
    logprobs: Float[Tensor, "K"], rollout_logprobs: Float[Tensor, "K"], loss_mask: Bool[Tensor, "K"]
) -> Mismatch:
    """Compare the trainer's log-probs with the engine's, before any correction.

    d[t] = log p_trainer[t] - log p_engine[t],  ratio[t] = exp(d[t]),  over loss tokens only

    Give it all tokens of a step at once: means of means would weigh short micro-batches too much.

    Args:
        logprobs: Under the trainer's weights, in nats.
        rollout_logprobs: As recorded when the tokens were sampled, in nats.
        loss_mask: True where the token is trained.

    Returns:
        Differences and ratios as plain numbers.

    Example:
        >>> found = mismatch(torch.tensor([-1.0, 9.0]), torch.tensor([-1.5, 0.0]), torch.tensor([True, False]))
        >>> found.num_tokens, found.mean_abs, found.max_abs
        (1, 0.5, 0.5)
    """
    difference = (logprobs - rollout_logprobs).detach()[loss_mask]
    if not len(difference):
        return Mismatch(num_tokens=0, mean_abs=0.0, max_abs=0.0, mean_ratio=1.0, min_ratio=1.0, max_ratio=1.0)
    size, ratio = difference.abs(), difference.exp()
    return Mismatch(
        num_tokens=len(difference),
        mean_abs=size.mean().item(),
        max_abs=size.max().item(),
        mean_ratio=ratio.mean().item(),
        min_ratio=ratio.min().item(),
        max_ratio=ratio.max().item(),
    )
