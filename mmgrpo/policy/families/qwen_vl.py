"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: M-RoPE on three axes, a window-merging image and video encoder.

Most layers of Qwen3.5 carry a state from token to token (gated delta rule) instead of attending: a group shares no
attention (``unpacked``), while images still pass the encoder once per prompt.

transformers 5.3 and later let the text after a video begin at the larger side of a frame, inside the time of the
video, while its ``generate`` goes on behind the largest position. The checkpoints were trained, and other engines run,
with one rule for both: whatever follows begins at the largest position so far plus one.

Source: Qwen2-VL, arXiv:2409.12191, section 2.1 (M-RoPE); Qwen2.5-VL, arXiv:2502.13923, section 2.1.2; Qwen3-VL adds
deepstack features to the first layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.errors import explain
from mmgrpo.policy.families.common import embed_prompts, set_pixel_limits
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join, Layout, PlacedPrompt
from mmgrpo.policy.families.tiny.qwen import tiny_qwen2_5_vl, tiny_qwen2_vl, tiny_qwen3_5, tiny_qwen3_vl
from mmgrpo.policy.patches import concatenate
from mmgrpo.types import Prompt

VISUAL_KEYS: dict[str, Join] = {
    "pixel_values": "concat",
    "image_grid_thw": "concat",
    "pixel_values_videos": "concat",
    "video_grid_thw": "concat",
    "second_per_grid_ts": "concat",
    "mm_token_type_ids": "tokens",
}
"""Keys of images and videos, which all Qwen families share."""
PARTS = {
    "vision": ("model.visual.",),
    "projector": ("model.visual.merger.", "model.visual.deepstack_merger_list."),
    "language": ("model.language_model.", "lm_head."),
}
_MAX_CACHED_POSITIONS = 2048
_CACHED_POSITIONS: WeakKeyDictionary[Any, dict[Any, Tensor]] = WeakKeyDictionary()
"""By model, held weakly: a policy that is dropped must not stay in memory for its positions."""
_FEATURES = {
    "image": ("pixel_values", "image_grid_thw", "get_image_features", "image_token_id"),
    "video": ("pixel_values_videos", "video_grid_thw", "get_video_features", "video_token_id"),
}
"""By kind: keys of pixels and sizes, the model's method, and the name of the placeholder."""


def _media_tokens(config: Any) -> Mapping[str, tuple[int, ...]]:
    return {"image": (config.image_token_id,), "video": (config.video_token_id,)}


def count_visual_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    """Features of a prompt's images and videos."""
    merge = config.vision_config.spatial_merge_size**2
    counts = {}
    for kind, (_, grid, _, _) in _FEATURES.items():
        sizes = prompt.model_inputs.get(grid)
        counts[kind] = 0 if sizes is None else int(torch.as_tensor(sizes).prod(-1).sum()) // merge
    return counts


def encode_visual(
    base: Any, config: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]
) -> tuple[dict[int, Float[Tensor, "_ D"]], list[dict[str, Tensor]]]:
    """Run the encoder over the images of all prompts in one call, and over their videos in another.

    Args:
        base: What has the encoder.
        config: The model's config.
        prompts: In order.
        inputs: Their joined keys.

    Returns:
        Features by placeholder id, and for each prompt what its inner layers feed to the decoder, if they do.
    """
    features: dict[int, Tensor] = {}
    visual: Tensor | None = None
    deep: Tensor | None = None
    for pixels, grid, method, token in _FEATURES.values():
        if inputs.get(pixels) is None:
            continue
        output = getattr(base, method)(inputs[pixels], inputs[grid], return_dict=True)
        features[getattr(config, token)] = concatenate(output.pooler_output)
        deepstack = getattr(output, "deepstack_features", None)
        if deepstack is not None:
            layers = torch.stack([concatenate(layer) for layer in deepstack])
            mask = torch.cat([p.token_ids for p in prompts]).to(layers.device) == getattr(config, token)
            visual = mask if visual is None else visual | mask
            deep = _scatter_deepstack(deep, layers, mask)
    if visual is None or deep is None:
        return features, [{} for _ in prompts]
    lengths = [len(p.token_ids) for p in prompts]
    split = zip(visual.split(lengths), deep.split(lengths, dim=1), strict=True)
    return features, [{"visual": mask, "deepstack": layers[:, mask]} for mask, layers in split]


