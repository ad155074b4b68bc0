"""Qwen3-Omni's Thinker: pictures, videos and sounds, experts, M-RoPE on three axes. The Talker is not trained here.

Times of a clip are not rounded to whole positions, so that positions are floats where a prompt has pictures or clips.

Source: Qwen3-Omni, arXiv:2509.17765, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mmgrpo.policy.compat import joined, media_base
from mmgrpo.policy.families.embedding import embed_prompts
from mmgrpo.policy.families.pixels import set_pixel_limits
from mmgrpo.policy.families.qwen3_vl_tiny import EXPERTS, placed_vision
from mmgrpo.policy.families.qwen_audio import audio_tower_config, feature_extractor
from mmgrpo.policy.families.qwen_omni import (
    KEYS,
    SIZES,
    SPECIAL,
    THINKER_PARTS,
    omni_media_tokens,
    omni_positions,
    omni_row_positions,
    omni_template,
)
from mmgrpo.policy.families.qwen_vl import FEATURES, count_visual_features, deepstack_inputs, scatter_deepstack
from mmgrpo.policy.families.qwen_vl_tiny import text_config
from mmgrpo.policy.families.record import Encoded, Family, Key, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, initialise, merged
from mmgrpo.types import Prompt

_SIZES = SIZES | EXPERTS
# each prompt's sounds are padded to its own longest
_KEYS = KEYS | dict.fromkeys(("input_features", "feature_attention_mask"), Key(feeds="encoder", join="list"))


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts: one call of the encoder per kind; features of its inner layers go to the first layers.

    Sounds pass their encoder prompt by prompt: it pads pieces to the longest of a call, and convolutions see that.
    """
    config, base = model.config, media_base(model)
    device = model.get_input_embeddings().weight.device
    inputs = join_inputs(FAMILY, prompts, device)
    ids = torch.cat([p.token_ids for p in prompts]).to(device)
    features: dict[int, Tensor] = {}
    visual, deep = torch.zeros_like(ids, dtype=torch.bool), None
    for pixels, grid, method, token in FEATURES.values():
        if pixels in inputs:
            output = getattr(base, method)(inputs[pixels], inputs[grid], return_dict=True)
            mask = ids == getattr(config, token)
            features[getattr(config, token)] = joined(output.pooler_output)
            layers = torch.stack([joined(layer) for layer in output.deepstack_features])
            deep, visual = scatter_deepstack(deep, layers, mask), visual | mask
    if "input_features" in inputs:
        pairs = zip(inputs["input_features"], inputs["feature_attention_mask"], strict=True)
        sounds = [
            base.get_audio_features(spectra, mask, return_dict=True).last_hidden_state for spectra, mask in pairs
        ]
        features[config.audio_token_id] = torch.cat(sounds)
    embeddings = embed_prompts(model, prompts, features)
    extras: list[dict[str, Tensor]] = [{} for _ in prompts]
    if deep is not None:
        lengths = [len(p.token_ids) for p in prompts]
        split = zip(visual.split(lengths), deep.split(lengths, dim=1), strict=True)
        extras = [{"visual": mask, "deepstack": layers[:, mask]} for mask, layers in split]
    return [
        Encoded(embeddings=e, positions=omni_positions(base, p).to(device), extras=x)
        for e, p, x in zip(embeddings, prompts, extras, strict=True)
    ]


def audio_tokens(frames: Int[Tensor, "n"], window: int) -> Int[Tensor, "n"]:
    """Spectrogram frames to features: three convolutions of stride two over pieces of two windows.

    Example:
        >>> audio_tokens(torch.tensor([100, 150, 1]), 50)
        tensor([13, 20,  1])
    """
    rest = frames % (2 * window)
    for _ in range(3):
        rest = (rest + 1) // 2
    whole = 2 * window
    for _ in range(3):
        whole = (whole + 1) // 2
    return rest + frames // (2 * window) * whole


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    mask = prompt.model_inputs.get("feature_attention_mask")
    window = config.audio_config.n_window
    sounds = 0 if mask is None else int(audio_tokens(torch.as_tensor(mask).sum(-1), window).sum())
    return {**count_visual_features(prompt, config), "audio": sounds}


def _processor(size: Mapping[str, int]) -> Any:
    from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen3OmniMoeProcessor

    return Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=16, merge_size=2),
        video_processor=Qwen2VLVideoProcessor(patch_size=16, merge_size=2),
        feature_extractor=feature_extractor(size["chunk_seconds"]),
        tokenizer=build_tokenizer(*SPECIAL.values(), named=SPECIAL),
        chat_template=omni_template(),
    )


def _tiny(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """The Thinker with its real patch, merge and window rules, so that token counts are true."""
    from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    size = merged(_SIZES, sizes)
    processor = _processor(size)
    tokenizer = processor.tokenizer
    audio = audio_tower_config(size) | {"output_dim": size["hidden_size"], "downsample_hidden_size": 32}
    head_dim = size["hidden_size"] // size["num_attention_heads"]
    config = Qwen3OmniMoeThinkerConfig(
        audio_config=audio | {"max_source_positions": 1500},
        vision_config={**placed_vision(size), "deepstack_visual_indexes": list(range(min(2, size["vision_depth"])))},
        text_config={"head_dim": head_dim, **text_config(size, tokenizer), **{n: size[n] for n in EXPERTS}},
        position_id_per_seconds=13,
        audio_token_id=tokenizer.audio_token_id,
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        audio_start_token_id=tokenizer.audio_bos_token_id,
        audio_end_token_id=tokenizer.audio_eos_token_id,
        vision_start_token_id=tokenizer.vision_bos_token_id,
        vision_end_token_id=tokenizer.vision_eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return initialise(Qwen3OmniMoeThinkerForConditionalGeneration, config, processor, seed), processor


FAMILY = Family(
    name="qwen3_omni_moe",
    kinds=frozenset({"image", "video", "audio"}),
    model_class="Qwen3OmniMoeThinkerForConditionalGeneration",
    parts=THINKER_PARTS,
    keys=_KEYS,
    decoder="model.language_model",
    axes=3,
    layout="packed",
    encode=_encode,
    media_tokens=omni_media_tokens,
    count_features=_count_features,
    language_inputs=deepstack_inputs,
    row_positions=omni_row_positions,
    sound_in_clips=True,
    set_pixel_limits=set_pixel_limits,
    tiny=_tiny,
)
"""The record."""
FAMILIES = (FAMILY,)
"""The records of this file."""
ALIASES = {"qwen3_omni_moe_thinker": "qwen3_omni_moe"}
"""What a saved Thinker calls itself."""
