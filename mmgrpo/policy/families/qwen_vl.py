"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: M-RoPE on three axes, a window-merging picture and video encoder.

Most layers of Qwen3.5 carry a state from token to token (gated delta rule) instead of attending: a group shares no
attention (``rows``), while pictures still pass the encoder once per prompt.

Source: Qwen2-VL, arXiv:2409.12191, section 2.1 (M-RoPE); Qwen3-VL adds deepstack features to the first layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.policy.compat import joined
from mmgrpo.policy.families.mrope import after_videos, timed
from mmgrpo.policy.families.pixels import set_pixel_limits
from mmgrpo.policy.families.qwen3_vl_tiny import tiny_qwen3_5, tiny_qwen3_vl
from mmgrpo.policy.families.qwen_vl_tiny import tiny_qwen2_5_vl, tiny_qwen2_vl
from mmgrpo.policy.families.record import Encoded, Family, Key, Layout, Placed, join_inputs
from mmgrpo.types import Prompt

VISUAL_KEYS = {
    "pixel_values": Key(feeds="encoder", join="concat"),
    "image_grid_thw": Key(feeds="encoder", join="concat"),
    "pixel_values_videos": Key(feeds="encoder", join="concat"),
    "video_grid_thw": Key(feeds="encoder", join="concat"),
    "second_per_grid_ts": Key(feeds="language", join="concat"),
    "mm_token_type_ids": Key(feeds="language", join="tokens"),
}
"""Keys of pictures and videos, which all Qwen families share."""
PARTS = {
    "vision": ("model.visual.",),
    "projector": ("model.visual.merger.", "model.visual.deepstack_merger_list."),
    "language": ("model.language_model.", "lm_head."),
}
_MOST_POSITIONS = 2048
_KNOWN_POSITIONS: WeakKeyDictionary[Any, dict[Any, Tensor]] = WeakKeyDictionary()
"""By model, held weakly: a policy that is dropped must not stay in memory for its positions."""
FEATURES = {
    "image": ("pixel_values", "image_grid_thw", "get_image_features", "image_token_id"),
    "video": ("pixel_values_videos", "video_grid_thw", "get_video_features", "video_token_id"),
}
"""By kind: keys of pixels and sizes, the model's method, and the name of the placeholder."""


def _media_tokens(config: Any) -> Mapping[str, tuple[int, ...]]:
    return {"image": (config.image_token_id,), "video": (config.video_token_id,)}


def count_visual_features(prompt: Prompt, config: Any) -> Mapping[str, int]:
    """Features of a prompt's pictures and videos."""
    merge = config.vision_config.spatial_merge_size**2
    counts = {}
    for kind, (_, grid, _, _) in FEATURES.items():
        sizes = prompt.model_inputs.get(grid)
        counts[kind] = 0 if sizes is None else int(torch.as_tensor(sizes).prod(-1).sum()) // merge
    return counts


