"""Qwen2-Audio: a Whisper-like encoder over 30 seconds, a Qwen2 decoder, one position axis.

Source: Qwen2-Audio, arXiv:2407.10759, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.policy.families.embedding import encode_on_one_axis
from mmgrpo.policy.families.record import Encoded, Family, Key, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, chat_template, initialise, merged
from mmgrpo.types import Prompt

AUDIO_KEYS = {
    "input_features": Key(feeds="encoder", join="concat"),
    "feature_attention_mask": Key(feeds="encoder", join="concat"),
}
"""Keys of sounds, which Qwen2-Audio and Qwen2.5-Omni share."""
FRAMES_PER_SECOND = 100
"""Of the spectrogram."""
_SPECIAL = {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
_TINY_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "audio_hidden_size": 96,
    "audio_intermediate_size": 192,
    "audio_depth": 2,
    "audio_num_heads": 4,
    "chunk_seconds": 30,
}


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


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts; all sounds pass the encoder in one call."""
    inputs = join_inputs(FAMILY, prompts, model.get_input_embeddings().weight.device)
    features = {}
    if "input_features" in inputs:
        features[model.config.audio_token_id] = _audio_features(model, inputs)
    return encode_on_one_axis(model, prompts, features)


def audio_tower_config(size: Mapping[str, int]) -> dict[str, Any]:
    """Sizes of a tiny sound encoder."""
    return {
        "num_mel_bins": 128,
        "d_model": size["audio_hidden_size"],
        "encoder_layers": size["audio_depth"],
        "encoder_attention_heads": size["audio_num_heads"],
        "encoder_ffn_dim": size["audio_intermediate_size"],
        "max_source_positions": size["chunk_seconds"] * FRAMES_PER_SECOND // 2,
    }


def feature_extractor(seconds: int) -> Any:
    """Build the real extractor: 128 mel bands at 16 kHz, padded to this many seconds."""
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, chunk_length=seconds)


def _tiny(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

    size = merged(_TINY_SIZES, sizes)
    tokenizer = build_tokenizer(*_SPECIAL.values(), named=_SPECIAL)
    processor = Qwen2AudioProcessor(
        feature_extractor=feature_extractor(size["chunk_seconds"]),
        tokenizer=tokenizer,
        chat_template=chat_template(
            audio="".join(_SPECIAL[f"audio_{x}"] for x in ("bos_token", "token", "eos_token"))
        ),
    )
    text = {
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **{k: v for k, v in size.items() if not k.startswith(("audio", "chunk"))},
    }
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **audio_tower_config(size)},
        text_config=text,
        audio_token_index=tokenizer.convert_tokens_to_ids(_SPECIAL["audio_token"]),
    )
    return initialise(Qwen2AudioForConditionalGeneration, config, processor, seed), processor


FAMILY = Family(
    name="qwen2_audio",
    kinds=frozenset({"audio"}),
    parts={
        "audio": ("model.audio_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    },
    keys=AUDIO_KEYS,
    decoder="model.language_model",
    fixed=("model.audio_tower.embed_positions.",),
    axes=1,
    layout="packed",
    encode=_encode,
    media_tokens=lambda config: {"audio": (config.audio_token_id,)},
    count_features=lambda prompt, config: {"audio": count_audio_features(prompt)},
    tiny=_tiny,
)
"""The record."""
FAMILIES = (FAMILY,)
"""The records of this file."""
