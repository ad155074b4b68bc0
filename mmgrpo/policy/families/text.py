"""Text-only decoders (Qwen2, Qwen3, Llama, Mistral, …): one position axis, no encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mmgrpo.policy.families.record import Encoded, Family, text_positions
from mmgrpo.policy.families.tiny import QWEN_TEMPLATE, build_tokenizer, initialise, merged
from mmgrpo.types import Prompt

_TINY_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    embed = model.get_input_embeddings()
    device = embed.weight.device
    embeddings = embed(torch.cat([p.token_ids for p in prompts]).to(device))
    lengths = [len(p.token_ids) for p in prompts]
    return [
        Encoded(embeddings=e, positions=text_positions(n, device))
        for e, n in zip(embeddings.split(lengths), lengths, strict=True)
    ]


def _tiny_qwen3(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = merged(_TINY_SIZES, sizes)
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


def _family(name: str, tiny: Any = None) -> Family:
    return Family(
        name=name,
        kinds=frozenset(),
        model_class="AutoModelForCausalLM",
        parts={"language": ("model.", "lm_head.")},
        keys={},
        decoder="model",
        axes=1,
        layout="packed",
        encode=_encode,
        media_tokens=lambda config: {},
        count_features=lambda prompt, config: {},
        tiny=tiny,
    )


FAMILIES = (_family("qwen2"), _family("qwen3", _tiny_qwen3), _family("llama"), _family("mistral"))
"""The records of this file."""
