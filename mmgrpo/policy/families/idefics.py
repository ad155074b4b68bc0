"""Idefics3 and SmolVLM: pictures cut into tiles of one size, a Llama decoder, one position axis.

Source: Idefics3, arXiv:2408.12637; SmolVLM, arXiv:2504.05299.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.embedding import encode_on_one_axis, features_of
from mmgrpo.policy.families.record import Encoded, Family, Key, join_inputs
from mmgrpo.policy.families.tiny import build_tokenizer, chat_template, initialise, merged
from mmgrpo.types import Prompt

_KEYS = {
    "pixel_values": Key(feeds="encoder", join="tiles"),
    "pixel_attention_mask": Key(feeds="encoder", join="tiles"),
}
_GRID = 6
"""Rows and columns of tiles that have a token of their own."""
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
    "image_size": 512,
    "patch_size": 16,
    "scale_factor": 4,
    "longest_edge": 2048,
}


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts; every tile of all pictures passes the encoder in one call."""
    device = model.get_input_embeddings().weight.device
    inputs = join_inputs(_BY_NAME[model.config.model_type], prompts, device)
    features = {}
    if "pixel_values" in inputs:
        output = model.model.get_image_features(
            inputs["pixel_values"], inputs.get("pixel_attention_mask"), return_dict=True
        )
        features[model.config.image_token_id] = features_of(output)
    return encode_on_one_axis(model, prompts, features)


def _features_per_tile(config: Any) -> int:
    return (config.vision_config.image_size // config.vision_config.patch_size) ** 2 // config.scale_factor**2


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    pixels = prompt.model_inputs.get("pixel_values")
    return {"image": 0 if pixels is None else pixels.shape[1] * _features_per_tile(config)}


def _tokenizer() -> Any:
    tiles = [f"<row_{row}_col_{col}>" for row in range(1, _GRID + 1) for col in range(1, _GRID + 1)]
    return build_tokenizer("<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *tiles)


def _configs(size: Mapping[str, int], tokenizer: Any) -> dict[str, Any]:
    vision = {
        "hidden_size": size["vision_hidden_size"],
        "intermediate_size": size["vision_intermediate_size"],
        "num_hidden_layers": size["vision_depth"],
        "num_attention_heads": size["vision_num_heads"],
        "image_size": size["image_size"],
        "patch_size": size["patch_size"],
    }
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": size["hidden_size"],
        "intermediate_size": size["intermediate_size"],
        "num_hidden_layers": size["num_hidden_layers"],
        "num_attention_heads": size["num_attention_heads"],
        "num_key_value_heads": size["num_key_value_heads"],
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    return {
        "vision_config": vision,
        "text_config": text,
        "scale_factor": size["scale_factor"],
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }


def _twin(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    import transformers

    size = merged(_TINY_SIZES, sizes)
    tokenizer = _tokenizer()
    config = getattr(transformers, f"{brand}Config")(**_configs(size, tokenizer))
    pictures = getattr(transformers, f"{brand}ImageProcessor")(
        size={"longest_edge": size["longest_edge"]}, max_image_size={"longest_edge": size["image_size"]}
    )
    videos = {} if brand == "Idefics3" else {"video_processor": _video_processor(size)}
    processor = getattr(transformers, f"{brand}Processor")(
        image_processor=pictures,
        tokenizer=tokenizer,
        image_seq_len=_features_per_tile(config),
        chat_template=chat_template(image="<image>"),
        **videos,
    )
    return initialise(getattr(transformers, f"{brand}ForConditionalGeneration"), config, processor, seed), processor


def _video_processor(size: Mapping[str, int]) -> Any:
    from transformers import SmolVLMVideoProcessor

    edge = {"longest_edge": size["image_size"]}
    return SmolVLMVideoProcessor(size=edge, max_image_size=edge)


def _tiny_idefics3(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Idefics3 with SmolVLM's tiles: 64 features each."""
    return _twin("Idefics3", sizes, seed)


def _tiny_smolvlm(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """SmolVLM; its processor spells numbers out, for which it needs num2words."""
    try:
        return _twin("SmolVLM", sizes, seed)
    except ImportError as error:
        raise ConfigError(
            explain(
                "The SmolVLM processor needs num2words",
                where="model.name",
                fix="pip install 'mmgrpo[smolvlm]', or take tiny:idefics3, which is built alike.",
            )
        ) from error


def _family(name: str, tiny: Any) -> Family:
    return Family(
        name=name,
        kinds=frozenset({"image"}),
        parts={
            "vision": ("model.vision_model.",),
            "projector": ("model.connector.",),
            "language": ("model.text_model.", "lm_head."),
        },
        keys=_KEYS,
        decoder="model.text_model",
        axes=1,
        layout="packed",
        encode=_encode,
        media_tokens=lambda config: {"image": (config.image_token_id,)},
        count_features=_count_features,
        tiny=tiny,
    )


FAMILIES = (_family("idefics3", _tiny_idefics3), _family("smolvlm", _tiny_smolvlm))
"""The records of this file."""
_BY_NAME = {family.name: family for family in FAMILIES}
