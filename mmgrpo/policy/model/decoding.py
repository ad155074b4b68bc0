"""Decoding with a prefix cache: each prompt is computed once, and its keys are read by all G completions in place.

Two decoders with one face. :class:`PrefixDecoder` keeps one copy of each prompt's keys and values
(:class:`PrefixCache`) and one growing cache per completion. :class:`CacheDecoder` is for layouts that cannot share
attention: it runs the encoders and the prompt once, then repeats transformers' cache. Neither samples, and neither
knows when to stop. Which row continues which prompt is known on the host, so that no step waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.policy.attention.interface import AttentionPlan, build_plan
from mmgrpo.policy.attention.layout import Span, spans_of
from mmgrpo.policy.attention.prefix import attend_partial, key_mask, pad_width
from mmgrpo.policy.families.spec import EncodedPrompt, PlacedPrompt
from mmgrpo.policy.model.forward import PackedForward
from mmgrpo.policy.patches import cache_keyword
from mmgrpo.types import Prompt

GROWTH = 32
"""Tokens by which a completion cache first grows; it doubles after that."""
KeysValues = tuple[Float[Tensor, "N J P D"], Float[Tensor, "N J P D"]]


class PrefixCache:
    """N prompts and the R rows that continue them.

    Args:
        layers: Keys and values of a packed row of prompts, by layer: ``[T, J, D]`` and ``[T, J, W]``.
        spans: Where each prompt stands in that row.
        group: The prompt of each row, rising.
    """

    def __init__(
        self, layers: Mapping[int, tuple[Tensor, Tensor]], spans: Sequence[Span], group: Sequence[int]
    ) -> None:
        self.group = list(group)
        self.lengths = [s.prompt for s in spans]
        first = next(iter(layers.values()))[0]
        self._device, self._dtype = first.device, first.dtype
        index = _padded_rows(spans).to(self._device)
        self._layers: dict[int, KeysValues] = {
            layer: (_gathered(k, index, v.shape[-1]), _gathered(v, index, k.shape[-1]))
            for layer, (k, v) in layers.items()
        }
        self._arrange()

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, and with them the prompts that nobody continues."""
        self.group = [self.group[i] for i in rows]
        alive = sorted(set(self.group))
        if len(alive) < len(self.lengths):
            self.lengths = [self.lengths[i] for i in alive]
            longest, index = max(self.lengths, default=0), torch.tensor(alive, dtype=torch.long).to(self._device)
            self._layers = {
                layer: (k[:, :, :longest].index_select(0, index), v[:, :, :longest].index_select(0, index))
                for layer, (k, v) in self._layers.items()
            }
            place = {prompt: i for i, prompt in enumerate(alive)}
            self.group = [place[i] for i in self.group]
        self._arrange()

    def attend(
        self, layer: int, query: Float[Tensor, "R J r D"], scale: float
    ) -> tuple[Float[Tensor, "R J r D"], Float[Tensor, "R J r"]]:
        """Attend from each row to its prompt.

        Args:
            layer: Whose keys.
            query: One query per row and head; r heads share a key head.
            scale: Factor of the scores.

        Returns:
            Outputs, as wide as the wider of keys and values, and each query's log-sum-exp.
        """
        k, v = self._layers[layer]
        ratio = query.shape[2]
        # queries of one prompt stand side by side, so that its keys are read once for all of them
        out, lse = attend_partial(self._by_prompt(pad_width(query, k.shape[-1])), k, v, scale, mask=self._mask)
        return self._by_row(out, ratio), self._by_row(lse[..., None], ratio)[..., 0]

    def _arrange(self) -> None:
        """Give each row a slot beside the other rows of its prompt."""
        counts = Counter(self.group)
        self._most = max(counts.values(), default=0)
        self._row_of_slot: Tensor | None = None
        if len(self.group) != self._most * len(self.lengths):  # else rows stand in their slots already
            starts = [0]
            for prompt in range(len(self.lengths)):
                starts.append(starts[-1] + counts[prompt])
            slots = torch.tensor([p * self._most + i - starts[p] for i, p in enumerate(self.group)])
            rows = torch.zeros(self._most * len(self.lengths), dtype=torch.long)
            rows[slots] = torch.arange(len(slots))
            self._slot_of_row, self._row_of_slot = slots.to(self._device), rows.to(self._device)
        longest = max(self.lengths, default=0)
        self._mask = key_mask(self.lengths, longest, self._dtype, self._device)

    def _by_prompt(self, x: Float[Tensor, "R J r D"]) -> Float[Tensor, "N J mr D"]:
        slots = x if self._row_of_slot is None else x.index_select(0, self._row_of_slot)
        return slots.unflatten(0, (-1, self._most)).transpose(1, 2).flatten(2, 3)

    def _by_row(self, x: Float[Tensor, "N J mr D"], ratio: int) -> Float[Tensor, "R J r D"]:
        slots = x.unflatten(2, (self._most, ratio)).transpose(1, 2).flatten(0, 1)
        return slots if self._row_of_slot is None else slots.index_select(0, self._slot_of_row)


