"""Tiny twins of Qwen3-VL and Qwen3.5, with and without experts: the real classes, patch, merge and pixel rules.

Knows configurations and processors, no forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mmgrpo.policy.families.qwen_vl_tiny import TINY_SIZES, text_config, tiny_processor, token_ids
from mmgrpo.policy.families.tiny import initialise, merged

EXPERTS = {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}
"""Sizes of the twins with experts, beside those of the others."""


def placed_vision(size: Mapping[str, int]) -> dict[str, Any]:
    """Settings of the encoder with learned picture positions."""
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


def _build(brand: str, processor: Any, seed: int, *, text: Mapping[str, Any], vision: Mapping[str, Any]) -> Any:
    import transformers

    config = getattr(transformers, f"{brand}Config")(
        text_config=dict(text), vision_config=dict(vision), tie_word_embeddings=True, **token_ids(processor.tokenizer)
    )
    return initialise(getattr(transformers, f"{brand}ForConditionalGeneration"), config, processor, seed)


def tiny_qwen3_vl(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen3-VL: learned picture positions, deepstack features into the first layers.

    Args:
        brand: "Qwen3VL", or "Qwen3VLMoe" with experts in every layer.
        sizes: Laid over the twin's own.
        seed: Of the weights.
    """
    experts = EXPERTS if brand.endswith("Moe") else {}
    size = merged(TINY_SIZES | experts, sizes)
    processor = tiny_processor("Qwen3VLProcessor", patch=16)
    vision = {**placed_vision(size), "deepstack_visual_indexes": list(range(min(2, size["vision_depth"])))}
    text = {
        "head_dim": size["hidden_size"] // size["num_attention_heads"],
        **text_config(size, processor.tokenizer),
        **{name: size[name] for name in experts},
    }
    return _build(brand, processor, seed, text=text, vision=vision), processor


def tiny_qwen3_5(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen3.5: three layers of gated delta rules to each one of attention, of whose heads a quarter turns.

    Args:
        brand: "Qwen3_5", or "Qwen3_5Moe" with experts in every layer, one of which all tokens share.
        sizes: Laid over the twin's own.
        seed: Of the weights.
    """
    experts = EXPERTS | {"shared_expert_intermediate_size": 128} if brand.endswith("Moe") else {}
    size = merged(TINY_SIZES | experts, sizes)
    processor = tiny_processor("Qwen3VLProcessor", patch=16)
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
        **{name: size[name] for name in experts},
    }
    model = _build(brand, processor, seed, text=text, vision=placed_vision(size))
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
