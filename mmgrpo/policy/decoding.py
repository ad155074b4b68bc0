"""Decoding with shared prompts: each prompt is computed once, and its keys are read by all G completions in place.

Two decoders with one face. :class:`SharedDecoder` keeps one copy of each prompt's keys and values and one growing
cache per completion. :class:`CacheDecoder` is for layouts that cannot share attention: it runs the encoders and the
prompt once, then repeats transformers' cache. Neither samples, and neither knows when to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.policy.compat import cache_keyword
from mmgrpo.policy.families.record import Encoded, Placed
from mmgrpo.policy.forward import PackedForward
from mmgrpo.policy.layout import Span, spans_of
from mmgrpo.policy.plan import Plan, build_plan
from mmgrpo.types import Prompt

GROWTH = 32
"""Tokens by which a completion cache first grows; it doubles after that."""


class _Recording:
    """A prefill's plan that remembers each layer's keys and values."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def reach(self) -> int:
        """That of the plan."""
        return self.plan.reach

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend by the plan."""
        self.layers[layer] = (k, v)
        return self.plan.attend(layer, q, k, v, scale)


class SharedDecoder:
    """Decode rows that share their prompts.

    Args:
        module: The policy's forward.
        prompts: N prompts.
        counts: Completions of each.
    """

    def __init__(self, module: PackedForward, prompts: Sequence[Prompt], counts: Sequence[int]) -> None:
        self.module = module
        self.step_index = 0
        device = module.device
        encoded = module.encode(prompts)
        spans = spans_of([(len(p.token_ids), ()) for p in prompts])
        recording = _Recording(build_plan(spans, device))
        hidden = module.packed_language(
            torch.cat([e.embeddings for e in encoded]),
            torch.cat([e.positions for e in encoded], dim=1),
            recording,
            [Placed(encoded=e, row=0, start=s.start) for e, s in zip(encoded, spans, strict=True)],
        )
        last = torch.tensor([s.first_completion - 1 for s in spans], device=device)
        self.first_logits: Float[Tensor, "N V"] = module.head(hidden.index_select(0, last))
        self.next_position = torch.stack([e.positions.max() + 1 for e in encoded])
        self.group = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(list(counts))).to(device)
        self._prompts, self._seen = _padded(recording, spans, device)
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._arrange()

    def step(self, token_ids: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        """Feed one token to each row; return the logits of the next."""
        embeddings = self.module.model.get_input_embeddings()(token_ids)
        positions = (self.next_position[self.group] + self.step_index).expand(self.module.family.axes, -1)
        hidden = self.module.packed_language(embeddings, positions, self)
        self.step_index += 1
        return self.module.head(hidden)

    @property
    def reach(self) -> int:
        """Tokens of the longest prompt with all that was written after it."""
        return self._seen.shape[1] + self.step_index + 1

    def keep(self, rows: Int[Tensor, "r"]) -> None:
        """Drop all rows but these."""
        self.group = self.group.index_select(0, rows)
        self._own = {layer: (k.index_select(0, rows), v.index_select(0, rows)) for layer, (k, v) in self._own.items()}
        alive = torch.unique(self.group)
        if len(alive) < len(self._seen):  # prompts that nobody continues leave too
            self._prompts = {
                layer: (k.index_select(0, alive), v.index_select(0, alive)) for layer, (k, v) in self._prompts.items()
            }
            self._seen, self.next_position = self._seen[alive], self.next_position[alive]
            self.group = torch.searchsorted(alive, self.group)
        self._arrange()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Float[Tensor, "R H D"]:
        """Attend from one token per row to its prompt (shared) and to its own past (not shared)."""
        rows, heads, width = q.shape
        shared = k.shape[1]
        ratio = heads // shared
        own_k, own_v = self._extend(layer, k, v)
        prompt_k, prompt_v = self._prompts[layer]
        query = q.view(rows, shared, ratio, width)
        # queries of one prompt stand side by side, so that its keys are read once for all of them
        scores = self._by_prompt(query) @ prompt_k.transpose(-1, -2)
        scores = scores.masked_fill(~self._seen[:, None, None, :], float("-inf"))
        scores = torch.cat([self._by_row(scores, ratio), query @ own_k.transpose(-1, -2)], dim=-1) * scale
        weights = torch.softmax(scores.float(), dim=-1).to(q.dtype)
        length = prompt_k.shape[2]
        out = self._by_row(self._by_prompt(weights[..., :length]) @ prompt_v, ratio)
        return (out + weights[..., length:] @ own_v).reshape(rows, heads, width)

    def _arrange(self) -> None:
        """Give each row a slot beside the other rows of its prompt."""
        counts = torch.bincount(self.group, minlength=len(self._seen))
        starts = torch.cumsum(counts, 0) - counts
        most = int(counts.max()) if len(counts) else 0
        inside = torch.arange(len(self.group), device=self.group.device) - starts[self.group]
        self._slot_of_row = self.group * most + inside
        slots = torch.zeros(len(counts) * most, dtype=torch.long, device=self.group.device)
        slots[self._slot_of_row] = torch.arange(len(self.group), device=self.group.device)
        self._row_of_slot, self._most = slots, most

    def _by_prompt(self, x: Float[Tensor, "R J r L"]) -> Float[Tensor, "N J mr L"]:
        padded = x.index_select(0, self._row_of_slot).unflatten(0, (-1, self._most))
        return padded.transpose(1, 2).flatten(2, 3)

    def _by_row(self, x: Float[Tensor, "N J mr L"], ratio: int) -> Float[Tensor, "R J r L"]:
        slots = x.unflatten(2, (self._most, ratio)).transpose(1, 2).flatten(0, 1)
        return slots.index_select(0, self._slot_of_row)

    def _extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write this token's key and value, and return the row's whole past."""
        t = self.step_index
        own = self._own.get(layer)
        if own is None or own[0].shape[2] <= t:
            room = GROWTH if own is None else own[0].shape[2]
            empty = k.new_zeros(k.shape[0], k.shape[1], room, k.shape[2])
            own = (empty, empty.clone()) if own is None else tuple(torch.cat([o, empty], 2) for o in own)
            self._own[layer] = own  # type: ignore[assignment]
        own[0][:, :, t], own[1][:, :, t] = k, v
        return own[0][:, :, : t + 1], own[1][:, :, : t + 1]


