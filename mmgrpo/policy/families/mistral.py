"""Mistral Small 3.1 and Ministral 3: pictures of any size in rows of patches, a token at each row's end, one axis.

Source: Pixtral, arXiv:2410.07073, section 2 (the encoder).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import torch
from torch import nn

from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.embedding import encode_on_one_axis, features_of
from mmgrpo.policy.families.record import Encoded, Family, Key, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, chat_template, decoder_sizes, initialise, merged
from mmgrpo.types import Prompt

_KEYS = {
    "pixel_values": Key(feeds="encoder", join="list"),  # each prompt's pictures are padded to its own largest
    "image_sizes": Key(feeds="encoder", join="concat"),
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
    "patch_size": 14,
    "longest_edge": 1540,
    "first_positions": 16384,
}


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts; pictures pass the encoder one by one.

    Together they would be one sequence under a mask of all patches by all patches, most of which says that pictures do
    not see each other.
    """
    inputs = join_inputs(FAMILY, prompts, model.get_input_embeddings().weight.device)
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


def _processor(size: Mapping[str, int]) -> Any:
    from transformers import PixtralImageProcessor, PixtralProcessor

    return PixtralProcessor(
        image_processor=PixtralImageProcessor(
            size={"longest_edge": size["longest_edge"]},
            patch_size={"height": size["patch_size"], "width": size["patch_size"]},
        ),
        tokenizer=build_tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        patch_size=size["patch_size"],
        spatial_merge_size=2,
        chat_template=chat_template(image="[IMG]"),
    )


def _text(size: Mapping[str, int], tokenizer: Any) -> dict[str, Any]:
    """Past the positions that it was first trained on, queries grow with the logarithm of their position."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": size["first_positions"],
        "llama_4_scaling_beta": 0.1,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    return {
        "model_type": "ministral3",
        **decoder_sizes(size, tokenizer),
        "head_dim": size["hidden_size"] // size["num_attention_heads"],
        "max_position_embeddings": 16 * size["first_positions"],
        "rope_parameters": rope,
    }


def _tiny(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Ministral 3 with its real patch, merge and size rules, so that token counts are true."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    size = merged(_TINY_SIZES, sizes)
    processor = _processor(size)
    vision = {
        "model_type": "pixtral",
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_hidden_layers": size["vision_depth"],
        "num_attention_heads": size["vision_num_heads"],
        "image_size": size["longest_edge"],
        "patch_size": size["patch_size"],
    }
    config = Mistral3Config(
        vision_config=vision,
        text_config=_text(size, processor.tokenizer),
        image_token_index=processor.image_token_id,
        tie_word_embeddings=True,
    )
    return initialise(Mistral3ForConditionalGeneration, config, processor, seed), processor


FAMILY = Family(
    name="mistral3",
    kinds=frozenset({"image"}),
    parts={
        "vision": ("model.vision_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    },
    keys=_KEYS,
    decoder="model.language_model",
    axes=1,
    layout="packed",
    encode=_encode,
    media_tokens=lambda config: {"image": (config.image_token_id,)},
    count_features=_count_features,
    set_pixel_limits=_limit_edge,
    tiny=_tiny,
)
"""The record."""
FAMILIES = (FAMILY,)
"""The records of this file."""
