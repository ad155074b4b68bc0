"""Idefics3 and SmolVLM: images cut into tiles of one size, a Llama decoder, one position axis.

Source: Idefics3, arXiv:2408.12637; SmolVLM, arXiv:2504.05299.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mmgrpo.policy.families.common import encode_on_one_axis, features_of, image_token
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec
from mmgrpo.policy.families.tiny.tiled_images import tiny_idefics
from mmgrpo.types import Prompt


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts; every tile of all images passes the encoder in one call."""
    features = {}
    if "pixel_values" in inputs:
        output = model.model.get_image_features(
            inputs["pixel_values"], inputs.get("pixel_attention_mask"), return_dict=True
        )
        features[model.config.image_token_id] = features_of(output)
    return encode_on_one_axis(model, prompts, features)


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    pixels = prompt.model_inputs.get("pixel_values")
    per_tile = (config.vision_config.image_size // config.vision_config.patch_size) ** 2 // config.scale_factor**2
    return {"image": 0 if pixels is None else pixels.shape[1] * per_tile}


def _family(name: str, brand: str) -> FamilySpec:
    return FamilySpec(
        name=name,
        kinds=frozenset({"image"}),
        parts={
            "vision": ("model.vision_model.",),
            "projector": ("model.connector.",),
            "language": ("model.text_model.", "lm_head."),
        },
        keys={"pixel_values": "tiles", "pixel_attention_mask": "tiles"},
        decoder="model.text_model",
        axes=1,
        layout="packed",
        encode_media=_encode_media,
        media_tokens=image_token,
        count_features=_count_features,
        tiny=partial(tiny_idefics, brand),
    )


FAMILIES = (_family("idefics3", "Idefics3"), _family("smolvlm", "SmolVLM"))
"""The records of this file."""
