"""Attention over a packed row without copies of the prompt: its keys are read where they lie by all completions.

Three kinds of kernel calls. A prompt attends to itself; all completions of a prompt attend to it, as one long list of
queries; each completion attends to itself. The last two are merged in forward: softmax over all keys is a mean of the
softmaxes over parts of them, weighted by each part's sum of exponentials,

    out = sum_i exp(lse_i - lse) out_i,  lse = log sum_i exp(lse_i)

Backward needs no merging: given the merged ``out`` and ``lse``, the backward pass of a flash kernel over one part of
the keys gives exactly that part's contribution to the gradient. What is held for backward are the row's queries, keys,
values and outputs.

This file knows tensors and lengths, not models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmgrpo.policy.attention.layout import Span, longest_span, similar_chunks

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
"""What ``scaled_dot_product_attention`` itself calls on the CPU; unlike it, they tell the log-sum-exp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One kernel call: n sets of queries, each over its set of keys."""

    queries: Int[Tensor, "n Lq"]
    """Row index of each query; padding repeats the first."""
    keys: Int[Tensor, "n Lk"]
    """Row index of each key; padding, too, repeats the first."""
    valid: Int[Tensor, "m"] | None
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


def kernel_call(
    queries: Sequence[tuple[int, int]], keys: Sequence[tuple[int, int]], device: torch.device, *, merges: bool = False
) -> KernelCall:
    """Make a call of ranges of row indices.

    Args:
        queries: First row and length of each set.
        keys: The same for the keys; causal where they are the queries themselves.
        device: Where the row will be.
        merges: These queries have attended to other keys already.
    """
    index, padded = _ranges(queries)
    key_index, _ = _ranges(keys)
    valid = None if not bool(padded.any()) else (~padded).flatten().nonzero().squeeze(1)
    rows = index.flatten() if valid is None else index.flatten()[valid]
    return KernelCall(
        queries=index.to(device),
        keys=key_index.to(device),
        valid=None if valid is None else valid.to(device),
        rows=rows.to(device),
        padding=None if valid is None else padded[:, None, :, None].to(device),
        lengths=tuple(length for _, length in keys),
        causal=list(queries) == list(keys),
        merges=merges,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPlan:
    """The attention of one packed row."""

    calls: tuple[KernelCall, ...]
    """In order: those that merge come after those that they merge with."""
    max_span: int
    """Tokens of the longest prompt with its completion."""

    def attend(
        self, layer: int, q: Float[Tensor, "T H D"], k: Float[Tensor, "T J D"], v: Float[Tensor, "T J W"], scale: float
    ) -> Float[Tensor, "T H W"]:
        """Attend within the plan; J key heads serve H query heads (grouped-query attention)."""
        width = max(q.shape[-1], v.shape[-1])
        out: Tensor = _PrefixAttention.apply(*(pad_width(x, width) for x in (q, k, v)), self.calls, scale)  # type: ignore[no-untyped-call]
        return out[..., : v.shape[-1]]


def prefix_plan(spans: tuple[Span, ...], device: torch.device) -> PrefixPlan:
    """Choose the kernel calls of a row, for devices whose kernels tell their log-sum-exp.

    Args:
        spans: Where prompts and completions stand.
        device: Where the row will be.

    Returns:
        A plan that covers every row index.
    """
    return PrefixPlan(calls=tuple(_kernel_calls(spans, device)), max_span=longest_span(spans))


def _kernel_calls(spans: tuple[Span, ...], device: torch.device) -> Iterator[KernelCall]:
    """Prompts over themselves, all completions of a prompt over the prompt, each completion over itself."""
    for chunk in similar_chunks(spans, lambda s: (s.prompt, s.prompt)):
        prompts = [(s.start, s.prompt) for s in chunk]
        yield kernel_call(prompts, prompts, device)
    answered = tuple(s for s in spans if s.completions)
    for chunk in similar_chunks(answered, lambda s: (s.length - s.prompt, s.prompt)):
        answers = [(s.first_completion, s.length - s.prompt) for s in chunk]
        yield kernel_call(answers, [(s.start, s.prompt) for s in chunk], device)
    for alone in similar_chunks(tuple(_completions(answered)), lambda c: (c[1], c[1])):
        yield kernel_call(alone, alone, device, merges=True)


def _completions(spans: tuple[Span, ...]) -> Iterator[tuple[int, int]]:
    """First row index and length of every completion."""
    for span in spans:
        ends = accumulate(span.completions, initial=span.first_completion)
        yield from zip(ends, span.completions, strict=False)


def _ranges(sets: Sequence[tuple[int, int]]) -> tuple[Int[Tensor, "n L"], Bool[Tensor, "n L"]]:
    """Row indices of each set, padded to the longest with its first; and where padding is."""
    starts = torch.tensor([start for start, _ in sets])[:, None]
    lengths = torch.tensor([length for _, length in sets])[:, None]
    steps = torch.arange(int(lengths.max())).expand(len(sets), -1)
    padded = steps >= lengths
    return starts + steps.masked_fill(padded, 0), padded


class _PrefixAttention(torch.autograd.Function):
    """All calls of a row, forward and backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, calls: tuple[KernelCall, ...], scale: float) -> Tensor:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32))
        for call in calls:
            result = _forward(call, q, k, v, scale)
            if call.merges:
                result = merge_partials((out.index_select(0, call.rows), lse.index_select(0, call.rows)), result)
            out.index_copy_(0, call.rows, result[0])
            lse.index_copy_(0, call.rows, result[1])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.calls, ctx.scale = calls, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        totals = [torch.zeros_like(x) for x in (q, k, v)]
        for call in ctx.calls:
            result = _backward(call, grad, q, k, v, out, lse, ctx.scale)
            for total, index, gradient in zip(totals, (call.queries, call.keys, call.keys), result, strict=True):
                total.index_add_(0, index.flatten(), gradient)
        return *totals, None, None


