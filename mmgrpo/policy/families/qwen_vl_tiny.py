"""Tiny twins of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: the real classes, patch, merge and pixel rules.

Token counts are those of the real models. Knows configurations and processors, no forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mmgrpo.policy.families.tiny import QWEN_TEMPLATE, build_tokenizer, initialise, merged


def _tiny_processor(processor_class: str, *, patch: int, template: str) -> Any:
    import transformers

    tokenizer = build_tokenizer()
    image = transformers.Qwen2VLImageProcessor(patch_size=patch, merge_size=2)
    kind = "Qwen3VLVideoProcessor" if processor_class == "Qwen3VLProcessor" else "Qwen2VLVideoProcessor"
    video = getattr(transformers, kind)(patch_size=patch, merge_size=2)
    return getattr(transformers, processor_class)(
        image_processor=image, tokenizer=tokenizer, video_processor=video, chat_template=template
    )


def _token_ids(tokenizer: Any) -> dict[str, int]:
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}


def text_config(sizes: Mapping[str, int], tokenizer: Any, **more: Any) -> dict[str, Any]:
    """Sizes of a tiny Qwen decoder with M-RoPE."""
    width = sizes["hidden_size"] // sizes["num_attention_heads"]
    quarter = width // 8  # Qwen's split of the rotary half: 1/4 time, 3/8 height, 3/8 width
    side = (width // 2 - quarter) // 2
    section = [width // 2 - 2 * side, side, side]
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_hidden_layers": sizes["num_hidden_layers"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_key_value_heads": sizes["num_key_value_heads"],
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
        **more,
    }


TINY_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vision_hidden_size": 96,
    "vision_intermediate_size": 192,
    "vision_depth": 3,
    "vision_num_heads": 4,
}
"""Sizes of the tiny twins, each of which ``model.sizes`` may override."""


def windowed_vision(size: Mapping[str, int]) -> dict[str, Any]:
    """Settings of the encoder that Qwen2.5-VL and Qwen2.5-Omni share, with its real patch, merge and window rules."""
    return {
        "depth": size["vision_depth"],
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_heads": size["vision_num_heads"],
        "out_hidden_size": size["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [size["vision_depth"] - 1],
    }


def tiny_qwen2_5_vl(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen2.5-VL with the real patch, merge and pixel rules, so that token counts are true."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    size = merged(TINY_SIZES, sizes)
    processor = _tiny_processor("Qwen2_5_VLProcessor", patch=14, template=QWEN_TEMPLATE)
    config = Qwen2_5_VLConfig(
        text_config=text_config(size, processor.tokenizer),
        vision_config=windowed_vision(size),
        tie_word_embeddings=True,
        **_token_ids(processor.tokenizer),
    )
    return initialise(Qwen2_5_VLForConditionalGeneration, config, processor, seed), processor


def tiny_qwen2_vl(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen2-VL: the same text stack with a plain vision transformer."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    size = merged(TINY_SIZES, sizes)
    processor = _tiny_processor("Qwen2VLProcessor", patch=14, template=QWEN_TEMPLATE)
    vision = {
        "depth": size["vision_depth"],
        "embed_dim": size["vision_hidden_size"],
        "hidden_size": size["hidden_size"],
        "mlp_ratio": size["vision_intermediate_size"] // size["vision_hidden_size"],
        "num_heads": size["vision_num_heads"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    config = Qwen2VLConfig(
        text_config=text_config(size, processor.tokenizer),
        vision_config=vision,
        tie_word_embeddings=True,
        **_token_ids(processor.tokenizer),
    )
    return initialise(Qwen2VLForConditionalGeneration, config, processor, seed), processor


def _placed_vision(size: Mapping[str, int]) -> dict[str, Any]:
    """Settings of the encoder with learned picture positions that Qwen3-VL and Qwen3.5 share."""
    return {
        "depth": size["vision_depth"],
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_heads": size["vision_num_heads"],
        "out_hidden_size": size["hidden_size"],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 256,
    }


def tiny_qwen3_vl(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen3-VL: learned picture positions, deepstack features into the first layers."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    size = merged(TINY_SIZES, sizes)
    processor = _tiny_processor("Qwen3VLProcessor", patch=16, template=QWEN_TEMPLATE)
    vision = {**_placed_vision(size), "deepstack_visual_indexes": list(range(min(2, size["vision_depth"])))}
    text = text_config(size, processor.tokenizer, head_dim=size["hidden_size"] // size["num_attention_heads"])
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, **_token_ids(processor.tokenizer)
    )
    return initialise(Qwen3VLForConditionalGeneration, config, processor, seed), processor


def tiny_qwen3_5(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen3.5: three layers of gated delta rules to each one of attention, of whose heads a quarter turns."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    size = merged(TINY_SIZES, sizes)
    processor = _tiny_processor("Qwen3VLProcessor", patch=16, template=QWEN_TEMPLATE)
    width = size["hidden_size"] // size["num_attention_heads"]
    turning = width // 8
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [turning - 2 * (turning // 3), turning // 3, turning // 3],
        "mrope_interleaved": True,
    }
    text = {
        "head_dim": width,
        "linear_key_head_dim": width,
        "linear_value_head_dim": width,
        "linear_num_key_heads": size["num_key_value_heads"],
        "linear_num_value_heads": size["num_attention_heads"],
        **text_config(size, processor.tokenizer, rope_parameters=rope),
    }
    config = Qwen3_5Config(
        text_config=text,
        vision_config=_placed_vision(size),
        tie_word_embeddings=True,
        **_token_ids(processor.tokenizer),
    )
    model = initialise(Qwen3_5ForConditionalGeneration, config, processor, seed)
    _lengthen_memory(model, seed)
    return model, processor


@torch.no_grad()
def _lengthen_memory(model: nn.Module, seed: int) -> None:
    """Draw the time steps of gated layers between 0.001 and 0.1.

    transformers makes them so large that most heads forget all within a token or two.

    Source: Mamba, arXiv:2312.00752, section 3.6.
    """
    random = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".dt_bias"):
            step = 10.0 ** torch.empty_like(parameter).uniform_(-3, -1, generator=random)
            parameter.copy_(step + torch.log(-torch.expm1(-step)))
