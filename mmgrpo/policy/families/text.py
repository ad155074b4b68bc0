"""Text-only decoders (Qwen2, Qwen3, Llama, Mistral, …): one position axis, no encoder."""

from __future__ import annotations

from typing import Any

from mmgrpo.policy.families.common import encode_on_one_axis
from mmgrpo.policy.families.spec import FamilySpec
from mmgrpo.policy.families.tiny.qwen import tiny_qwen3


def _family(name: str, tiny: Any = None) -> FamilySpec:
    return FamilySpec(
        name=name,
        kinds=frozenset(),
        model_class="AutoModelForCausalLM",
        parts={"language": ("model.", "lm_head.")},
        keys={},
        decoder="model",
        axes=1,
        layout="packed",
        encode_media=lambda model, prompts, inputs: encode_on_one_axis(model, prompts, {}),
        media_tokens=lambda config: {},
        count_features=lambda prompt, config: {},
        tiny=tiny,
    )


FAMILIES = (_family("qwen2"), _family("qwen3", tiny_qwen3), _family("llama"), _family("mistral"))
"""The records of this file."""
