"""How far the policy has moved from the reference, estimated from the log-probs of sampled tokens alone.

Knows nothing of masks, sequences or how the estimate is weighted.
"""

from __future__ import annotations

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from mmgrpo.errors import explain

KlKind = Literal["k1", "k2", "k3"]
"""Which estimator."""


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
        >>> import torch
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
