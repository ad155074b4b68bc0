"""GLM-4.1V and GLM-4.6V: M-RoPE on three axes, pictures and the frames of a clip with a time written behind each.

Frames of a clip use the placeholder of pictures, between the tokens that begin and end a clip. transformers' forward
takes pictures or clips in a prompt, not both.

Source: GLM-4.1V-Thinking, arXiv:2507.01006, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import ProcessorError, explain
from mmgrpo.policy.families.embedding import features_of
from mmgrpo.policy.families.pixels import set_pixel_limits
from mmgrpo.policy.families.qwen_vl import PARTS, VISUAL_KEYS, count_visual_features, mrope_positions
from mmgrpo.policy.families.record import Encoded, Family, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, chat_template, decoder_sizes, initialise, merged
from mmgrpo.types import Prompt

_KINDS = {
    1: ("pixel_values", "image_grid_thw", "get_image_features"),
    2: ("pixel_values_videos", "video_grid_thw", "get_video_features"),
}
"""By what ``mm_token_type_ids`` calls the tokens of a kind."""
_SPECIAL = {
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>",
    "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
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
}


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts: one call of the encoder per kind."""
    _refuse_mixed(prompts)
    embed = model.get_input_embeddings()
    device = embed.weight.device
    inputs = join_inputs(_BY_NAME[model.config.model_type], prompts, device)
    types = torch.cat([_types(prompt) for prompt in prompts]).to(device)
    embeddings = embed(torch.cat([p.token_ids for p in prompts]).to(device))
    for number, (pixels, grid, method) in _KINDS.items():
        if pixels in inputs:
            output = getattr(model.model, method)(inputs[pixels], inputs[grid], return_dict=True)
            mask = (types == number)[:, None]
            embeddings = embeddings.masked_scatter(mask, features_of(output).to(embeddings.dtype))
    return [
        Encoded(embeddings=e, positions=mrope_positions(model, p).to(device))
        for e, p in zip(embeddings.split([len(p.token_ids) for p in prompts]), prompts, strict=True)
    ]


def _types(prompt: Prompt) -> Tensor:
    types = prompt.model_inputs.get("mm_token_type_ids")
    return torch.zeros(len(prompt.token_ids), dtype=torch.long) if types is None else torch.as_tensor(types).view(-1)


def _refuse_mixed(prompts: Sequence[Prompt]) -> None:
    for prompt in prompts:
        if all(pixels in prompt.model_inputs for pixels, _, _ in _KINDS.values()):
            raise ProcessorError(
                explain(
                    "GLM-4.1V and GLM-4.6V take pictures or clips in a prompt, not both",
                    where=f"sample {prompt.sample.id}",
                    got=", ".join(medium.kind for medium in prompt.media),
                    fix="Leave one kind out of the row.",
                )
            )


def _media_tokens(config: Any) -> Mapping[str, tuple[int, ...]]:
    """Frames stand under the token of pictures; that of clips is the processor's alone, but must not be written."""
    return {"image": (config.image_token_id,), "video": (config.image_token_id, config.video_token_id)}


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    counts = count_visual_features(prompt, config)
    return dict.fromkeys(counts, sum(counts.values()))


def _processor(brand: str) -> Any:
    import transformers

    return getattr(transformers, f"{brand}Processor")(
        image_processor=getattr(transformers, f"{brand}ImageProcessor")(),
        tokenizer=build_tokenizer(*_SPECIAL.values(), named=_SPECIAL),
        video_processor=getattr(transformers, f"{brand}VideoProcessor")(),
        chat_template=chat_template(
            image="<|begin_of_image|><|image|><|end_of_image|>", video="<|begin_of_video|><|video|><|end_of_video|>"
        ),
    )


def _text(size: Mapping[str, int], tokenizer: Any) -> dict[str, Any]:
    """Half of each head turns, and its frequencies are split as in the real model: 1/4 time, 3/8 height, 3/8 width."""
    turning = size["hidden_size"] // size["num_attention_heads"] // 4
    side = (turning - turning // 4) // 2
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [turning - 2 * side, side, side],
    }
    return {"model_type": "glm4v_text", **decoder_sizes(size, tokenizer), "rope_parameters": rope}


def _twin(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Build a twin with the real patch, merge and pixel rules, so that token counts are true."""
    import transformers

    size = merged(_TINY_SIZES, sizes)
    processor = _processor(brand)
    vision = {
        "model_type": "glm4v_vision",
        "depth": size["vision_depth"],
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_heads": size["vision_num_heads"],
        "out_hidden_size": size["hidden_size"],
    }
    config = getattr(transformers, f"{brand}Config")(
        text_config=_text(size, processor.tokenizer),
        vision_config=vision,
        tie_word_embeddings=True,
        **{f"{name}_id": processor.tokenizer.convert_tokens_to_ids(token) for name, token in _SPECIAL.items()},
    )
    return initialise(getattr(transformers, f"{brand}ForConditionalGeneration"), config, processor, seed), processor


def _family(name: str, brand: str) -> Family:
    return Family(
        name=name,
        kinds=frozenset({"image", "video"}),
        parts={**PARTS, "projector": ("model.visual.merger.", "model.visual.downsample.")},
        keys=VISUAL_KEYS,
        decoder="model.language_model",
        axes=3,
        layout="packed",
        encode=_encode,
        media_tokens=_media_tokens,
        count_features=_count_features,
        set_pixel_limits=partial(set_pixel_limits, counted=2),
        tiny=partial(_twin, brand),
    )


FAMILIES = (_family("glm4v", "Glm4v"), _family("glm46v", "Glm46V"))
"""The records of this file."""
_BY_NAME = {family.name: family for family in FAMILIES}
