"""Tiny models that hear: Qwen2-Audio, and the Thinkers of Qwen2.5-Omni and Qwen3-Omni."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mmgrpo.policy.families.tiny.parts import SIZES, build_tokenizer, chat_template, initialise, merge_sizes
from mmgrpo.policy.families.tiny.qwen import EXPERTS, QWEN_SIZES, deepstack_vision, mrope_text, windowed_vision

_AUDIO_SIZES = {"audio_hidden_size": 96, "audio_intermediate_size": 192, "audio_depth": 2, "audio_num_heads": 4}
_AUDIO_TOKENS = {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
_OMNI_SIZES = QWEN_SIZES | {
    "audio_hidden_size": 64,
    "audio_intermediate_size": 128,
    "audio_depth": 2,
    "audio_num_heads": 4,
    "chunk_seconds": 300,
}
_OMNI_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}


def _audio_encoder(size: Mapping[str, int], **more: int) -> dict[str, Any]:
    return {
        "num_mel_bins": 128,
        "d_model": size["audio_hidden_size"],
        "encoder_layers": size["audio_depth"],
        "encoder_attention_heads": size["audio_num_heads"],
        "encoder_ffn_dim": size["audio_intermediate_size"],
        **more,
    }


def _feature_extractor(seconds: int) -> Any:
    """Build the real extractor: 128 mel bands at 16 kHz, padded to this many seconds."""
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, chunk_length=seconds)


def tiny_qwen2_audio(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Qwen2-Audio with its real spectrogram and its 30 seconds."""
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

    text_sizes = {name: value for name, value in SIZES.items() if not name.startswith("vision")}
    size = merge_sizes(text_sizes | _AUDIO_SIZES | {"chunk_seconds": 30}, sizes)
    tokenizer = build_tokenizer(*_AUDIO_TOKENS.values(), named=_AUDIO_TOKENS)
    processor = Qwen2AudioProcessor(
        feature_extractor=_feature_extractor(size["chunk_seconds"]),
        tokenizer=tokenizer,
        chat_template=chat_template(audio="<|audio_bos|><|AUDIO|><|audio_eos|>"),
    )
    text = {
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **{name: size[name] for name in text_sizes},
    }
    audio = _audio_encoder(size, max_source_positions=size["chunk_seconds"] * 50)  # 100 frames a second, halved
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **audio},
        text_config=text,
        audio_token_index=tokenizer.convert_tokens_to_ids(_AUDIO_TOKENS["audio_token"]),
    )
    return initialise(Qwen2AudioForConditionalGeneration, config, processor, seed), processor


def _omni_processor(brand: str, size: Mapping[str, int], patch: int) -> Any:
    import transformers

    image, video = (f"<|vision_bos|>{_OMNI_TOKENS[f'{kind}_token']}<|vision_eos|>" for kind in ("image", "video"))
    return getattr(transformers, f"{brand}Processor")(
        image_processor=transformers.Qwen2VLImageProcessor(patch_size=patch, merge_size=2),
        video_processor=transformers.Qwen2VLVideoProcessor(patch_size=patch, merge_size=2),
        feature_extractor=_feature_extractor(size["chunk_seconds"]),
        tokenizer=build_tokenizer(*_OMNI_TOKENS.values(), named=_OMNI_TOKENS),
        chat_template=chat_template(audio="<|audio_bos|><|AUDIO|><|audio_eos|>", image=image, video=video),
    )


def _omni_tokens(tokenizer: Any, placeholder: str) -> dict[str, int]:
    """Settings of a Thinker's special tokens; placeholders are called an index by one and an id by the other."""
    return {
        **{
            f"{kind}_token_{placeholder}": getattr(tokenizer, f"{kind}_token_id")
            for kind in ("audio", "image", "video")
        },
        "audio_start_token_id": tokenizer.audio_bos_token_id,
        "audio_end_token_id": tokenizer.audio_eos_token_id,
        "vision_start_token_id": tokenizer.vision_bos_token_id,
        "vision_end_token_id": tokenizer.vision_eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def tiny_qwen2_5_omni(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """The Thinker of Qwen2.5-Omni with its real patch, merge and window rules."""
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

    size = merge_sizes(_OMNI_SIZES, sizes)
    processor = _omni_processor("Qwen2_5Omni", size, 14)
    config = Qwen2_5OmniThinkerConfig(
        audio_config=_audio_encoder(size, output_dim=size["hidden_size"], max_source_positions=1500),
        vision_config=windowed_vision(size),
        text_config=mrope_text(size, processor.tokenizer),
        tie_word_embeddings=True,
        **_omni_tokens(processor.tokenizer, "index"),
    )
    return initialise(Qwen2_5OmniThinkerForConditionalGeneration, config, processor, seed), processor


def tiny_qwen3_omni(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """The Thinker of Qwen3-Omni with its real patch, merge and window rules."""
    from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    size = merge_sizes(_OMNI_SIZES | EXPERTS, sizes)
    processor = _omni_processor("Qwen3OmniMoe", size, 16)
    tokenizer = processor.tokenizer
    head_dim = size["hidden_size"] // size["num_attention_heads"]
    config = Qwen3OmniMoeThinkerConfig(
        audio_config=_audio_encoder(
            size, output_dim=size["hidden_size"], downsample_hidden_size=32, max_source_positions=1500
        ),
        vision_config=deepstack_vision(size),
        text_config={"head_dim": head_dim, **mrope_text(size, tokenizer), **{name: size[name] for name in EXPERTS}},
        position_id_per_seconds=13,
        tie_word_embeddings=True,
        **_omni_tokens(tokenizer, "id"),
    )
    return initialise(Qwen3OmniMoeThinkerForConditionalGeneration, config, processor, seed), processor