def _scatter_deepstack(
    deep: Float[Tensor, "layers T D"] | None, features: Float[Tensor, "layers F D"], mask: Bool[Tensor, "T"]
) -> Float[Tensor, "layers T D"]:
    """Put features of inner layers where their placeholders stand among all tokens."""
    if deep is None:
        deep = features.new_zeros(features.shape[0], len(mask), features.shape[-1])
    return deep.masked_scatter(mask[None, :, None].expand_as(deep), features)


def _encode_media(model: Any, prompts: Sequence[Prompt], inputs: Mapping[str, Any]) -> list[EncodedPrompt]:
    features, extras = encode_visual(model.model, model.config, prompts, inputs)
    return [
        EncodedPrompt(embeddings=e, positions=mrope_positions(model, p).to(e.device), extras=x)
        for p, e, x in zip(prompts, embed_prompts(model, prompts, features), extras, strict=True)
    ]


def deepstack_inputs(placed: Sequence[PlacedPrompt], shape: tuple[int, int]) -> dict[str, Any]:
    """Deepstack features of Qwen3-VL, in the order of the input's visual tokens."""
    deep = [p.encoded.extras["deepstack"] for p in placed if "deepstack" in p.encoded.extras]
    if not deep:
        return {}
    mask = torch.zeros(shape, dtype=torch.bool, device=deep[0].device)
    for p in placed:
        if "visual" in p.encoded.extras:
            visual = p.encoded.extras["visual"]
            mask[p.row, p.start : p.start + len(visual)] = visual
    return {"visual_pos_masks": mask, "deepstack_visual_embeds": list(torch.cat(deep, dim=1))}


def mrope_positions(model: Any, prompt: Prompt) -> Int[Tensor, "3 P"]:
    """M-RoPE positions of the prompt alone; the model's cached ``rope_deltas`` belong to another prompt."""
    types = prompt.model_inputs.get("mm_token_type_ids")
    if types is None or not bool(torch.as_tensor(types).any()):
        return torch.arange(len(prompt.token_ids)).expand(3, -1)
    grids = tuple(_as_tuples(prompt.model_inputs.get(k)) for k in ("image_grid_thw", "video_grid_thw"))
    seconds = _as_tuples(prompt.model_inputs.get("second_per_grid_ts"))
    return _mrope(model.model, tuple(torch.as_tensor(types).reshape(-1).tolist()), grids, seconds)


def _as_tuples(value: Any) -> Any:
    if value is None:
        return None
    rows = torch.as_tensor(value).tolist()
    return tuple(tuple(r) if isinstance(r, list) else r for r in rows)


def _mrope(base: Any, types: tuple[int, ...], grids: tuple[Any, Any], seconds: Any) -> Int[Tensor, "3 P"]:
    """Positions by transformers' rule, cached: images of one size share them, and the rule is a Python loop."""
    cached = _CACHED_POSITIONS.setdefault(base, {})
    key = (types, grids, seconds)
    if key not in cached:
        if len(cached) >= _MAX_CACHED_POSITIONS:
            cached.clear()
        cached[key] = _compute_mrope(base, types, grids, seconds)
    return cached[key]


def _compute_mrope(base: Any, types: tuple[int, ...], grids: tuple[Any, Any], seconds: Any) -> Int[Tensor, "3 P"]:
    images, videos = (None if g is None else torch.tensor(g) for g in grids)
    ids = torch.zeros(1, len(types), dtype=torch.long)
    arguments = {"image_grid_thw": images, "video_grid_thw": videos}
    if seconds is not None:
        arguments["second_per_grid_ts"] = torch.ones(len(seconds))
    counted, _ = base.get_rope_index(ids, mm_token_type_ids=torch.tensor(types)[None], **arguments)
    base.rope_deltas = None
    positions = counted[:, 0]
    if seconds is not None:
        per_second = base.config.vision_config.tokens_per_second
        positions = scale_video_times(positions, types, seconds, per_second)
        _warn_of_shared_times(grids[1], seconds, per_second)
    return resume_after_videos(positions, types)


