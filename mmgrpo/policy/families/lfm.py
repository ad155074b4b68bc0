"""LFM2-VL: images at their own shape, large ones in tiles, and a decoder that is mostly short convolutions.

A convolution reads the tokens before a completion from its row: attention is not shared over a group (``unpacked``),
while images still pass the encoder once per prompt.

Source: LFM2, arXiv:2511.23404.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmgrpo.policy.families.common import TOWER_AND_PROJECTOR, encode_on_one_axis, features_of, image_token
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join
from mmgrpo.policy.families.tiny.tiled_images import tiny_lfm
from mmgrpo.types import Prompt

_KEYS: dict[str, Join] = dict.fromkeys(("pixel_values", "spatial_shapes", "pixel_attention_mask"), "concat")


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts; the tiles of all images pass the encoder in one call."""
    features = {}
    if "pixel_values" in inputs:
        output = model.model.get_image_features(**{name: inputs[name] for name in _KEYS}, return_dict=True)
        features[model.config.image_token_id] = features_of(output)
    return encode_on_one_axis(model, prompts, features)


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    shapes = prompt.model_inputs.get("spatial_shapes")
    count = 0 if shapes is None else int((torch.as_tensor(shapes) // config.downsample_factor).prod(-1).sum())
    return {"image": count}


FAMILIES = (
    FamilySpec(
        name="lfm2_vl",
        kinds=frozenset({"image"}),
        parts=TOWER_AND_PROJECTOR,
        keys=_KEYS,
        decoder="model.language_model",
        axes=1,
        layout="unpacked",
        encode_media=_encode_media,
        media_tokens=image_token,
        count_features=_count_features,
        tiny=tiny_lfm,
    ),
)
"""The records of this file."""