def _padded_rows(spans: Sequence[Span]) -> Tensor:
    """Row index of each prompt's tokens, ``[N, P]``; padding repeats the first."""
    steps = torch.arange(max(s.prompt for s in spans)).expand(len(spans), -1)
    lengths, starts = (torch.tensor(x)[:, None] for x in ([s.prompt for s in spans], [s.start for s in spans]))
    return starts + steps.masked_fill(steps >= lengths, 0)


def _gathered(x: Float[Tensor, "T J D"], index: Tensor, width: int) -> Float[Tensor, "N J P D"]:
    rows = x.index_select(0, index.flatten()).unflatten(0, index.shape)
    return pad_width(rows.transpose(1, 2), max(x.shape[-1], width)).contiguous()


class _Recording:
    """A prefill's plan that remembers each layer's keys and values."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.plan = plan
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def max_span(self) -> int:
        """That of the plan."""
        return self.plan.max_span

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend by the plan."""
        self.layers[layer] = (k, v)
        return self.plan.attend(layer, q, k, v, scale)


class PrefixDecoder:
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
        encoded = module.encode_media(prompts)
        spans = spans_of([(len(p.token_ids), ()) for p in prompts])
        recording = _Recording(build_plan(spans, device))
        hidden = module.packed_language(
            torch.cat([e.embeddings for e in encoded]),
            torch.cat([e.positions for e in encoded], dim=1),
            recording,
            [PlacedPrompt(encoded=e, row=0, start=s.start) for e, s in zip(encoded, spans, strict=True)],
        )
        last = torch.tensor([s.first_completion - 1 for s in spans], device=device)
        group = _groups(counts)
        self._prefixes = PrefixCache(recording.layers, spans, group)
        self._completions: dict[int, tuple[Tensor, Tensor]] = {}
        index = torch.tensor(group).to(device)
        self.first_logits: Float[Tensor, "R V"] = module.head(hidden.index_select(0, last)).index_select(0, index)
        self._next_position = torch.stack([e.positions.max() + 1 for e in encoded]).index_select(0, index)

    def step(self, token_ids: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        """Feed one token to each row; return the logits of the next."""
        with torch.inference_mode():  # hundreds of small calls: what each saves in bookkeeping is felt
            return self._step(token_ids)

    def _step(self, token_ids: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        embeddings = self.module.embed(token_ids)
        positions = (self._next_position + self.step_index).expand(self.module.family.axes, -1)
        hidden = self.module.packed_language(embeddings, positions, self)
        self.step_index += 1
        return self.module.head(hidden)

    @property
    def max_span(self) -> int:
        """Tokens of the longest prompt with all that was written after it."""
        return max(self._prefixes.lengths) + self.step_index + 1

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        index = torch.tensor(rows).to(self._next_position.device)
        self._prefixes.keep(rows)
        self._completions = {
            layer: (k.index_select(0, index), v.index_select(0, index)) for layer, (k, v) in self._completions.items()
        }
        self._next_position = self._next_position.index_select(0, index)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Float[Tensor, "R H D"]:
        """Attend from one token per row to its prompt (shared) and to its own past (not shared).

        The prompt stands in the softmax as one more key: its score is the log-sum-exp of the prompt's scores, its
        value what the prompt alone gives.
        """
        query = q.unflatten(1, (k.shape[1], -1))
        out, lse = (x.flatten(0, 1) for x in self._prefixes.attend(layer, query, scale))
        past_k, past_v = (x.flatten(0, 1) for x in self._extend(layer, k, v))
        scores = torch.baddbmm(q.new_empty(1), query.flatten(0, 1), past_k.transpose(1, 2), beta=0, alpha=scale)
        weights = torch.cat([lse[..., None], scores], -1).softmax(-1).to(v.dtype)
        mixed = torch.baddbmm(out[..., : v.shape[-1]] * weights[..., :1], weights[..., 1:], past_v)
        return mixed.view(q.shape[0], q.shape[1], -1)

    def _extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write this token's key and value, and return the row's whole past."""
        t = self.step_index
        past = self._completions.get(layer)
        if past is None or past[0].shape[2] <= t:
            past = (_longer(k, past and past[0]), _longer(v, past and past[1]))
            self._completions[layer] = past
        past[0][:, :, t], past[1][:, :, t] = k, v
        return past[0][:, :, : t + 1], past[1][:, :, : t + 1]


def _longer(x: Float[Tensor, "R J D"], past: Float[Tensor, "R J L D"] | None) -> Float[Tensor, "R J M D"]:
    """Room for more tokens: a first cache, or one of twice the length."""
    if past is None:
        return x.new_zeros(x.shape[0], x.shape[1], GROWTH, x.shape[2])
    return torch.cat([past, torch.zeros_like(past)], 2)


def _groups(counts: Sequence[int]) -> list[int]:
    """The prompt of each row."""
    return [prompt for prompt, count in enumerate(counts) for _ in range(count)]


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
        encoded = module.encode_media(prompts)
        hidden = self._prefill(encoded)
        group = torch.tensor(_groups(counts)).to(device)
        self.first_logits = module.head(hidden[:, -1]).index_select(0, group)
        self._next_position = torch.stack([e.positions.max() + 1 for e in encoded]).index_select(0, group)
        self._cache.reorder_cache(group)  # layers with a recurrent state have this one alone
        self._mask = self._mask.index_select(0, group)

    def _prefill(self, encoded: list[EncodedPrompt]) -> Float[Tensor, "N L D"]:
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
        placed = [PlacedPrompt(encoded=e, row=i, start=p) for i, (e, p) in enumerate(zip(encoded, pads, strict=True))]
        arguments = {"attention_mask": self._mask, "use_cache": True, self._keyword: self._cache}
        return self.module.language(embeddings, positions, placed, **arguments)

    def step(self, token_ids: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        """Feed one token to each row; return the logits of the next."""
        embeddings = self.module.embed(token_ids)[:, None]
        positions = (self._next_position + self.step_index)[None, :, None]
        positions = positions.expand(self.module.family.axes, -1, -1)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        arguments = {"attention_mask": self._mask, "use_cache": True, self._keyword: self._cache}
        hidden = self.module.language(embeddings, positions, **arguments)
        self.step_index += 1
        return self.module.head(hidden[:, -1])

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        index = torch.tensor(rows).to(self._mask.device)
        self._cache.reorder_cache(index)
        self._mask, self._next_position = self._mask[index], self._next_position[index]


def start_decoding(
    module: PackedForward, prompts: Sequence[Prompt], counts: Sequence[int]
) -> PrefixDecoder | CacheDecoder:
    """Prefill prompts, each once, with the decoder that the layout allows."""
    decoder = PrefixDecoder if module.layout == "packed" else CacheDecoder
    return decoder(module, prompts, counts)
