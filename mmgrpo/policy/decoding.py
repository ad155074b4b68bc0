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

from mmgrpo.policy.attention import Attends
from mmgrpo.policy.compat import cache_keyword
from mmgrpo.policy.families.record import Encoded, Placed
from mmgrpo.policy.forward import PackedForward
from mmgrpo.policy.layout import spans_of
from mmgrpo.policy.plan import build_plan
from mmgrpo.policy.readers import SharedPrompts
from mmgrpo.types import Prompt

GROWTH = 32
"""Tokens by which a completion cache first grows; it doubles after that."""


class _Recording:
    """A prefill's plan that remembers each layer's keys and values."""

    def __init__(self, plan: Attends) -> None:
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
        group = _groups(counts)
        self._prompts = SharedPrompts(recording.layers, spans, group)
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        index = torch.tensor(group).to(device)
        self.first_logits: Float[Tensor, "R V"] = module.head(hidden.index_select(0, last)).index_select(0, index)
        self._next_position = torch.stack([e.positions.max() + 1 for e in encoded]).index_select(0, index)

    def step(self, token_ids: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        """Feed one token to each row; return the logits of the next."""
        with torch.inference_mode():  # hundreds of small calls: what each saves in bookkeeping is felt
            return self._step(token_ids)

    def _step(self, token_ids: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        embeddings = self.module.model.get_input_embeddings()(token_ids)
        positions = (self._next_position + self.step_index).expand(self.module.family.axes, -1)
        hidden = self.module.packed_language(embeddings, positions, self)
        self.step_index += 1
        return self.module.head(hidden)

    @property
    def reach(self) -> int:
        """Tokens of the longest prompt with all that was written after it."""
        return max(self._prompts.lengths) + self.step_index + 1

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        index = torch.tensor(rows).to(self._next_position.device)
        self._prompts.keep(rows)
        self._own = {
            layer: (k.index_select(0, index), v.index_select(0, index)) for layer, (k, v) in self._own.items()
        }
        self._next_position = self._next_position.index_select(0, index)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Float[Tensor, "R H D"]:
        """Attend from one token per row to its prompt (shared) and to its own past (not shared).

        The prompt stands in the softmax as one more key: its score is the log-sum-exp of the prompt's scores, its
        value what the prompt alone gives.
        """
        query = q.unflatten(1, (k.shape[1], -1))
        out, lse = (x.flatten(0, 1) for x in self._prompts.attend(layer, query, scale))
        own_k, own_v = (x.flatten(0, 1) for x in self._extend(layer, k, v))
        scores = torch.baddbmm(q.new_empty(1), query.flatten(0, 1), own_k.transpose(1, 2), beta=0, alpha=scale)
        weights = torch.cat([lse[..., None], scores], -1).softmax(-1).to(v.dtype)
        mixed = torch.baddbmm(out[..., : v.shape[-1]] * weights[..., :1], weights[..., 1:], own_v)
        return mixed.view(q.shape[0], q.shape[1], -1)

    def _extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write this token's key and value, and return the row's whole past."""
        t = self.step_index
        own = self._own.get(layer)
        if own is None or own[0].shape[2] <= t:
            own = (_longer(k, own and own[0]), _longer(v, own and own[1]))
            self._own[layer] = own
        own[0][:, :, t], own[1][:, :, t] = k, v
        return own[0][:, :, : t + 1], own[1][:, :, : t + 1]


def _longer(x: Float[Tensor, "R J D"], own: Float[Tensor, "R J L D"] | None) -> Float[Tensor, "R J M D"]:
    """Room for more tokens: a first cache, or one of twice the length."""
    if own is None:
        return x.new_zeros(x.shape[0], x.shape[1], GROWTH, x.shape[2])
    return torch.cat([own, torch.zeros_like(own)], 2)


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
        encoded = module.encode(prompts)
        hidden = self._prefill(encoded)
        group = torch.tensor(_groups(counts)).to(device)
        self.first_logits = module.head(hidden[:, -1]).index_select(0, group)
        self._next_position = torch.stack([e.positions.max() + 1 for e in encoded]).index_select(0, group)
        self._cache.reorder_cache(group)  # layers with a recurrent state have this one alone
        self._mask = self._mask.index_select(0, group)

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
) -> SharedDecoder | CacheDecoder:
    """Prefill prompts, each once, with the decoder that the layout allows."""
    decoder = SharedDecoder if module.layout == "packed" else CacheDecoder
    return decoder(module, prompts, counts)
