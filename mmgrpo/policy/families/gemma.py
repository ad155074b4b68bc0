"""Gemma 3: pictures of one size whose tokens see each other in both directions, windows in most layers.

Tokens of a picture look ahead within it, and most layers have a sliding window: attention is not shared over a group
(``rows``), while pictures still pass the encoder once per prompt.

Source: Gemma 3, arXiv:2503.19786, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mmgrpo.policy.families.embedding import encode_on_one_axis, features_of
from mmgrpo.policy.families.record import Encoded, Family, Key, Placed, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, chat_template, initialise, merged
from mmgrpo.types import Prompt

_KEYS = {
    "pixel_values": Key(feeds="encoder", join="concat"),
    "token_type_ids": Key(feeds="language", join="tokens"),
}
_SPECIAL = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
_TINY_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 1024,
    "vision_hidden_size": 96,
    "vision_intermediate_size": 192,
    "vision_depth": 2,
    "vision_num_heads": 4,
    "image_size": 896,
    "patch_size": 14,
    "mm_tokens_per_image": 256,
}


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts; note for each which tokens are a picture's, since these see each other."""
    inputs = join_inputs(FAMILY, prompts, model.get_input_embeddings().weight.device)
    token = model.config.image_token_id
    features = {}
    if "pixel_values" in inputs:
        features[token] = features_of(model.model.get_image_features(inputs["pixel_values"], return_dict=True))
    encoded = encode_on_one_axis(model, prompts, features)
    return [
        replace(e, extras={"visual": (p.token_ids == token).to(e.embeddings.device)})
        for e, p in zip(encoded, prompts, strict=True)
    ]


def _language_inputs(placed: Sequence[Placed], shape: tuple[int, int]) -> dict[str, Any]:
    """1 at every picture token, from which the model builds its masks; nothing while a completion is written."""
    if not placed:
        return {}
    types = torch.zeros(shape, dtype=torch.long, device=placed[0].encoded.embeddings.device)
    for p in placed:
        visual = p.encoded.extras["visual"]
        types[p.row, p.start : p.start + len(visual)] = visual.long()
    return {"token_type_ids": types}


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    pixels = prompt.model_inputs.get("pixel_values")
    return {"image": 0 if pixels is None else len(pixels) * config.mm_tokens_per_image}


def _tiny(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Gemma 3 with the real picture size and 256 features per picture; every second layer has the window."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor

    size = merged(_TINY_SIZES, sizes)
    tokenizer = build_tokenizer(*_SPECIAL.values(), named=_SPECIAL)
    edge = {"height": size["image_size"], "width": size["image_size"]}
    processor = Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size=edge, image_mean=[0.5] * 3, image_std=[0.5] * 3),
        tokenizer=tokenizer,
        image_seq_length=size["mm_tokens_per_image"],
        chat_template=chat_template(image=_SPECIAL["boi_token"]),
    )
    vision = {
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_hidden_layers": size["vision_depth"],
        "num_attention_heads": size["vision_num_heads"],
        "image_size": size["image_size"],
        "patch_size": size["patch_size"],
        "vision_use_head": False,
    }
    config = Gemma3Config(
        text_config=_text_config(size, tokenizer),
        vision_config=vision,
        mm_tokens_per_image=size["mm_tokens_per_image"],
        image_token_id=tokenizer.image_token_id,
        boi_token_id=tokenizer.boi_token_id,
        eoi_token_id=tokenizer.eoi_token_id,
        tie_word_embeddings=True,
    )
    model = initialise(Gemma3ForConditionalGeneration, config, processor, seed)
    # transformers makes this zero, and then no picture would be seen
    weight = model.model.multi_modal_projector.mm_input_projection_weight
    weight.data.normal_(std=0.02, generator=torch.Generator().manual_seed(seed))
    return model, processor


def _text_config(size: Mapping[str, int], tokenizer: Any) -> dict[str, Any]:
    width = size["hidden_size"] // size["num_attention_heads"]
    kinds = ("sliding_attention", "full_attention")
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": size["hidden_size"],
        "intermediate_size": size["intermediate_size"],
        "num_hidden_layers": size["num_hidden_layers"],
        "num_attention_heads": size["num_attention_heads"],
        "num_key_value_heads": size["num_key_value_heads"],
        "head_dim": width,
        "query_pre_attn_scalar": width,
        "sliding_window": size["sliding_window"],
        "layer_types": [kinds[i % 2] for i in range(size["num_hidden_layers"])],
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


FAMILY = Family(
    name="gemma3",
    kinds=frozenset({"image"}),
    parts={
        "vision": ("model.vision_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    },
    keys=_KEYS,
    decoder="model",  # not the text stack: the model around it builds the masks
    axes=1,
    layout="rows",
    encode=_encode,
    media_tokens=lambda config: {"image": (config.image_token_id,)},
    count_features=_count_features,
    language_inputs=_language_inputs,
    tiny=_tiny,
)
"""The record."""
FAMILIES = (FAMILY,)
"""The records of this file."""