def _warn_of_shared_times(grids: Any, seconds: Sequence[float], per_second: float) -> None:
    """Tell of frames that one whole position stands for: the model cannot tell when they happen."""
    for grid, pace in zip(grids or (), seconds, strict=False):
        times = {int(step * per_second * pace) for step in range(grid[0])}
        if len(times) < grid[0]:
            warnings.warn(
                explain(
                    "Frames of a video share a time position: their order is lost to the model",
                    where=f"vision_config.tokens_per_second: {per_second:g}",
                    expected=f"at least {1 / per_second:g} s from one pair of frames to the next",
                    got=f"{pace:g} s; {grid[0]} pairs have {len(times)} positions",
                    fix=f"Set data.video.fps to {2 * per_second:g} or less.",
                ),
                stacklevel=2,
            )
            return


def _row_positions(model: Any, prompt: Prompt, length: int) -> Int[Tensor, "3 1 L"] | None:
    """Positions of a plain row with videos; without, transformers' own are right."""
    if "video_grid_thw" not in prompt.model_inputs:
        return None
    positions = mrope_positions(model, prompt)
    more = positions.max() + 1 + torch.arange(length)
    return torch.cat([positions, more.expand(3, -1)], dim=1)[:, None]


def resume_after_videos(positions: Int[Tensor, "3 P"], types: tuple[int, ...]) -> Int[Tensor, "3 P"]:
    """Move what follows a video behind it.

    Args:
        positions: As transformers counts them.
        types: What each token is: 0 text, 1 image, 2 video.

    Returns:
        Positions in which each stretch begins at the largest one before it plus one; the same where no video lasts
        longer than its frames are wide.

    Example:
        >>> import torch
        >>> resume_after_videos(torch.tensor([[0, 1, 9, 2], [0, 1, 1, 2], [0, 1, 1, 2]]), (0, 2, 2, 0))[:, 3]
        tensor([10, 10, 10])
    """
    moved = positions.clone()
    start, shift, largest = 0, 0, -1
    for _, run in groupby(types):
        end = start + len(list(run))
        shift = max(shift, largest + 1 - int(positions[:, start].min()))
        moved[:, start:end] += shift
        largest = max(largest, int(moved[:, start:end].max()))
        start = end
    return moved


def scale_video_times(
    positions: Int[Tensor, "3 P"], types: tuple[int, ...], seconds: Sequence[float], per_second: float
) -> Int[Tensor, "3 P"]:
    """Give each video its own time between grid steps, from positions that were counted with one second for all.

    transformers before 5.20 cuts the seconds down to whole ones; counting them here is right under every version.

    Args:
        positions: As transformers counts them with one second per grid step.
        types: What each token is: 0 text, 1 image, 2 video.
        seconds: Of each video, between two grid steps.
        per_second: Positions per second (``vision_config.tokens_per_second``).

    Returns:
        Positions whose time axis runs at each video's own pace.

    Example:
        >>> import torch
        >>> scale_video_times(torch.tensor([[0, 4, 8], [0, 0, 0], [0, 0, 0]]), (2, 2, 2), [0.5], 4)[0]
        tensor([0, 2, 4])
    """
    paced = positions.clone()
    pace = iter(seconds)
    start = 0
    for kind, run in groupby(types):
        end = start + len(list(run))
        if kind == 2:
            begin = positions[0, start]
            steps = (positions[0, start:end] - begin) / per_second
            paced[0, start:end] = begin + (steps * (per_second * next(pace))).long()
        start = end
    return paced


def _family(name: str, tiny: Any, layout: Layout = "packed") -> FamilySpec:
    return FamilySpec(
        name=name,
        kinds=frozenset({"image", "video"}),
        parts=PARTS,
        keys=VISUAL_KEYS,
        decoder="model.language_model",
        axes=3,
        layout=layout,
        encode_media=_encode_media,
        media_tokens=_media_tokens,
        count_features=count_visual_features,
        language_inputs=deepstack_inputs,
        row_positions=_row_positions,
        set_pixel_limits=set_pixel_limits,
        tiny=tiny,
    )


FAMILIES = (
    _family("qwen2_vl", tiny_qwen2_vl),
    _family("qwen2_5_vl", tiny_qwen2_5_vl),
    _family("qwen3_vl", partial(tiny_qwen3_vl, "Qwen3VL")),
    _family("qwen3_vl_moe", partial(tiny_qwen3_vl, "Qwen3VLMoe")),
    _family("qwen3_5", partial(tiny_qwen3_5, "Qwen3_5"), layout="unpacked"),
    _family("qwen3_5_moe", partial(tiny_qwen3_5, "Qwen3_5Moe"), layout="unpacked"),
)
"""The records of this file."""
