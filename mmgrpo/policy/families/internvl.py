"""InternVL3 and InternVL3.5: images cut into tiles, the frames of a video as images of one tile, one position axis.

A tile passes a vision transformer, and four of its patches become one feature (pixel shuffle). Images and frames
share a placeholder and stand in one tensor, in the order of the prompt.

Source: InternVL3, arXiv:2504.10479, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.policy.families.common import TOWER_AND_PROJECTOR, encode_on_one_axis, features_of
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec
from mmgrpo.policy.families.tiny.tiled_images import tiny_internvl
from mmgrpo.types import Prompt


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts; the tiles of all images and frames pass the encoder in one call."""
    features = {}
    if "pixel_values" in inputs:
        output = model.model.get_image_features(inputs["pixel_values"], return_dict=True)
        features[model.config.image_token_id] = features_of(output)
    return encode_on_one_axis(model, prompts, features)


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    pixels = prompt.model_inputs.get("pixel_values")
    (height, width), (tall, wide) = config.vision_config.image_size, config.vision_config.patch_size
    per_tile = round((height // tall) * (width // wide) * config.downsample_ratio**2)
    return dict.fromkeys(("image", "video"), 0 if pixels is None else len(pixels) * per_tile)


def _limit_tiles(processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
    """Write the limits of an image as numbers of tiles, beside which stands one of the whole image."""
    image = processor.image_processor
    tile = image.size["height"] * image.size["width"]
    if max_pixels is not None:
        image.max_patches = max(1, max_pixels // tile)
    if min_pixels is not None:
        image.min_patches = max(1, min_pixels // tile)
    image.min_patches = min(image.min_patches, image.max_patches)


FAMILIES = (
    FamilySpec(
        name="internvl",
        kinds=frozenset({"image", "video"}),
        parts=TOWER_AND_PROJECTOR,
        keys={"pixel_values": "concat"},
        decoder="model.language_model",
        axes=1,
        layout="packed",
        encode_media=_encode_media,
        media_tokens=lambda config: dict.fromkeys(("image", "video"), (config.image_token_id,)),
        count_features=_count_features,
        set_pixel_limits=_limit_tiles,
        tiny=tiny_internvl,
    ),
)
"""The records of this file."""
