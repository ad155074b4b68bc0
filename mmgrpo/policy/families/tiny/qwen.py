"""Tiny models of Qwen: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, with and without experts, and Qwen3 (text)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mmgrpo.policy.families.tiny.parts import (
    QWEN_TEMPLATE,
    SIZES,
    build_tokenizer,
    decoder_sizes,
    initialise,
    merge_sizes,
)

QWEN_SIZES = SIZES | {"vision_depth": 3}
"""Sizes of the models with images, each of which ``model.sizes`` may override."""
EXPERTS = {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}
"""Sizes of the models with experts, beside those of the others."""


def _processor(processor_class: str, *, patch: int, template: str = QWEN_TEMPLATE) -> Any:
    """Build a processor of a Qwen family with its real merge and pixel rules."""
    import transformers

    tokenizer = build_tokenizer()
    image = transformers.Qwen2VLImageProcessor(patch_size=patch, merge_size=2)
    kind = "Qwen3VLVideoProcessor" if processor_class == "Qwen3VLProcessor" else "Qwen2VLVideoProcessor"
    video = getattr(transformers, kind)(patch_size=patch, merge_size=2)
    return getattr(transformers, processor_class)(
        image_processor=image, tokenizer=tokenizer, video_processor=video, chat_template=template
    )


def _token_ids(tokenizer: Any) -> dict[str, int]:
    """Settings of a Qwen family's special tokens."""
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}


def mrope_text(sizes: Mapping[str, int], tokenizer: Any, **more: Any) -> dict[str, Any]:
    """Sizes of a tiny Qwen decoder with M-RoPE."""
    width = sizes["hidden_size"] // sizes["num_attention_heads"]
    quarter = width // 8  # Qwen's split of the rotary half: 1/4 time, 3/8 height, 3/8 width
    side = (width // 2 - quarter) // 2
    section = [width // 2 - 2 * side, side, side]
    return {
        **decoder_sizes(sizes, tokenizer),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section},
        "tie_word_embeddings": True,
        **more,
    }


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

    size = merge_sizes(QWEN_SIZES, sizes)
    processor = _processor("Qwen2_5_VLProcessor", patch=14)
    config = Qwen2_5_VLConfig(
        text_config=mrope_text(size, processor.tokenizer),
        vision_config=windowed_vision(size),
        tie_word_embeddings=True,
        **_token_ids(processor.tokenizer),
    )
    return initialise(Qwen2_5_VLForConditionalGeneration, config, processor, seed), processor


def tiny_qwen2_vl(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen2-VL: the same text stack with a plain vision transformer."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    size = merge_sizes(QWEN_SIZES, sizes)
    processor = _processor("Qwen2VLProcessor", patch=14)
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
        text_config=mrope_text(size, processor.tokenizer),
        vision_config=vision,
        tie_word_embeddings=True,
        **_token_ids(processor.tokenizer),
    )
    return initialise(Qwen2VLForConditionalGeneration, config, processor, seed), processor


def _vision_with_positions(size: Mapping[str, int]) -> dict[str, Any]:
    """Settings of the encoder with learned image positions."""
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


def deepstack_vision(size: Mapping[str, int]) -> dict[str, Any]:
    """Settings of the encoder of Qwen3-VL and Qwen3-Omni, whose inner layers feed the first layers of the decoder."""
    return {**_vision_with_positions(size), "deepstack_visual_indexes": list(range(min(2, size["vision_depth"])))}


def _build(brand: str, processor: Any, seed: int, *, text: Mapping[str, Any], vision: Mapping[str, Any]) -> Any:
    import transformers

    config = getattr(transformers, f"{brand}Config")(
        text_config=dict(text), vision_config=dict(vision), tie_word_embeddings=True, **_token_ids(processor.tokenizer)
    )
    return initialise(getattr(transformers, f"{brand}ForConditionalGeneration"), config, processor, seed)


def tiny_qwen3_vl(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen3-VL: learned image positions, deepstack features into the first layers.

    Args:
        brand: "Qwen3VL", or "Qwen3VLMoe" with experts in every layer.
        sizes: Laid over the model's own.
        seed: Of the weights.
    """
    experts = EXPERTS if brand.endswith("Moe") else {}
    size = merge_sizes(QWEN_SIZES | experts, sizes)
    processor = _processor("Qwen3VLProcessor", patch=16)
    text = {
        "head_dim": size["hidden_size"] // size["num_attention_heads"],
        **mrope_text(size, processor.tokenizer),
        **{name: size[name] for name in experts},
    }
    return _build(brand, processor, seed, text=text, vision=deepstack_vision(size)), processor


def tiny_qwen3_5(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen3.5: three layers of gated delta rules to each one of attention, of whose heads a quarter turns.

    Args:
        brand: "Qwen3_5", or "Qwen3_5Moe" with experts in every layer, one of which all tokens share.
        sizes: Laid over the model's own.
        seed: Of the weights.
    """
    experts = EXPERTS | {"shared_expert_intermediate_size": 128} if brand.endswith("Moe") else {}
    size = merge_sizes(QWEN_SIZES | experts, sizes)
    processor = _processor("Qwen3VLProcessor", patch=16)
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
        **mrope_text(size, processor.tokenizer, rope_parameters=rope),
        **{name: size[name] for name in experts},
    }
    model = _build(brand, processor, seed, text=text, vision=_vision_with_positions(size))
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


def tiny_qwen3(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen3, which reads text alone."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    size = merge_sizes({**{name: SIZES[name] for name in names}, "intermediate_size": 384}, sizes)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = QWEN_TEMPLATE
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        head_dim=size["hidden_size"] // size["num_attention_heads"],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **size,
    )
    return initialise(Qwen3ForCausalLM, config, tokenizer, seed), tokenizer
