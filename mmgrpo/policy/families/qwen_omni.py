"""Qwen2.5-Omni's Thinker: pictures, videos and sounds, M-RoPE on three axes. The Talker is not trained here.

A video's own sound is woven into it, two seconds of frames and two seconds of sound by turns, where every video of the
prompt has one; else sounds stand behind their videos.

Source: Qwen2.5-Omni, arXiv:2503.20215, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.policy.compat import media_base
from mmgrpo.policy.families.embedding import embed_prompts, features_of
from mmgrpo.policy.families.pixels import set_pixel_limits
from mmgrpo.policy.families.qwen_audio import (
    AUDIO_KEYS,
    audio_tower_config,
    count_audio_features,
    feature_extractor,
)
from mmgrpo.policy.families.qwen_vl import VISUAL_KEYS, count_visual_features
from mmgrpo.policy.families.qwen_vl_tiny import TINY_SIZES, text_config, windowed_vision
from mmgrpo.policy.families.record import Encoded, Family, Key, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, chat_template, initialise, merged
from mmgrpo.types import Prompt

KEYS = VISUAL_KEYS | AUDIO_KEYS | {"video_second_per_grid": Key(feeds="language", join="concat")}
"""Of every Thinker's processor."""
SPECIAL = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
"""Tokens that the processors ask for by name."""
SIZES = TINY_SIZES | {
    "audio_hidden_size": 64,
    "audio_intermediate_size": 128,
    "audio_depth": 2,
    "audio_num_heads": 4,
    "chunk_seconds": 300,
}
"""Of the tiny twin."""
_PROJECTORS = ("visual.merger", "audio_tower.proj")
# older versions of transformers keep the encoders beside the language model, not beside each other in "model"
THINKER_PARTS = {
    "vision": ("model.visual.", "visual."),
    "audio": ("model.audio_tower.", "audio_tower."),
    "projector": tuple(f"{place}{name}" for place in ("model.", "") for name in _PROJECTORS),
    "language": ("model.", "lm_head."),
}
"""Of every Thinker."""


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts: one call of the encoder per kind."""
    config, base = model.config, media_base(model)
    device = model.get_input_embeddings().weight.device
    inputs = join_inputs(FAMILY, prompts, device)
    features = {}
    if "pixel_values" in inputs:
        output = base.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True)
        features[config.image_token_id] = features_of(output)
    if "pixel_values_videos" in inputs:
        output = base.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"], return_dict=True)
        features[config.video_token_id] = features_of(output)
    if "input_features" in inputs:
        sounds = base.get_audio_features(inputs["input_features"], inputs["feature_attention_mask"], return_dict=True)
        features[config.audio_token_id] = sounds.last_hidden_state
    embeddings = embed_prompts(model, prompts, features)
    return [
        Encoded(embeddings=e, positions=omni_positions(base, p).long().to(device))
        for e, p in zip(embeddings, prompts, strict=True)
    ]


def omni_positions(base: Any, prompt: Prompt) -> Float[Tensor, "3 P"]:
    """M-RoPE positions of the prompt alone; the model's cached ``rope_deltas`` belong to another prompt."""
    ids = prompt.token_ids[None].cpu()
    given = {name: torch.as_tensor(value).cpu() for name, value in prompt.model_inputs.items() if name in KEYS}
    sounds = given.get("feature_attention_mask")
    positions, _ = base.get_rope_index(
        ids,
        given.get("image_grid_thw"),
        given.get("video_grid_thw"),
        torch.ones_like(ids),
        _is_woven(ids[0], base.config),
        None if sounds is None else sounds.sum(-1),
        given.get("video_second_per_grid"),
    )
    return positions[:, 0]


def _is_woven(ids: Int[Tensor, "P"], config: Any) -> bool:
    """Tell whether videos hold their sounds: a sound begins where a video has just begun."""
    begins = (ids[:-1] == config.vision_start_token_id) & (ids[1:] == config.audio_start_token_id)
    return bool(begins.any())


def omni_row_positions(model: Any, prompt: Prompt, length: int) -> Int[Tensor, "3 1 L"] | None:
    """Positions of a plain row with woven sounds, of which transformers' forward has to be told; else its own."""
    base = media_base(model)
    if not _is_woven(prompt.token_ids.cpu(), base.config):
        return None
    positions = omni_positions(base, prompt)
    more = positions.max() + 1 + torch.arange(length)
    return torch.cat([positions, more.expand(3, -1)], dim=1)[:, None]


def omni_media_tokens(config: Any) -> Mapping[str, tuple[int, ...]]:
    """Placeholders of a Thinker."""
    return {kind: (getattr(config, f"{kind}_token_id"),) for kind in ("image", "video", "audio")}


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    return {**count_visual_features(prompt, config), "audio": count_audio_features(prompt)}


def _tiny(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

    size = merged(SIZES, sizes)
    processor = _processor(size)
    tokenizer = processor.tokenizer
    config = Qwen2_5OmniThinkerConfig(
        audio_config=audio_tower_config(size) | {"output_dim": size["hidden_size"], "max_source_positions": 1500},
        vision_config=windowed_vision(size),
        text_config=text_config(size, tokenizer),
        audio_token_index=tokenizer.audio_token_id,
        image_token_index=tokenizer.image_token_id,
        video_token_index=tokenizer.video_token_id,
        audio_start_token_id=tokenizer.audio_bos_token_id,
        audio_end_token_id=tokenizer.audio_eos_token_id,
        vision_start_token_id=tokenizer.vision_bos_token_id,
        vision_end_token_id=tokenizer.vision_eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return initialise(Qwen2_5OmniThinkerForConditionalGeneration, config, processor, seed), processor


def omni_template() -> str:
    """The chat template of the twins."""
    named = {name: f"<|vision_bos|>{SPECIAL[f'{name}_token']}<|vision_eos|>" for name in ("image", "video")}
    return chat_template(audio="<|audio_bos|><|AUDIO|><|audio_eos|>", **named)


def _processor(size: Mapping[str, int]) -> Any:
    from transformers import Qwen2_5OmniProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    return Qwen2_5OmniProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=14, merge_size=2),
        video_processor=Qwen2VLVideoProcessor(patch_size=14, merge_size=2),
        feature_extractor=feature_extractor(size["chunk_seconds"]),
        tokenizer=build_tokenizer(*SPECIAL.values(), named=SPECIAL),
        chat_template=omni_template(),
    )


FAMILY = Family(
    name="qwen2_5_omni",
    kinds=frozenset({"image", "video", "audio"}),
    model_class="Qwen2_5OmniThinkerForConditionalGeneration",
    parts=THINKER_PARTS,
    keys=KEYS,
    decoder="model.language_model",
    axes=3,
    layout="packed",
    encode=_encode,
    media_tokens=omni_media_tokens,
    count_features=_count_features,
    row_positions=omni_row_positions,
    sound_in_clips=True,
    set_pixel_limits=set_pixel_limits,
    tiny=_tiny,
)
"""The record."""
FAMILIES = (FAMILY,)
"""The records of this file."""
ALIASES = {"qwen2_5_omni_thinker": "qwen2_5_omni"}
"""What a Thinker saved alone calls itself."""
