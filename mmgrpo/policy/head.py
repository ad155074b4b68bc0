"""Log-probs and entropy of chosen tokens without ever holding ``[K, V]`` logits.

Hidden rows pass through the LM head in chunks; each chunk is recomputed in backward, so what is held between forward
and backward grows with K and D, not with V. Knows a head as a callable; not which model it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmgrpo.grpo.logprobs import chosen_logprobs, entropy_of, log_distribution


def _chunk_logprobs(
    hidden: Float[Tensor, "k D"],
    token_ids: Int[Tensor, "k"],
    head: Callable[[Tensor], Tensor],
    temperature: float,
    entropies: list[Tensor] | None,
) -> Float[Tensor, "k"]:
    """Log-probs of a chunk; its entropy goes to the list if that is empty: the pass in backward adds none."""
    every = log_distribution(head(hidden), temperature=temperature)
    if entropies is not None and not entropies:
        entropies.append(entropy_of(every.detach()))
    return chosen_logprobs(every, token_ids)


def head_stats(
    hidden: Float[Tensor, "K D"],
    token_ids: Int[Tensor, "K"],
    head: Callable[[Tensor], Tensor],
    *,
    temperature: float,
    chunk: int,
    entropy: bool = False,
) -> tuple[Float[Tensor, "K"], Float[Tensor, "K"] | None]:
    """Log-probs of ``token_ids`` under ``softmax(head(hidden) / temperature)``.

    logprobs[t] = log p[t, token_ids[t]],  p = softmax(logits / T)
    entropy[t]  = -sum over v of p[t, v] log p[t, v]

    Args:
        hidden: Hidden states that predict a token.
        token_ids: The tokens they predict.
        head: Hidden states to logits, with all that the family does after its head.
        temperature: Of the rollout, above 0.
        chunk: Rows per pass; held memory grows with it.
        entropy: Also measure the entropy.

    Returns:
        Log-probs and entropy in nats, float32 (float64 stays). No gradient flows through the entropy: it is computed
        once, and backward does not pay for it.
    """
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, len(token_ids), chunk):
        part = slice(start, start + chunk)
        measured: list[Tensor] | None = [] if entropy else None
        arguments = (hidden[part], token_ids[part], head, temperature, measured)
        if torch.is_grad_enabled():
            logprobs.append(checkpoint(_chunk_logprobs, *arguments, use_reentrant=False))
        else:
            logprobs.append(_chunk_logprobs(*arguments))
        entropies += measured or []
    if not logprobs:
        empty = hidden.new_zeros(0).float()
        return empty, (empty if entropy else None)
    return torch.cat(logprobs), (torch.cat(entropies) if entropy else None)
