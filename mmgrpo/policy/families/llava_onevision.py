"""LLaVA-OneVision: pictures of any resolution in tiles with a token at each line's end, and pooled clips.

A picture is seen whole and, enlarged, in tiles; the tiles' features are laid side by side, cut to the picture's shape
and, above so many tiles, made smaller. Each frame of a clip gives a quarter of a tile's features.

Source: LLaVA-OneVision, arXiv:2408.03326, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.policy.families.common import TOWER_AND_PROJECTOR, encode_on_one_axis, features_of
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join
from mmgrpo.policy.families.tiny.tiled_images import tiny_llava_onevision
from mmgrpo.types import Prompt

_KEYS: dict[str, Join] = {
    "pixel_values": "list",  # each prompt's tiles are padded to its own largest number
    "image_sizes": "concat",
    "batch_num_images": "concat",
    "pixel_values_videos": "list",
}


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    """Embed all prompts: one call of the encoder for all tiles, and one for all frames."""
    features = {}
    if "pixel_values" in inputs:
        counts = _tiles(inputs["image_sizes"], inputs["batch_num_images"], model.config)
        pictures = [picture for pixels in inputs["pixel_values"] for picture in pixels]
        tiles = torch.cat([picture[:count] for picture, count in zip(pictures, counts, strict=True)])
        output = model.model.get_image_features(
            tiles, inputs["image_sizes"], batch_num_images=inputs["batch_num_images"], return_dict=True
        )
        features[model.config.image_token_id] = features_of(output)
    if "pixel_values_videos" in inputs:
        clips = [clip for pixels in inputs["pixel_values_videos"] for clip in pixels]
        features[model.config.video_token_id] = _clip_features(model.model, clips)
    return encode_on_one_axis(model, prompts, features)


def _clip_features(base: Any, clips: Sequence[Tensor]) -> Float[Tensor, "F D"]:
    """Encode clips of any lengths in one call: each frame as a clip of its own, and one line's end after each clip."""
    lengths = [len(clip) for clip in clips]
    features = features_of(base.get_video_features(torch.cat(list(clips))[:, None], return_dict=True))
    # newer versions of transformers end each clip, which is here each frame, themselves
    frames = features.view(sum(lengths), -1, features.shape[-1])[:, : _features_per_frame(base.config)]
    end = base.image_newline[None].to(features)
    return torch.cat([part for clip in frames.split(lengths) for part in (clip.flatten(0, 1), end)])


def _side(config: Any) -> int:
    """Patches along the side of a tile."""
    return config.vision_config.image_size // config.vision_config.patch_size


def _features_per_frame(config: Any) -> int:
    return ((_side(config) + 1) // 2) ** 2


def _tiles(sizes: Tensor, together: Tensor, config: Any) -> list[int]:
    """How many tiles each picture has: one where its prompt's processor was told of several pictures."""
    from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

    alone = [n == 1 for n in together.tolist() for _ in range(n)]
    return [
        image_size_to_num_patches(size, config.image_grid_pinpoints, config.vision_config.image_size) if tiled else 1
        for size, tiled in zip(sizes.tolist(), alone, strict=True)
    ]


def _count_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    counts = {"image": 0, "video": 0}
    inputs = prompt.model_inputs
    if "pixel_values" in inputs:
        sizes, together = (torch.as_tensor(inputs[key]) for key in ("image_sizes", "batch_num_images"))
        counts["image"] = _packed_count(sizes, _tiles(sizes, together, config), config)
    if "pixel_values_videos" in inputs:
        counts["video"] = sum(len(c) * _features_per_frame(config) + 1 for c in inputs["pixel_values_videos"])
    return counts


def _packed_count(sizes: Tensor, tiles: Sequence[int], config: Any) -> int:
    """Let the model's own rule pack features of width one: how it cuts and shrinks is a matter of rounding."""
    from transformers import LlavaOnevisionModel

    thin = [torch.zeros(count, _side(config) ** 2, 1) for count in tiles]
    packed, _ = LlavaOnevisionModel.pack_image_features(
        SimpleNamespace(config=config),  # type: ignore[arg-type]
        thin,
        sizes,
        image_newline=torch.zeros(1),
        vision_aspect_ratio=config.vision_aspect_ratio,
    )
    return sum(map(len, packed))


FAMILIES = (
    FamilySpec(
        name="llava_onevision",
        kinds=frozenset({"image", "video"}),
        parts={**TOWER_AND_PROJECTOR, "projector": ("model.multi_modal_projector.", "model.image_newline")},
        keys=_KEYS,
        decoder="model.language_model",
        axes=1,
        layout="packed",
        encode_media=_encode_media,
        media_tokens=lambda config: {"image": (config.image_token_id,), "video": (config.video_token_id,)},
        count_features=_count_features,
        counts_images=True,
        tiny=tiny_llava_onevision,
    ),
)
"""The records of this file."""
