"""Prompts to embeddings: token embeddings, with encoder features in place of their placeholders.

What families with one position axis share. Knows no encoder: features come in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.policy.families.record import Encoded, text_positions
from mmgrpo.types import Prompt


def features_of(output: Any) -> Float[Tensor, "F D"]:
    """Flatten what ``get_…_features`` returns: a list with one tensor per medium, or one tensor of all."""
    pooled = output if isinstance(output, Tensor) else output.pooler_output
    if not isinstance(pooled, Tensor):
        pooled = torch.cat([p.reshape(-1, p.shape[-1]) for p in pooled])
    return pooled.reshape(-1, pooled.shape[-1])


def embed_prompts(
    model: Any, prompts: Sequence[Prompt], features: Mapping[int, Float[Tensor, "F D"]]
) -> tuple[Float[Tensor, "P D"], ...]:
    """Embed the tokens of all prompts, and put each kind's features where its placeholder stands, in order.

    Args:
        model: The model.
        prompts: In order.
        features: Placeholder id to the features of all prompts.

    Returns:
        Embeddings of each prompt.
    """
    embed = model.get_input_embeddings()
    ids = torch.cat([p.token_ids for p in prompts]).to(embed.weight.device)
    masks = {token: ids == token for token in features}
    words = ids
    for mask in masks.values():
        words = words.masked_fill(mask, 0)  # a placeholder may lie past the end of the embeddings
    embeddings = embed(words)
    for token, mask in masks.items():
        embeddings = embeddings.masked_scatter(mask[:, None], features[token].to(embeddings))
    return embeddings.split([len(p.token_ids) for p in prompts])


def encode_on_one_axis(
    model: Any, prompts: Sequence[Prompt], features: Mapping[int, Float[Tensor, "F D"]]
) -> list[Encoded]:
    """Embed prompts whose positions are 0, 1, 2, and so on."""
    embeddings = embed_prompts(model, prompts, features)
    return [Encoded(embeddings=e, positions=text_positions(len(e), e.device)) for e in embeddings]
