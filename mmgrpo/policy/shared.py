"""Attention over a packed row without copies of the prompt: its keys are read where they lie by all completions.

Three kinds of parts. A prompt attends to itself; all completions of a prompt attend to it, as one long list of
queries; each completion attends to itself. The last two are merged by their log-sum-exp
(:mod:`mmgrpo.policy.partial`), in forward; what is held for backward are the row's queries, keys, values and outputs.

This file knows tensors and lengths, not models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmgrpo.policy.partial import attend_part, key_mask, merge_parts, part_gradients, widened


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kernel call: n sets of queries, each over its set of keys."""

    queries: Int[Tensor, "n Lq"]
    """Row index of each query; padding repeats the first."""
    keys: Int[Tensor, "n Lk"]
    """Row index of each key; padding, too, repeats the first."""
    places: Int[Tensor, "m"] | None
    """Places in the flattened ``[n * Lq]`` that are not padding; None: all."""
    rows: Int[Tensor, "m"]
    """Row index of each query that is not padding."""
    padding: Bool[Tensor, "n 1 Lq 1"] | None
    """True where a query is padding; None: nowhere."""
    lengths: tuple[int, ...]
    """Keys of each set that are not padding."""
    causal: bool
    """Query i sees keys 0 to i, which also hides padding at the end; else every query sees all keys of its set."""
    merges: bool
    """These queries have attended to other keys already."""


def part_of(
    queries: Sequence[tuple[int, int]], keys: Sequence[tuple[int, int]], device: torch.device, *, merges: bool = False
) -> Part:
    """Make a part of ranges of row indices.

    Args:
        queries: First row and length of each set.
        keys: The same for the keys; causal where they are the queries themselves.
        device: Where the row will be.
        merges: These queries have attended to other keys already.
    """
    index, padded = _ranges(queries)
    key_index, _ = _ranges(keys)
    places = None if not bool(padded.any()) else (~padded).flatten().nonzero().squeeze(1)
    rows = index.flatten() if places is None else index.flatten()[places]
    return Part(
        queries=index.to(device),
        keys=key_index.to(device),
        places=None if places is None else places.to(device),
        rows=rows.to(device),
        padding=None if places is None else padded[:, None, :, None].to(device),
        lengths=tuple(length for _, length in keys),
        causal=list(queries) == list(keys),
        merges=merges,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """The attention of one packed row."""

    parts: tuple[Part, ...]
    """In order: those that merge come after those that they merge with."""
    reach: int
    """Tokens of the longest prompt with its completion."""

    def attend(
        self, layer: int, q: Float[Tensor, "T H D"], k: Float[Tensor, "T J D"], v: Float[Tensor, "T J W"], scale: float
    ) -> Float[Tensor, "T H W"]:
        """Attend within the plan; J key heads serve H query heads (grouped-query attention)."""
        width = max(q.shape[-1], v.shape[-1])
        out: Tensor = _Attend.apply(*(widened(x, width) for x in (q, k, v)), self.parts, scale)  # type: ignore[no-untyped-call]
        return out[..., : v.shape[-1]]


def _ranges(sets: Sequence[tuple[int, int]]) -> tuple[Int[Tensor, "n L"], Bool[Tensor, "n L"]]:
    """Row indices of each set, padded to the longest with its first; and where padding is."""
    starts = torch.tensor([start for start, _ in sets])[:, None]
    lengths = torch.tensor([length for _, length in sets])[:, None]
    steps = torch.arange(int(lengths.max())).expand(len(sets), -1)
    padded = steps >= lengths
    return starts + steps.masked_fill(padded, 0), padded


class _Attend(torch.autograd.Function):
    """All parts of a row, forward and backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, parts: tuple[Part, ...], scale: float) -> Tensor:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32))
        for part in parts:
            found = _forward(part, q, k, v, scale)
            if part.merges:
                found = merge_parts((out.index_select(0, part.rows), lse.index_select(0, part.rows)), found)
            out.index_copy_(0, part.rows, found[0])
            lse.index_copy_(0, part.rows, found[1])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.parts, ctx.scale = parts, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        totals = [torch.zeros_like(x) for x in (q, k, v)]
        for part in ctx.parts:
            found = _backward(part, grad, q, k, v, out, lse, ctx.scale)
            for total, index, share in zip(totals, (part.queries, part.keys, part.keys), found, strict=True):
                total.index_add_(0, index.flatten(), share)
        return *totals, None, None


def _forward(part: Part, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the queries that are not padding."""
    query, (key, value) = _queries(part, q, k.shape[1]), _keys(part, k, v, q.shape[1])
    out, lse = attend_part(query, key, value, scale, causal=part.causal, mask=_mask(part, q))
    found = _flat(part, out, q.shape[1]), _flat(part, lse[..., None], q.shape[1])[..., 0]
    return found if part.places is None else tuple(x.index_select(0, part.places) for x in found)  # type: ignore[return-value]


def _backward(
    part: Part, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    heads, shared = q.shape[1], k.shape[1]
    (key, value) = _keys(part, k, v, heads)
    query, gradient, output = (_queries(part, x, shared) for x in (q, grad, out))
    sums = _queries(part, lse[..., None], shared)
    if part.padding is not None:  # it repeats a row, and must put no weight on any key
        padding = part.padding if part.causal else part.padding.repeat(1, 1, heads // shared, 1)
        sums = sums.masked_fill(padding, torch.inf)
    found = part_gradients(
        gradient, query, key, value, output, sums[..., 0], scale, causal=part.causal, mask=_mask(part, q)
    )
    return _flat(part, found[0], heads), *(_key_sums(x, shared) for x in found[1:])  # type: ignore[return-value]


def _queries(part: Part, x: Float[Tensor, "T H D"], shared: int) -> Float[Tensor, "n h l D"]:
    """Queries as a kernel wants them: ``[n, H, Lq, D]``; of a prompt's readers, ``[n, J, H / J * Lq, D]``.

    The second form lets each key be read once for all heads that share it, too.
    """
    found = _take(x, part.queries)
    if part.causal:
        return found.transpose(1, 2)
    return found.unflatten(2, (shared, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _flat(part: Part, x: Float[Tensor, "n h l D"], heads: int) -> Float[Tensor, "nLq H D"]:
    """Undo :func:`_queries`, up to the order of rows."""
    if not part.causal:
        x = x.unflatten(2, (-1, part.queries.shape[1])).flatten(1, 2)
    return x.transpose(1, 2).reshape(-1, heads, x.shape[-1])


def _keys(part: Part, k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    ratio = heads // k.shape[1] if part.causal else 1
    key, value = (_take(x, part.keys).transpose(1, 2) for x in (k, v))
    return (key, value) if ratio == 1 else (key.repeat_interleave(ratio, 1), value.repeat_interleave(ratio, 1))


def _key_sums(x: Float[Tensor, "n h Lk D"], shared: int) -> Float[Tensor, "nLk J D"]:
    """Add up the heads that share a key."""
    found = x if x.shape[1] == shared else x.unflatten(1, (shared, -1)).sum(2)
    return found.transpose(1, 2).reshape(-1, shared, x.shape[-1])


def _mask(part: Part, q: Tensor) -> Tensor | None:
    return None if part.causal else key_mask(list(part.lengths), part.keys.shape[1], q.dtype, q.device)


def _take(x: Float[Tensor, "T J D"], index: Int[Tensor, "n L"]) -> Float[Tensor, "n L J D"]:
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)
