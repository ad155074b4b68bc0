"""Gemma 3: pictures of one size whose tokens see each other in both directions, windows in most layers.

Tokens of a picture look ahead within it, and most layers have a sliding window: attention is not shared over a group
(``unpacked``), while pictures still pass the encoder once per prompt.

Source: Gemma 3, arXiv:2503.19786, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mmgrpo.policy.families.common import TOWER_AND_PROJECTOR, encode_on_one_axis, features_of, image_token
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join, PlacedPrompt
from mmgrpo.policy.families.tiny.whole_images import tiny_gemma3
from mmgrpo.types import Prompt

_KEYS: dict[str, Join] = {
    "pixel_values": "concat",
    "token_type_ids": "tokens",
}


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts; note for each which tokens are a picture's, since these see each other."""
    token = model.config.image_token_id
    features = {}
    if "pixel_values" in inputs:
        features[token] = features_of(model.model.get_image_features(inputs["pixel_values"], return_dict=True))
    encoded = encode_on_one_axis(model, prompts, features)
    return [
        replace(e, extras={"visual": (p.token_ids == token).to(e.embeddings.device)})
        for e, p in zip(encoded, prompts, strict=True)
    ]


def _language_inputs(placed: Sequence[PlacedPrompt], shape: tuple[int, int]) -> dict[str, Any]:
    """1 at every picture token, from which the model builds its masks; nothing while a completion is written."""
    if not placed:
        return {}
    types = torch.zeros(shape, dtype=torch.long, device=placed[0].encoded.embeddings.device)
    for p in placed:
        visual = p.encoded.extras["visual"]
        types[p.row, p.start : p.start + len(visual)] = visual.long()
    return {"token_type_ids": types}


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    pixels = prompt.model_inputs.get("pixel_values")
    return {"image": 0 if pixels is None else len(pixels) * config.mm_tokens_per_image}


FAMILIES = (
    FamilySpec(
        name="gemma3",
        kinds=frozenset({"image"}),
        parts=TOWER_AND_PROJECTOR,
        keys=_KEYS,
        decoder="model",  # not the text stack: the model around it builds the masks
        axes=1,
        layout="unpacked",
        encode_media=_encode_media,
        media_tokens=image_token,
        count_features=_count_features,
        language_inputs=_language_inputs,
        tiny=tiny_gemma3,
    ),
)
"""The records of this file."""
