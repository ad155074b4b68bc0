"""Tiny models that see an image whole: Gemma 3, GLM-4.1V and GLM-4.6V, Ministral 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mmgrpo.policy.families.tiny.parts import (
    SIZES,
    build_tokenizer,
    chat_template,
    decoder_sizes,
    encoder_sizes,
    initialise,
    merge_sizes,
)

_GEMMA_TOKENS = {
    "boi_token": "<start_of_image>",
    "image_token": "<image_soft_token>",
    "eoi_token": "<end_of_image>",
}
_GLM_TOKENS = {
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>",
    "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
}


def tiny_gemma3(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Gemma 3 with the real image size and 256 features per image; every second layer has the window."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    image = {"image_size": 896, "patch_size": 14, "mm_tokens_per_image": 256}
    size = merge_sizes(SIZES | {"sliding_window": 1024} | image, sizes)
    processor = _gemma_processor(size)
    tokenizer = processor.tokenizer
    width = size["hidden_size"] // size["num_attention_heads"]
    kinds = ("sliding_attention", "full_attention")
    text = {
        **decoder_sizes(size, tokenizer),
        "head_dim": width,
        "query_pre_attn_scalar": width,
        "sliding_window": size["sliding_window"],
        "layer_types": [kinds[i % 2] for i in range(size["num_hidden_layers"])],
    }
    config = Gemma3Config(
        text_config=text,
        vision_config={**encoder_sizes(size), "vision_use_head": False},
        mm_tokens_per_image=size["mm_tokens_per_image"],
        image_token_id=tokenizer.image_token_id,
        boi_token_id=tokenizer.boi_token_id,
        eoi_token_id=tokenizer.eoi_token_id,
        tie_word_embeddings=True,
    )
    model = initialise(Gemma3ForConditionalGeneration, config, processor, seed)
    # transformers makes this zero, and then no image would be seen
    weight = model.model.multi_modal_projector.mm_input_projection_weight
    weight.data.normal_(std=0.02, generator=torch.Generator().manual_seed(seed))
    return model, processor


def _gemma_processor(size: Mapping[str, int]) -> Any:
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    edge = {"height": size["image_size"], "width": size["image_size"]}
    return Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size=edge, image_mean=[0.5] * 3, image_std=[0.5] * 3),
        tokenizer=build_tokenizer(*_GEMMA_TOKENS.values(), named=_GEMMA_TOKENS),
        image_seq_length=size["mm_tokens_per_image"],
        chat_template=chat_template(image=_GEMMA_TOKENS["boi_token"]),
    )


def tiny_glm(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """GLM-4.1V or GLM-4.6V. Half of each head turns; its frequencies: 1/4 time, 3/8 height, 3/8 width.

    Args:
        brand: "Glm4v" or "Glm46V".
        sizes: Laid over the model's own.
        seed: Of the weights.
    """
    import transformers

    size = merge_sizes(SIZES, sizes)
    processor = getattr(transformers, f"{brand}Processor")(
        image_processor=getattr(transformers, f"{brand}ImageProcessor")(),
        tokenizer=build_tokenizer(*_GLM_TOKENS.values(), named=_GLM_TOKENS),
        video_processor=getattr(transformers, f"{brand}VideoProcessor")(),
        chat_template=chat_template(
            image="<|begin_of_image|><|image|><|end_of_image|>", video="<|begin_of_video|><|video|><|end_of_video|>"
        ),
    )
    turning = size["hidden_size"] // size["num_attention_heads"] // 4
    side = (turning - turning // 4) // 2
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [turning - 2 * side, side, side],
    }
    vision = {
        "model_type": "glm4v_vision",
        "depth": size["vision_depth"],
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_heads": size["vision_num_heads"],
        "out_hidden_size": size["hidden_size"],
    }
    config = getattr(transformers, f"{brand}Config")(
        text_config={"model_type": "glm4v_text", **decoder_sizes(size, processor.tokenizer), "rope_parameters": rope},
        vision_config=vision,
        tie_word_embeddings=True,
        **{f"{name}_id": processor.tokenizer.convert_tokens_to_ids(token) for name, token in _GLM_TOKENS.items()},
    )
    return initialise(getattr(transformers, f"{brand}ForConditionalGeneration"), config, processor, seed), processor


def tiny_mistral3(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Ministral 3. Past the positions it was first trained on, queries grow with the logarithm of their position."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    size = merge_sizes(SIZES | {"patch_size": 14, "longest_edge": 1540, "first_positions": 16384}, sizes)
    processor = _mistral_processor(size)
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
    text = {
        "model_type": "ministral3",
        **decoder_sizes(size, processor.tokenizer),
        "head_dim": size["hidden_size"] // size["num_attention_heads"],
        "max_position_embeddings": 16 * size["first_positions"],
        "rope_parameters": rope,
    }
    config = Mistral3Config(
        vision_config={"model_type": "pixtral", **encoder_sizes(size), "image_size": size["longest_edge"]},
        text_config=text,
        image_token_index=processor.image_token_id,
        tie_word_embeddings=True,
    )
    return initialise(Mistral3ForConditionalGeneration, config, processor, seed), processor


def _mistral_processor(size: Mapping[str, int]) -> Any:
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
