"""Tiny twins of Qwen2-VL and Qwen2.5-VL: the real classes, patch, merge and pixel rules, in small.

Token counts are those of the real models. Knows configurations and processors, no forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mmgrpo.policy.families.tiny import QWEN_TEMPLATE, build_tokenizer, initialise, merged


def tiny_processor(processor_class: str, *, patch: int, template: str = QWEN_TEMPLATE) -> Any:
    """Build a processor of a Qwen family with its real merge and pixel rules."""
    import transformers

    tokenizer = build_tokenizer()
    image = transformers.Qwen2VLImageProcessor(patch_size=patch, merge_size=2)
    kind = "Qwen3VLVideoProcessor" if processor_class == "Qwen3VLProcessor" else "Qwen2VLVideoProcessor"
    video = getattr(transformers, kind)(patch_size=patch, merge_size=2)
    return getattr(transformers, processor_class)(
        image_processor=image, tokenizer=tokenizer, video_processor=video, chat_template=template
    )


def token_ids(tokenizer: Any) -> dict[str, int]:
    """Settings of a Qwen family's special tokens."""
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
    processor = tiny_processor("Qwen2_5_VLProcessor", patch=14)
    config = Qwen2_5_VLConfig(
        text_config=text_config(size, processor.tokenizer),
        vision_config=windowed_vision(size),
        tie_word_embeddings=True,
        **token_ids(processor.tokenizer),
    )
    return initialise(Qwen2_5_VLForConditionalGeneration, config, processor, seed), processor


def tiny_qwen2_vl(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen2-VL: the same text stack with a plain vision transformer."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    size = merged(TINY_SIZES, sizes)
    processor = tiny_processor("Qwen2VLProcessor", patch=14)
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
        **token_ids(processor.tokenizer),
    )
    return initialise(Qwen2VLForConditionalGeneration, config, processor, seed), processor
