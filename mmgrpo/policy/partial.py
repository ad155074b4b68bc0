"""Attention over a part of the keys, and how parts are put together again.

Softmax over all keys is a mean of the softmaxes over parts of them, weighted by each part's sum of exponentials:

    out = sum_i exp(lse_i - lse) out_i,  lse = log sum_i exp(lse_i)

So the keys of a prompt can be read by all its completions where they lie. Backward needs no merging: given the merged
``out`` and ``lse``, the backward pass of a flash kernel over one part gives exactly that part's share of the gradient.

Knows tensors, not rows, prompts or models.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Attended = tuple[Float[Tensor, "... D"], Float[Tensor, "..."]]
"""Outputs, and the log-sum-exp of each query's scaled scores."""
_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
"""What ``scaled_dot_product_attention`` itself calls on the CPU; unlike it, they tell the log-sum-exp."""


@cache
def has_kernels(device: str) -> bool:
    """Tell whether a device type has attention kernels that give and take the log-sum-exp of the scores."""
    return device == "cpu" and all(hasattr(torch.ops.aten, name) for name in (_FORWARD, _BACKWARD))


def attend_part(
    q: Float[Tensor, "n H L D"],
    k: Float[Tensor, "n H S D"],
    v: Float[Tensor, "n H S D"],
    scale: float,
    *,
    causal: bool = False,
    mask: Float[Tensor, "n 1 1 S"] | None = None,
) -> tuple[Float[Tensor, "n H L D"], Float[Tensor, "n H L"]]:
    """Attend to these keys alone. Differentiable only through :func:`part_gradients`.

    Args:
        q: Queries, as many heads as the keys have.
        k: Keys.
        v: Values, as wide as the keys.
        scale: Factor of the scores.
        causal: Query i sees keys 0 to i.
        mask: Added to the scores: 0, or minus infinity for a key that nobody sees.

    Returns:
        The output and the log-sum-exp of each query's scaled scores.
    """
    if has_kernels(q.device.type):
        return getattr(torch.ops.aten, _FORWARD)(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    scores = scores if mask is None else scores + mask
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def part_gradients(
    grad: Float[Tensor, "n H L D"],
    q: Float[Tensor, "n H L D"],
    k: Float[Tensor, "n H S D"],
    v: Float[Tensor, "n H S D"],
    out: Float[Tensor, "n H L D"],
    lse: Float[Tensor, "n H L"],
    scale: float,
    *,
    causal: bool = False,
    mask: Float[Tensor, "n 1 1 S"] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give what these keys add to the gradients of q, k and v.

    Args:
        grad: Gradient of the merged output.
        q: As in :func:`attend_part`, and so the next two.
        k: Keys.
        v: Values.
        out: The merged output, over all parts.
        lse: The merged log-sum-exp; plus infinity for a query that does not count: its gradients are 0.
        scale: As in forward, and so the next two.
        causal: Query i sees keys 0 to i.
        mask: Added to the scores.

    Returns:
        Gradients of q, k and v.
    """
    return getattr(torch.ops.aten, _BACKWARD)(
        grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
    )  # fmt: skip


def merge_parts(
    one: tuple[Float[Tensor, "... D"], Float[Tensor, "..."]],
    other: tuple[Float[Tensor, "... D"], Float[Tensor, "..."]],
) -> tuple[Float[Tensor, "... D"], Float[Tensor, "..."]]:
    """Put two parts together: output and log-sum-exp over the keys of both."""
    lse = torch.logaddexp(one[1], other[1])
    shares = [(part[1] - lse).exp()[..., None].to(part[0].dtype) for part in (one, other)]
    return one[0] * shares[0] + other[0] * shares[1], lse


def key_mask(
    lengths: list[int], padded: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n 1 1 S"] | None:
    """Minus infinity for the keys past each set's length; None where there are none."""
    if all(length == padded for length in lengths):
        return None
    past = torch.arange(padded) >= torch.tensor(lengths)[:, None]
    return torch.zeros(past.shape, dtype=dtype).masked_fill(past, -torch.inf)[:, None, None].to(device)


def widened(x: Float[Tensor, "... D"], width: int) -> Float[Tensor, "... W"]:
    """Pad the last axis with zeros, which change no score."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
