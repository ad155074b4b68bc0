"""What families share: features in place of placeholders, positions on one axis, pixel limits of image processors.

Knows no encoder: features come in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.policy.families.spec import EncodedPrompt
from mmgrpo.types import Prompt

TOWER_AND_PROJECTOR: Mapping[str, tuple[str, ...]] = {
    "vision": ("model.vision_tower.",),
    "projector": ("model.multi_modal_projector.",),
    "language": ("model.language_model.", "lm_head."),
}
"""Prefixes of the parts in the many models of transformers that are built as LLaVA's is."""


def image_token(config: Any) -> Mapping[str, tuple[int, ...]]:
    """The placeholder of a family that reads images alone, one token for all of them."""
    return {"image": (config.image_token_id,)}


def features_of(output: Any) -> Float[Tensor, "F D"]:
    """Flatten what ``get_…_features`` returns: a list with one tensor per media item, or one tensor of all."""
    pooled = output if isinstance(output, Tensor) else output.pooler_output
    if not isinstance(pooled, Tensor):
        pooled = torch.cat([p.reshape(-1, p.shape[-1]) for p in pooled])
    return pooled.reshape(-1, pooled.shape[-1])


def text_positions(length: int, device: torch.device) -> Int[Tensor, "1 P"]:
    """Positions 0, 1, 2, … on one axis."""
    return torch.arange(length, device=device)[None]


def embed_prompts(
    model: Any, prompts: Sequence[Prompt], features: Mapping[int, Float[Tensor, "_ D"]]
) -> tuple[Float[Tensor, "_ D"], ...]:
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
    model: Any, prompts: Sequence[Prompt], features: Mapping[int, Float[Tensor, "_ D"]]
) -> list[EncodedPrompt]:
    """Embed prompts whose positions are 0, 1, 2, and so on."""
    embeddings = embed_prompts(model, prompts, features)
    return [EncodedPrompt(embeddings=e, positions=text_positions(len(e), e.device)) for e in embeddings]


def set_pixel_limits(processor: Any, min_pixels: int | None, max_pixels: int | None, *, counted: int = 1) -> None:
    """Write the image limits into an image processor that takes areas, where saving the processor keeps them.

    Args:
        processor: A processor; one without images is left alone.
        min_pixels: Smallest image after resizing, in pixels; None keeps the checkpoint's.
        max_pixels: Largest; None keeps the checkpoint's.
        counted: How often the processor counts each pixel: twice where it takes an image for two frames.
    """
    image = getattr(processor, "image_processor", None)
    if image is None or (min_pixels is None and max_pixels is None):
        return
    size = dict(image.size) if image.size is not None else {}
    if min_pixels is not None:
        size["shortest_edge"] = min_pixels * counted
    if max_pixels is not None:
        size["longest_edge"] = max_pixels * counted
        size["shortest_edge"] = min(size.get("shortest_edge", max_pixels * counted), max_pixels * counted)
    image.size = size
    for name, value in (("min_pixels", size.get("shortest_edge")), ("max_pixels", size.get("longest_edge"))):
        if getattr(image, name, None) is not None:
            setattr(image, name, value)