def _padded(
    recording: _Recording, spans: tuple[Span, ...], device: torch.device
) -> tuple[dict[int, tuple[Tensor, Tensor]], Tensor]:
    longest = max(s.prompt for s in spans)
    lengths = torch.tensor([s.prompt for s in spans])
    index = torch.arange(longest).expand(len(spans), -1)
    seen = index < lengths[:, None]
    index = (torch.where(seen, index, 0) + torch.tensor([s.start for s in spans])[:, None]).to(device)
    layers = {
        layer: tuple(
            x.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2).contiguous() for x in kv
        )
        for layer, kv in recording.layers.items()
    }
    return layers, seen.to(device)  # type: ignore[return-value]


class CacheDecoder:
    """Decode rows of their own with transformers' cache; prompts and encoders are still computed once.

    Args:
        module: The policy's forward.
        prompts: N prompts.
        counts: Completions of each.
    """

    def __init__(self, module: PackedForward, prompts: Sequence[Prompt], counts: Sequence[int]) -> None:
        from transformers import DynamicCache

        self.module = module
        self.step_index = 0
        device = module.device
        self._keyword = cache_keyword(module.decoder)
        self._cache: Any = DynamicCache(config=module.decoder.config)
        encoded = module.encode(prompts)
        hidden = self._prefill(encoded)
        self.first_logits = module.head(hidden[:, -1])
        self.group = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(list(counts))).to(device)
        self.next_position = torch.stack([e.positions.max() + 1 for e in encoded])
        self._cache.batch_select_indices(self.group)
        self._mask = self._mask.index_select(0, self.group)

    def _prefill(self, encoded: list[Encoded]) -> Float[Tensor, "N L D"]:
        # padding on the left: layers with a recurrent state must end on the last real token
        longest = max(e.embeddings.shape[0] for e in encoded)
        pads = [longest - e.embeddings.shape[0] for e in encoded]
        embeddings = torch.stack(
            [torch.nn.functional.pad(e.embeddings, (0, 0, p, 0)) for e, p in zip(encoded, pads, strict=True)]
        )
        positions = torch.stack(
            [torch.nn.functional.pad(e.positions, (p, 0)) for e, p in zip(encoded, pads, strict=True)], 1
        )
        columns = torch.arange(longest, device=embeddings.device)
        self._mask = (columns >= torch.tensor(pads, device=embeddings.device)[:, None]).long()
        placed = [Placed(encoded=e, row=i, start=p) for i, (e, p) in enumerate(zip(encoded, pads, strict=True))]
        arguments = {"attention_mask": self._mask, "use_cache": True, self._keyword: self._cache}
        return self.module.language(embeddings, positions, placed, **arguments)

    def step(self, token_ids: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        """Feed one token to each row; return the logits of the next."""
        embeddings = self.module.model.get_input_embeddings()(token_ids)[:, None]
        positions = (self.next_position[self.group] + self.step_index)[None, :, None]
        positions = positions.expand(self.module.family.axes, -1, -1)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        arguments = {"attention_mask": self._mask, "use_cache": True, self._keyword: self._cache}
        hidden = self.module.language(embeddings, positions, **arguments)
        self.step_index += 1
        return self.module.head(hidden[:, -1])

    def keep(self, rows: Int[Tensor, "r"]) -> None:
        """Drop all rows but these."""
        self._cache.batch_select_indices(rows)
        self._mask, self.group = self._mask[rows], self.group[rows]


def start_decoding(
    module: PackedForward, prompts: Sequence[Prompt], counts: Sequence[int]
) -> SharedDecoder | CacheDecoder:
    """Prefill prompts, each once, with the decoder that the layout allows."""
    decoder = SharedDecoder if module.layout == "packed" else CacheDecoder
    return decoder(module, prompts, counts)
