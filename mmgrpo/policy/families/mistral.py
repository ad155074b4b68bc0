"""Mistral Small 3.1 and Ministral 3: pictures of any size in rows of patches, a token at each row's end, one axis.

Source: Pixtral, arXiv:2410.07073, section 2 (the encoder).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import torch

from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.common import TOWER_AND_PROJECTOR, encode_on_one_axis, features_of, image_token
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join
from mmgrpo.policy.families.tiny.whole_images import tiny_mistral3
from mmgrpo.types import Prompt

_KEYS: dict[str, Join] = {
    "pixel_values": "list",  # each prompt's pictures are padded to its own largest
    "image_sizes": "concat",
}


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts; pictures pass the encoder one by one.

    Together they would be one sequence under a mask of all patches by all patches, most of which says that pictures do
    not see each other.
    """
    features = {}
    if "pixel_values" in inputs:
        pictures = [picture for pixels in inputs["pixel_values"] for picture in pixels]
        found = [
            model.model.get_image_features(picture[None, :, : size[0], : size[1]], size[None], return_dict=True)
            for picture, size in zip(pictures, inputs["image_sizes"], strict=True)
        ]
        features[model.config.image_token_id] = torch.cat([features_of(output) for output in found])
    return encode_on_one_axis(model, prompts, features)


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    sizes = prompt.model_inputs.get("image_sizes")
    side = config.vision_config.patch_size * config.spatial_merge_size
    return {"image": 0 if sizes is None else int((torch.as_tensor(sizes) // side).prod(-1).sum())}


def _limit_edge(processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
    """Write the largest picture as the side of a square in whole patches, which is all that the processor knows."""
    if min_pixels is not None:
        raise ConfigError(
            explain("mistral3 does not enlarge pictures", where="model.min_pixels", fix="Remove the key.")
        )
    if max_pixels is not None:
        side = processor.patch_size * processor.spatial_merge_size
        processor.image_processor.size = {"longest_edge": max(side, isqrt(max_pixels) // side * side)}


FAMILIES = (
    FamilySpec(
        name="mistral3",
        kinds=frozenset({"image"}),
        parts=TOWER_AND_PROJECTOR,
        keys=_KEYS,
        decoder="model.language_model",
        axes=1,
        layout="packed",
        encode_media=_encode_media,
        media_tokens=image_token,
        count_features=_count_features,
        set_pixel_limits=_limit_edge,
        tiny=tiny_mistral3,
    ),
)
"""The records of this file."""
