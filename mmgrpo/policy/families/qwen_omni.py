"""The Thinkers of Qwen2.5-Omni and Qwen3-Omni: images, videos and audio, M-RoPE on three axes. no Talkers.

A video's own audio is interleaved with it, two seconds of frames and two seconds of audio by turns, where every video
of the prompt has one; else audio stands behind its video. Qwen3-Omni has experts, deepstack features, and does not
round the times of a video to whole positions: they are floats where a prompt has images or videos.

Source: Qwen2.5-Omni, arXiv:2503.20215, section 2; Qwen3-Omni, arXiv:2509.17765, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.policy.families.common import embed_prompts, set_pixel_limits
from mmgrpo.policy.families.qwen_audio import AUDIO_KEYS, count_audio_features
from mmgrpo.policy.families.qwen_vl import VISUAL_KEYS, count_visual_features, deepstack_inputs, encode_visual
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join
from mmgrpo.policy.families.tiny.audio_and_omni import tiny_qwen2_5_omni, tiny_qwen3_omni
from mmgrpo.policy.patches import media_base
from mmgrpo.types import Prompt

_KEYS: dict[str, Join] = {**VISUAL_KEYS, **AUDIO_KEYS, "video_second_per_grid": "concat"}
# each prompt's audio is padded to its own longest
_KEYS_3: dict[str, Join] = {**_KEYS, "input_features": "list", "feature_attention_mask": "list"}
_PROJECTORS = ("visual.merger", "audio_tower.proj")
# older versions of transformers keep the encoders beside the language model, not beside each other in "model"
_PARTS = {
    "vision": ("model.visual.", "visual."),
    "audio": ("model.audio_tower.", "audio_tower."),
    "projector": tuple(f"{place}{name}" for place in ("model.", "") for name in _PROJECTORS),
    "language": ("model.", "lm_head."),
}


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts: one call of an encoder per kind.

    Qwen3-Omni's audio passes its encoder prompt by prompt: it pads pieces to the longest of a call, and convolutions
    see that.
    """
    config, base = model.config, media_base(model)
    features, extras = encode_visual(base, config, prompts, inputs)
    if "input_features" in inputs:
        spectra, masks = inputs["input_features"], inputs["feature_attention_mask"]
        pairs = [(spectra, masks)] if isinstance(spectra, Tensor) else zip(spectra, masks, strict=True)
        outputs = [base.get_audio_features(*pair, return_dict=True).last_hidden_state for pair in pairs]
        features[config.audio_token_id] = torch.cat(outputs)
    return [
        EncodedPrompt(embeddings=e, positions=_positions(base, p).to(e.device), extras=x)
        for e, p, x in zip(embed_prompts(model, prompts, features), prompts, extras, strict=True)
    ]


def _positions(base: Any, prompt: Prompt) -> Int[Tensor, "3 P"] | Float[Tensor, "3 P"]:
    """M-RoPE positions of the prompt alone; the model's cached ``rope_deltas`` belong to another prompt."""
    ids = prompt.token_ids[None].cpu()
    inputs = {name: torch.as_tensor(value).cpu() for name, value in prompt.model_inputs.items() if name in _KEYS}
    audio = inputs.get("feature_attention_mask")
    positions, _ = base.get_rope_index(
        ids,
        inputs.get("image_grid_thw"),
        inputs.get("video_grid_thw"),
        torch.ones_like(ids),
        _is_interleaved(ids[0], base.config),
        None if audio is None else audio.sum(-1),
        inputs.get("video_second_per_grid"),
    )
    return positions[:, 0] if base.config.model_type.startswith("qwen3") else positions[:, 0].long()


def _is_interleaved(ids: Int[Tensor, "P"], config: Any) -> bool:
    """Tell whether videos hold their audio: audio begins where a video has just begun."""
    begins = (ids[:-1] == config.vision_start_token_id) & (ids[1:] == config.audio_start_token_id)
    return bool(begins.any())


def _row_positions(model: Any, prompt: Prompt, length: int) -> Float[Tensor, "3 1 L"] | None:
    """Positions of a plain row with interleaved audio, of which transformers' forward has to be told; else its own."""
    base = media_base(model)
    if not _is_interleaved(prompt.token_ids.cpu(), base.config):
        return None
    positions = _positions(base, prompt)
    more = positions.max() + 1 + torch.arange(length)
    return torch.cat([positions, more.expand(3, -1)], dim=1)[:, None]


def _media_tokens(config: Any) -> Mapping[str, tuple[int, ...]]:
    return {kind: (getattr(config, f"{kind}_token_id"),) for kind in ("image", "video", "audio")}


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    return {**count_visual_features(prompt, config), "audio": count_audio_features(prompt)}


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


def _count_features_3(prompt: Prompt, config: Any) -> Mapping[str, int]:
    mask = prompt.model_inputs.get("feature_attention_mask")
    window = config.audio_config.n_window
    audio = 0 if mask is None else int(audio_tokens(torch.as_tensor(mask).sum(-1), window).sum())
    return {**count_visual_features(prompt, config), "audio": audio}


def _family(
    name: str, brand: str, keys: dict[str, Join], count: Callable[[Prompt, Any], Mapping[str, int]], tiny: Any
) -> FamilySpec:
    return FamilySpec(
        name=name,
        aliases=(f"{name}_thinker",),
        kinds=frozenset({"image", "video", "audio"}),
        model_class=f"{brand}ThinkerForConditionalGeneration",
        parts=_PARTS,
        keys=keys,
        decoder="model.language_model",
        axes=3,
        layout="packed",
        encode_media=_encode_media,
        media_tokens=_media_tokens,
        count_features=count,
        language_inputs=deepstack_inputs,
        row_positions=_row_positions,
        unused_weights=("talker.", "token2wav.", "code2wav."),
        audio_in_video=True,
        set_pixel_limits=set_pixel_limits,
        tiny=tiny,
    )


FAMILIES = (
    _family("qwen2_5_omni", "Qwen2_5Omni", _KEYS, _count_features, tiny_qwen2_5_omni),
    _family("qwen3_omni_moe", "Qwen3OmniMoe", _KEYS_3, _count_features_3, tiny_qwen3_omni),
)
"""The records of this file."""
