"""LFM2-VL: pictures at their own shape, large ones in tiles, and a decoder that is mostly short convolutions.

A convolution reads the tokens before a completion from its row: attention is not shared over a group (``rows``), while
pictures still pass the encoder once per prompt.

Source: LFM2, arXiv:2511.23404.
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

_KEYS = dict.fromkeys(("pixel_values", "spatial_shapes", "pixel_attention_mask"), Key(feeds="encoder", join="concat"))
_GRID = 10
"""Rows and columns of tiles that have a token of their own."""
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
    "tile_size": 512,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
}


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts; the tiles of all pictures pass the encoder in one call."""
    inputs = join_inputs(FAMILY, prompts, model.get_input_embeddings().weight.device)
    features = {}
    if "pixel_values" in inputs:
        output = model.model.get_image_features(**{name: inputs[name] for name in _KEYS}, return_dict=True)
        features[model.config.image_token_id] = features_of(output)
    return encode_on_one_axis(model, prompts, features)


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    shapes = prompt.model_inputs.get("spatial_shapes")
    count = 0 if shapes is None else int((torch.as_tensor(shapes) // config.downsample_factor).prod(-1).sum())
    return {"image": count}


def _processor(size: Mapping[str, int]) -> Any:
    from transformers import Lfm2VlImageProcessor, Lfm2VlProcessor

    special = ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
    tiles = [f"<|img_row_{row}_col_{col}|>" for row in range(1, _GRID + 1) for col in range(1, _GRID + 1)]
    return Lfm2VlProcessor(
        image_processor=Lfm2VlImageProcessor(
            tile_size=size["tile_size"],
            min_image_tokens=size["min_image_tokens"],
            max_image_tokens=size["max_image_tokens"],
        ),
        tokenizer=build_tokenizer(*special, *tiles),
        chat_template=chat_template(image="<image>"),
    )


def _tiny(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """LFM2-VL with its real patches, tiles and token limits; every second layer attends."""
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    size = merged(_TINY_SIZES, sizes)
    processor = _processor(size)
    kinds = ("conv", "full_attention")
    text = {
        "model_type": "lfm2",
        **decoder_sizes(size, processor.tokenizer),
        "block_auto_adjust_ff_dim": False,
        "layer_types": [kinds[i % 2] for i in range(size["num_hidden_layers"])],
    }
    vision = {
        "model_type": "siglip2_vision_model",
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_hidden_layers": size["vision_depth"],
        "num_attention_heads": size["vision_num_heads"],
        "patch_size": 16,
        "num_patches": 256,
        "vision_use_head": False,
    }
    config = Lfm2VlConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=processor.image_token_id,
        projector_hidden_size=size["intermediate_size"],
        tie_word_embeddings=True,
    )
    return initialise(Lfm2VlForConditionalGeneration, config, processor, seed), processor


FAMILY = Family(
    name="lfm2_vl",
    kinds=frozenset({"image"}),
    parts={
        "vision": ("model.vision_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    },
    keys=_KEYS,
    decoder="model.language_model",
    axes=1,
    layout="rows",
    encode=_encode,
    media_tokens=lambda config: {"image": (config.image_token_id,)},
    count_features=_count_features,
    tiny=_tiny,
)
"""The record."""
FAMILIES = (FAMILY,)
"""The records of this file."""
