"""Tiny models whose processors cut images into tiles: Idefics3, SmolVLM, InternVL3, LLaVA-OneVision, LFM2-VL."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import nn

from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.tiny.parts import (
    SIZES,
    build_tokenizer,
    chat_template,
    decoder_sizes,
    encoder_sizes,
    initialise,
    merge_sizes,
)

_INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
_LLAVA_TOKENS = {"image_token": "<image>", "video_token": "<video>"}


def _tile_tokens(pattern: str, side: int) -> list[str]:
    """One token for each row and column that a tile may stand in."""
    return [pattern.format(row, col) for row in range(1, side + 1) for col in range(1, side + 1)]


def tiny_idefics(brand: str, sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """Idefics3 or SmolVLM: tiles of 512 pixels, 64 features each.

    Args:
        brand: "Idefics3", or "SmolVLM", whose processor spells numbers out, for which it needs num2words.
        sizes: Laid over the model's own.
        seed: Of the weights.
    """
    import transformers

    size = merge_sizes(SIZES | {"image_size": 512, "patch_size": 16, "scale_factor": 4, "longest_edge": 2048}, sizes)
    tokenizer = build_tokenizer(
        "<fake_token_around_image>",
        "<image>",
        "<global-img>",
        "<end_of_utterance>",
        *_tile_tokens("<row_{}_col_{}>", 6),
    )
    config = getattr(transformers, f"{brand}Config")(
        vision_config=encoder_sizes(size),
        text_config={"model_type": "llama", "tie_word_embeddings": True, **decoder_sizes(size, tokenizer)},
        scale_factor=size["scale_factor"],
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    try:
        processor = _idefics_processor(brand, size, tokenizer)
    except ImportError as error:
        raise ConfigError(
            explain(
                "The SmolVLM processor needs num2words",
                where="model.name",
                fix="pip install 'mmgrpo[smolvlm]', or take tiny:idefics3, which is built alike.",
            )
        ) from error
    return initialise(getattr(transformers, f"{brand}ForConditionalGeneration"), config, processor, seed), processor


def _idefics_processor(brand: str, size: Mapping[str, int], tokenizer: Any) -> Any:
    import transformers

    edge = {"longest_edge": size["image_size"]}
    images = getattr(transformers, f"{brand}ImageProcessor")(
        size={"longest_edge": size["longest_edge"]}, max_image_size=edge
    )
    videos = {}
    if brand == "SmolVLM":
        videos["video_processor"] = transformers.SmolVLMVideoProcessor(size=edge, max_image_size=edge)
    return getattr(transformers, f"{brand}Processor")(
        image_processor=images,
        tokenizer=tokenizer,
        image_seq_len=(size["image_size"] // size["patch_size"]) ** 2 // size["scale_factor"] ** 2,
        chat_template=chat_template(image="<image>"),
        **videos,
    )


def tiny_internvl(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """InternVL3 with its tiles of 448 pixels and 256 features each."""
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    size = merge_sizes(SIZES | {"image_size": 448, "patch_size": 14, "max_patches": 12}, sizes)
    image_seq_length = (size["image_size"] // size["patch_size"]) ** 2 // 4
    processor = _internvl_processor(size, image_seq_length)
    config = InternVLConfig(
        vision_config={**encoder_sizes(size), "attention_bias": True},
        text_config={"model_type": "qwen2", **decoder_sizes(size, processor.tokenizer)},
        image_token_id=processor.image_token_id,
        image_seq_length=image_seq_length,
        tie_word_embeddings=True,
    )
    model = initialise(InternVLForConditionalGeneration, config, processor, seed)
    with torch.no_grad():  # transformers makes this zero: no patch would know where it stands
        table = model.model.vision_tower.embeddings.position_embeddings
        table.normal_(std=0.02, generator=torch.Generator().manual_seed(seed))
    return model, processor


def _internvl_processor(size: Mapping[str, int], image_seq_length: int) -> Any:
    from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

    edge = {"height": size["image_size"], "width": size["image_size"]}
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=edge, crop_to_patches=True, max_patches=size["max_patches"]),
        tokenizer=build_tokenizer(*_INTERNVL_TOKENS.values(), named=_INTERNVL_TOKENS),
        video_processor=InternVLVideoProcessor(size=edge),
        image_seq_length=image_seq_length,
        chat_template=chat_template(image="<IMG_CONTEXT>\n", video="<video>\n"),
    )


def tiny_llava_onevision(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """LLaVA-OneVision with its tiles of 384 pixels, 729 features each, in grids of up to 6 x 6."""
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    size = merge_sizes(SIZES | {"image_size": 384, "patch_size": 14, "tiles_per_side": 6}, sizes)
    edges = [size["image_size"] * n for n in range(1, size["tiles_per_side"] + 1)]
    grids = [list(grid) for grid in product(edges, edges)]
    processor = _llava_processor(size, grids)
    vision = {"model_type": "siglip_vision_model", **encoder_sizes(size), "vision_use_head": False}
    config = LlavaOnevisionConfig(
        vision_config=vision,
        text_config={"model_type": "qwen2", "tie_word_embeddings": True, **decoder_sizes(size, processor.tokenizer)},
        image_token_index=processor.image_token_id,
        video_token_index=processor.video_token_id,
        image_grid_pinpoints=grids,
        tie_word_embeddings=True,
    )
    return initialise(LlavaOnevisionForConditionalGeneration, config, processor, seed), processor


def _llava_processor(size: Mapping[str, int], grids: list[list[int]]) -> Any:
    from transformers import LlavaOnevisionImageProcessor, LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor

    edge = {"height": size["image_size"], "width": size["image_size"]}
    return LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=edge, image_grid_pinpoints=grids),
        tokenizer=build_tokenizer(*_LLAVA_TOKENS.values(), named=_LLAVA_TOKENS),
        video_processor=LlavaOnevisionVideoProcessor(size=edge),
        num_image_tokens=(size["image_size"] // size["patch_size"]) ** 2,
        vision_feature_select_strategy="full",
        chat_template=chat_template(image="<image>\n", video="<video>\n"),
    )


def tiny_lfm(sizes: Mapping[str, int], seed: int) -> tuple[nn.Module, Any]:
    """LFM2-VL with its real patches, tiles and token limits; every second layer attends."""
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    size = merge_sizes(SIZES | {"tile_size": 512, "min_image_tokens": 64, "max_image_tokens": 256}, sizes)
    processor = _lfm_processor(size)
    kinds = ("conv", "full_attention")
    text = {
        "model_type": "lfm2",
        **decoder_sizes(size, processor.tokenizer),
        "block_auto_adjust_ff_dim": False,
        "layer_types": [kinds[i % 2] for i in range(size["num_hidden_layers"])],
    }
    vision = {
        "model_type": "siglip2_vision_model",
        **encoder_sizes(size),
        "patch_size": 16,
        "num_patches": 256,
        "vision_use_head": False,
    }
    config = Lfm2VlConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=processor.image_token_id,
        projector_hidden_size=size["intermediate_size"],
        tie_word_embeddings=True,
    )
    return initialise(Lfm2VlForConditionalGeneration, config, processor, seed), processor


def _lfm_processor(size: Mapping[str, int]) -> Any:
    from transformers import Lfm2VlImageProcessor, Lfm2VlProcessor

    special = ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
    limits = {name: size[name] for name in ("tile_size", "min_image_tokens", "max_image_tokens")}
    return Lfm2VlProcessor(
        image_processor=Lfm2VlImageProcessor(**limits),
        tokenizer=build_tokenizer(*special, *_tile_tokens("<|img_row_{}_col_{}|>", 10)),
        chat_template=chat_template(image="<image>"),
    )