def _forward(call: KernelCall, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the queries that are not padding."""
    query, (key, value) = _queries(call, q, k.shape[1]), _keys(call, k, v, q.shape[1])
    out, lse = attend_partial(query, key, value, scale, causal=call.causal, mask=_mask(call, q))
    result = _flat(call, out, q.shape[1]), _flat(call, lse[..., None], q.shape[1])[..., 0]
    return result if call.valid is None else tuple(x.index_select(0, call.valid) for x in result)  # type: ignore[return-value]


def _backward(
    call: KernelCall, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    heads, shared = q.shape[1], k.shape[1]
    (key, value) = _keys(call, k, v, heads)
    query, gradient, output = (_queries(call, x, shared) for x in (q, grad, out))
    sums = _queries(call, lse[..., None], shared)
    if call.padding is not None:  # it repeats a row, and must put no weight on any key
        padding = call.padding if call.causal else call.padding.repeat(1, 1, heads // shared, 1)
        sums = sums.masked_fill(padding, torch.inf)
    result = partial_gradients(
        gradient, query, key, value, output, sums[..., 0], scale, causal=call.causal, mask=_mask(call, q)
    )
    return _flat(call, result[0], heads), *(_key_sums(x, shared) for x in result[1:])  # type: ignore[return-value]


def _queries(call: KernelCall, x: Float[Tensor, "T H D"], shared: int) -> Float[Tensor, "n h l D"]:
    """Queries as a kernel wants them: ``[n, H, Lq, D]``; of a prompt's completions, ``[n, J, H / J * Lq, D]``.

    The second form lets each key be read once for all heads that share it, too.
    """
    result = _take(x, call.queries)
    if call.causal:
        return result.transpose(1, 2)
    return result.unflatten(2, (shared, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _flat(call: KernelCall, x: Float[Tensor, "n h l D"], heads: int) -> Float[Tensor, "nLq H D"]:
    """Undo :func:`_queries`, up to the order of rows."""
    if not call.causal:
        x = x.unflatten(2, (-1, call.queries.shape[1])).flatten(1, 2)
    return x.transpose(1, 2).reshape(-1, heads, x.shape[-1])


def _keys(call: KernelCall, k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    ratio = heads // k.shape[1] if call.causal else 1
    key, value = (_take(x, call.keys).transpose(1, 2) for x in (k, v))
    return (key, value) if ratio == 1 else (key.repeat_interleave(ratio, 1), value.repeat_interleave(ratio, 1))


def _key_sums(x: Float[Tensor, "n h Lk D"], shared: int) -> Float[Tensor, "nLk J D"]:
    """Add up the heads that share a key."""
    result = x if x.shape[1] == shared else x.unflatten(1, (shared, -1)).sum(2)
    return result.transpose(1, 2).reshape(-1, shared, x.shape[-1])


def _mask(call: KernelCall, q: Tensor) -> Tensor | None:
    return None if call.causal else key_mask(list(call.lengths), call.keys.shape[1], q.dtype, q.device)


def _take(x: Float[Tensor, "T J D"], index: Int[Tensor, "n L"]) -> Float[Tensor, "n L J D"]:
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)


@cache
def has_kernels(device: str) -> bool:
    """Tell whether a device type has attention kernels that give and take the log-sum-exp of the scores."""
    return device == "cpu" and all(hasattr(torch.ops.aten, name) for name in (_FORWARD, _BACKWARD))


def attend_partial(
    q: Float[Tensor, "n H L D"],
    k: Float[Tensor, "n H S D"],
    v: Float[Tensor, "n H S D"],
    scale: float,
    *,
    causal: bool = False,
    mask: Float[Tensor, "n 1 1 S"] | None = None,
) -> tuple[Float[Tensor, "n H L D"], Float[Tensor, "n H L"]]:
    """Attend to these keys alone. Differentiable only through :func:`partial_gradients`.

    Args:
        q: Queries, as many heads as the keys have.
        k: Keys.
        v: Values, as wide as the keys.
        scale: Factor of the scores.
        causal: Query i sees keys 0 to i.
        mask: Added to the scores: 0, or minus infinity for a key that nobody sees.

    Returns:
        The output and the log-sum-exp of each query's scaled scores.
    """
    if has_kernels(q.device.type):
        return getattr(torch.ops.aten, _FORWARD)(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    scores = scores if mask is None else scores + mask
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def partial_gradients(
    grad: Float[Tensor, "n H L D"],
    q: Float[Tensor, "n H L D"],
    k: Float[Tensor, "n H S D"],
    v: Float[Tensor, "n H S D"],
    out: Float[Tensor, "n H L D"],
    lse: Float[Tensor, "n H L"],
    scale: float,
    *,
    causal: bool = False,
    mask: Float[Tensor, "n 1 1 S"] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give what these keys add to the gradients of q, k and v.

    Args:
        grad: Gradient of the merged output.
        q: As in :func:`attend_partial`, and so the next two.
        k: Keys.
        v: Values.
        out: The merged output, over all parts.
        lse: The merged log-sum-exp; plus infinity for a query that does not count: its gradients are 0.
        scale: As in forward, and so the next two.
        causal: Query i sees keys 0 to i.
        mask: Added to the scores.

    Returns:
        Gradients of q, k and v.
    """
    return getattr(torch.ops.aten, _BACKWARD)(
        grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
    )  # fmt: skip


def merge_partials(
    one: tuple[Float[Tensor, "... D"], Float[Tensor, "..."]],
    other: tuple[Float[Tensor, "... D"], Float[Tensor, "..."]],
) -> tuple[Float[Tensor, "... D"], Float[Tensor, "..."]]:
    """Merge two parts: output and log-sum-exp over the keys of both."""
    lse = torch.logaddexp(one[1], other[1])
    weights = [(part[1] - lse).exp()[..., None].to(part[0].dtype) for part in (one, other)]
    return one[0] * weights[0] + other[0] * weights[1], lse


def key_mask(
    lengths: list[int], padded: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n 1 1 S"] | None:
    """Minus infinity for the keys past each set's length; None where there are none."""
    if all(length == padded for length in lengths):
        return None
    past = torch.arange(padded) >= torch.tensor(lengths)[:, None]
    return torch.zeros(past.shape, dtype=dtype).masked_fill(past, -torch.inf)[:, None, None].to(device)


def pad_width(x: Float[Tensor, "*n D"], width: int) -> Float[Tensor, "*n W"]:
    """Pad the last axis with zeros, which change no score."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
