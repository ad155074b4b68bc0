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
from torch import Tensor

from mmgrpo.errors import ProcessorError, explain
from mmgrpo.policy.families.common import features_of, set_pixel_limits
from mmgrpo.policy.families.qwen_vl import PARTS, VISUAL_KEYS, count_visual_features, mrope_positions
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec
from mmgrpo.policy.families.tiny.whole_images import tiny_glm
from mmgrpo.types import Prompt

_KINDS = {
    1: ("pixel_values", "image_grid_thw", "get_image_features"),
    2: ("pixel_values_videos", "video_grid_thw", "get_video_features"),
}
"""By what ``mm_token_type_ids`` calls the tokens of a kind."""


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts: one call of the encoder per kind."""
    _refuse_mixed(prompts)
    embed = model.get_input_embeddings()
    device = embed.weight.device
    types = torch.cat([_types(prompt) for prompt in prompts]).to(device)
    embeddings = embed(torch.cat([p.token_ids for p in prompts]).to(device))
    for number, (pixels, grid, method) in _KINDS.items():
        if pixels in inputs:
            output = getattr(model.model, method)(inputs[pixels], inputs[grid], return_dict=True)
            mask = (types == number)[:, None]
            embeddings = embeddings.masked_scatter(mask, features_of(output).to(embeddings.dtype))
    return [
        EncodedPrompt(embeddings=e, positions=mrope_positions(model, p).to(device))
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


def _family(name: str, brand: str) -> FamilySpec:
    return FamilySpec(
        name=name,
        kinds=frozenset({"image", "video"}),
        parts={**PARTS, "projector": ("model.visual.merger.", "model.visual.downsample.")},
        keys=VISUAL_KEYS,
        decoder="model.language_model",
        axes=3,
        layout="packed",
        encode_media=_encode_media,
        media_tokens=_media_tokens,
        count_features=_count_features,
        set_pixel_limits=partial(set_pixel_limits, counted=2),
        tiny=partial(tiny_glm, brand),
    )


FAMILIES = (_family("glm4v", "Glm4v"), _family("glm46v", "Glm46V"))
"""The records of this file."""
