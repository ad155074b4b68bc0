"""InternVL3 and InternVL3.5: pictures cut into tiles, the frames of a clip as pictures of one tile, one position axis.

A tile passes a vision transformer, and four of its patches become one feature (pixel shuffle). Pictures and frames
share a placeholder and stand in one tensor, in the order of the prompt.

Source: InternVL3, arXiv:2504.10479, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mmgrpo.policy.families.embedding import encode_on_one_axis, features_of
from mmgrpo.policy.families.record import Encoded, Family, Key, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, chat_template, decoder_sizes, initialise, merged
from mmgrpo.types import Prompt

_SPECIAL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
_TINY_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vision_hidden_size": 96,
    "vision_intermediate_size": 192,
    "vision_depth": 2,
    "vision_num_heads": 4,
    "image_size": 448,
    "patch_size": 14,
    "max_patches": 12,
}


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts; the tiles of all pictures and frames pass the encoder in one call."""
    inputs = join_inputs(FAMILY, prompts, model.get_input_embeddings().weight.device)
    features = {}
    if "pixel_values" in inputs:
        output = model.model.get_image_features(inputs["pixel_values"], return_dict=True)
        features[model.config.image_token_id] = features_of(output)
    return encode_on_one_axis(model, prompts, features)


def _features_per_tile(config: Any) -> int:
    (height, width), (tall, wide) = config.vision_config.image_size, config.vision_config.patch_size
    return round((height // tall) * (width // wide) * config.downsample_ratio**2)


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    pixels = prompt.model_inputs.get("pixel_values")
    return dict.fromkeys(("image", "video"), 0 if pixels is None else len(pixels) * _features_per_tile(config))


def _limit_tiles(processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
    """Write the limits of a picture as numbers of tiles, beside which stands one of the whole picture."""
    image = processor.image_processor
    tile = image.size["height"] * image.size["width"]
    if max_pixels is not None:
        image.max_patches = max(1, max_pixels // tile)
    if min_pixels is not None:
        image.min_patches = max(1, min_pixels // tile)
    image.min_patches = min(image.min_patches, image.max_patches)


def _processor(size: Mapping[str, int], image_seq_length: int) -> Any:
    from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

    edge = {"height": size["image_size"], "width": size["image_size"]}
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=edge, crop_to_patches=True, max_patches=size["max_patches"]),
        tokenizer=build_tokenizer(*_SPECIAL.values(), named=_SPECIAL),
        video_processor=InternVLVideoProcessor(size=edge),
        image_seq_length=image_seq_length,
        chat_template=chat_template(image="<IMG_CONTEXT>\n", video="<video>\n"),
    )


def _tiny(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """InternVL3 with its tiles of 448 pixels and 256 features each."""
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    size = merged(_TINY_SIZES, sizes)
    image_seq_length = (size["image_size"] // size["patch_size"]) ** 2 // 4
    processor = _processor(size, image_seq_length)
    vision = {
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_hidden_layers": size["vision_depth"],
        "num_attention_heads": size["vision_num_heads"],
        "attention_bias": True,
        "image_size": size["image_size"],
        "patch_size": size["patch_size"],
    }
    config = InternVLConfig(
        vision_config=vision,
        text_config={"model_type": "qwen2", **decoder_sizes(size, processor.tokenizer)},
        image_token_id=processor.image_token_id,
        image_seq_length=image_seq_length,
        tie_word_embeddings=True,
    )
    model = initialise(InternVLForConditionalGeneration, config, processor, seed)
    _place_patches(model, seed)
    return model, processor


@torch.no_grad()
def _place_patches(model: Any, seed: int) -> None:
    """Draw the table of places, which transformers makes zero: no patch would know where it stands."""
    table = model.model.vision_tower.embeddings.position_embeddings
    table.normal_(std=0.02, generator=torch.Generator().manual_seed(seed))


FAMILY = Family(
    name="internvl",
    kinds=frozenset({"image", "video"}),
    parts={
        "vision": ("model.vision_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    },
    keys={"pixel_values": Key(feeds="encoder", join="concat")},
    decoder="model.language_model",
    axes=1,
    layout="packed",
    encode=_encode,
    media_tokens=lambda config: dict.fromkeys(("image", "video"), (config.image_token_id,)),
    count_features=_count_features,
    set_pixel_limits=_limit_tiles,
    tiny=_tiny,
)
"""The record."""
FAMILIES = (FAMILY,)
"""The records of this file."""