def _encode(model: Any, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Embed all prompts in one pass: one call of the encoder per kind, features scattered over placeholders."""
    embed = model.get_input_embeddings()
    device = embed.weight.device
    ids = torch.cat([p.token_ids for p in prompts]).to(device)
    embeddings = embed(ids)
    inputs = join_inputs(_BY_NAME[model.config.model_type], prompts, device)
    visual = torch.zeros_like(ids, dtype=torch.bool)
    deep: Tensor | None = None
    for pixels, grid, method, token in FEATURES.values():
        if inputs.get(pixels) is None:
            continue
        output = getattr(model.model, method)(inputs[pixels], inputs[grid], return_dict=True)
        features = joined(output.pooler_output).to(embeddings.dtype)
        mask = ids == getattr(model.config, token)
        embeddings = embeddings.masked_scatter(mask[:, None], features)
        visual = visual | mask
        deepstack = getattr(output, "deepstack_features", None)
        if deepstack is not None:
            deep = scatter_deepstack(deep, torch.stack([joined(layer) for layer in deepstack]), mask)
    lengths = [len(p.token_ids) for p in prompts]
    extras = [{} for _ in prompts]
    if deep is not None:
        masks, layers = visual.split(lengths), deep.split(lengths, dim=1)
        extras = [{"visual": m, "deepstack": d[:, m]} for m, d in zip(masks, layers, strict=True)]
    return [
        Encoded(embeddings=e, positions=mrope_positions(model, p).to(device), extras=x)
        for p, e, x in zip(prompts, embeddings.split(lengths), extras, strict=True)
    ]


def scatter_deepstack(deep: Tensor | None, features: Tensor, mask: Tensor) -> Tensor:
    """Put features of inner layers, ``[layers, F, D]``, where their placeholders stand among all tokens."""
    if deep is None:
        deep = features.new_zeros(features.shape[0], len(mask), features.shape[-1])
    return deep.masked_scatter(mask[None, :, None].expand_as(deep), features)


def deepstack_inputs(placed: Sequence[Placed], shape: tuple[int, int]) -> dict[str, Any]:
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
    grids = tuple(_frozen(prompt.model_inputs.get(k)) for k in ("image_grid_thw", "video_grid_thw"))
    seconds = _frozen(prompt.model_inputs.get("second_per_grid_ts"))
    return _mrope(model.model, tuple(torch.as_tensor(types).reshape(-1).tolist()), grids, seconds)


def _frozen(value: Any) -> Any:
    if value is None:
        return None
    rows = torch.as_tensor(value).tolist()
    return tuple(tuple(r) if isinstance(r, list) else r for r in rows)


def _mrope(base: Any, types: tuple[int, ...], grids: tuple[Any, Any], seconds: Any) -> Int[Tensor, "3 P"]:
    """Positions by transformers' rule, remembered: pictures of one size share them, and the rule is a Python loop."""
    known = _KNOWN_POSITIONS.setdefault(base, {})
    key = (types, grids, seconds)
    if key not in known:
        if len(known) >= _MOST_POSITIONS:
            known.clear()
        known[key] = _mrope_anew(base, types, grids, seconds)
    return known[key]


def _mrope_anew(base: Any, types: tuple[int, ...], grids: tuple[Any, Any], seconds: Any) -> Int[Tensor, "3 P"]:
    images, videos = (None if g is None else torch.tensor(g) for g in grids)
    ids = torch.zeros(1, len(types), dtype=torch.long)
    arguments = {"image_grid_thw": images, "video_grid_thw": videos}
    if seconds is not None:
        arguments["second_per_grid_ts"] = torch.ones(len(seconds))
    found, _ = base.get_rope_index(ids, mm_token_type_ids=torch.tensor(types)[None], **arguments)
    base.rope_deltas = None
    positions = found[:, 0]
    if seconds is not None:
        positions = timed(positions, types, seconds, base.config.vision_config.tokens_per_second)
    return after_videos(positions, types)


def _row_positions(model: Any, prompt: Prompt, length: int) -> Int[Tensor, "3 1 L"] | None:
    """Positions of a plain row with videos; without, transformers' own are right."""
    if "video_grid_thw" not in prompt.model_inputs:
        return None
    positions = mrope_positions(model, prompt)
    more = positions.max() + 1 + torch.arange(length)
    return torch.cat([positions, more.expand(3, -1)], dim=1)[:, None]


def _family(name: str, tiny: Any, layout: Layout = "packed") -> Family:
    return Family(
        name=name,
        kinds=frozenset({"image", "video"}),
        parts=PARTS,
        keys=VISUAL_KEYS,
        decoder="model.language_model",
        axes=3,
        layout=layout,
        encode=_encode,
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
    _family("qwen3_5", partial(tiny_qwen3_5, "Qwen3_5"), layout="rows"),
    _family("qwen3_5_moe", partial(tiny_qwen3_5, "Qwen3_5Moe"), layout="rows"),
)
"""The records of this file."""
_BY_NAME = {family.name: family for family in FAMILIES}
