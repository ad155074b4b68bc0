"""Qwen2-Audio: a Whisper-like encoder over 30 seconds, a Qwen2 decoder, one position axis.

Source: Qwen2-Audio, arXiv:2407.10759, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.policy.families.common import encode_on_one_axis
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join
from mmgrpo.policy.families.tiny.audio_and_omni import tiny_qwen2_audio
from mmgrpo.types import Prompt

AUDIO_KEYS: dict[str, Join] = {
    "input_features": "concat",
    "feature_attention_mask": "concat",
}
"""Keys of sounds, which Qwen2-Audio and Qwen2.5-Omni share."""


def audio_lengths(frames: Int[Tensor, "n"]) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """Spectrogram frames to positions inside the encoder and to features after its pooling.

    Example:
        >>> audio_lengths(torch.tensor([100]))
        (tensor([50]), tensor([25]))
    """
    inside = (frames - 1) // 2 + 1
    return inside, (inside - 2) // 2 + 1


def count_audio_features(prompt: Prompt) -> int:
    """Features of all sounds of a prompt."""
    mask = prompt.model_inputs.get("feature_attention_mask")
    return 0 if mask is None else int(audio_lengths(torch.as_tensor(mask).sum(-1))[1].sum())


def _audio_features(model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "F D"]:
    """Encode every sound, each padded to the same 30 seconds, and keep the features that are not padding."""
    from transformers.masking_utils import create_bidirectional_mask

    base, spectra = model.model, inputs["input_features"]
    inside, after = audio_lengths(inputs["feature_attention_mask"].sum(-1))
    length = (spectra.shape[-1] - 2) // 2 + 1
    seen = torch.arange(length, device=spectra.device) < inside[:, None]
    mask = create_bidirectional_mask(
        config=base.audio_tower.config,
        inputs_embeds=spectra.new_zeros(len(spectra), length, 1),
        attention_mask=seen.long(),
    )
    hidden = base.audio_tower(spectra, attention_mask=mask).last_hidden_state
    features = base.multi_modal_projector(hidden)
    return features[torch.arange(features.shape[1], device=features.device) < after[:, None]]


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts; all sounds pass the encoder in one call."""
    features = {}
    if "input_features" in inputs:
        features[model.config.audio_token_id] = _audio_features(model, inputs)
    return encode_on_one_axis(model, prompts, features)


FAMILIES = (
    FamilySpec(
        name="qwen2_audio",
        kinds=frozenset({"audio"}),
        parts={
            "audio": ("model.audio_tower.",),
            "projector": ("model.multi_modal_projector.",),
            "language": ("model.language_model.", "lm_head."),
        },
        keys=AUDIO_KEYS,
        decoder="model.language_model",
        never_trained=("model.audio_tower.embed_positions.",),
        axes=1,
        layout="packed",
        encode_media=_encode_media,
        media_tokens=lambda config: {"audio": (config.audio_token_id,)},
        count_features=lambda prompt, config: {"audio": count_audio_features(prompt)},
        tiny=tiny_qwen2_audio,
    ),
)
"""The records of this file."""
