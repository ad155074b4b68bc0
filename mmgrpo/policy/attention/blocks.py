"""Attention over a packed row: prompt tokens see their own prompt, completion tokens their prompt and themselves.

A plan is built once per row on the host and used by every layer. It is a list of blocks; a block is a set of segments
of similar length, computed by one call of scaled-dot-product attention. Blocks pad inside the attention call only: no
padding token passes through a linear layer.

Two forms for completions, chosen by their cost:

- *grouped*: all completions of a segment are one query block over ``[prompt | all its completions]``. The prompt's
  keys are read in place, never copied; the mask keeps completions apart. Best when completions are short.
- *per completion*: each completion is its own query block over ``[prompt | itself]``, with the prompt's keys copied.
  Best when completions are long.

Where attention kernels tell their log-sum-exp (the CPU), neither form is needed: :mod:`mmgrpo.policy.attention.prefix`
reads the prompt's keys in place at the cost of the second.

This file knows tensors and lengths, not models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.policy.attention.layout import Span, longest_span, similar_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One call of attention over n sets of queries and keys."""

    queries: Int[Tensor, "n Lq"]
    """Row index of each query; padding repeats index 0."""
    keys: Int[Tensor, "n Lk"]
    """Row index of each key."""
    mask: Bool[Tensor, "n 1 Lq Lk"] | None
    """True where the query may see the key; None: causal."""
    valid: Int[Tensor, "m"] | None
    """Places in the flattened ``[n * Lq]`` that are not padding; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """The attention of one packed row."""

    blocks: tuple[Block, ...]
    order: Int[Tensor, "T"]
    """For each row index, where its output stands in the concatenated outputs of all blocks."""
    max_span: int
    """Tokens of the longest prompt with its completion."""

    def attend(
        self, layer: int, q: Float[Tensor, "T H D"], k: Float[Tensor, "T J D"], v: Float[Tensor, "T J D"], scale: float
    ) -> Float[Tensor, "T H D"]:
        """Attend within the plan; J key heads serve H query heads (grouped-query attention)."""
        outputs = [_attend_block(block, q, k, v, scale) for block in self.blocks]
        return torch.cat(outputs).index_select(0, self.order)


def block_plan(spans: tuple[Span, ...], device: torch.device) -> BlockPlan:
    """Choose the blocks of a row, for devices whose kernels do not tell their log-sum-exp.

    Args:
        spans: Where prompts and completions stand.
        device: Where the row will be.

    Returns:
        A plan that covers every row index exactly once.
    """
    blocks = [_prompt_block(chunk) for chunk in similar_chunks(spans, lambda s: (s.prompt, s.prompt))]
    answered = tuple(s for s in spans if s.completions)
    grouped = tuple(s for s in answered if _grouped_is_cheaper(s))
    separate = tuple(s for s in answered if not _grouped_is_cheaper(s))
    blocks += [_grouped_block(c) for c in similar_chunks(grouped, lambda s: (s.length - s.prompt, s.length))]
    blocks += [_per_completion_block(c) for c in similar_chunks(separate, _per_completion_size)]
    rows = torch.cat([b.queries.flatten() if b.valid is None else b.queries.flatten()[b.valid] for b in blocks])
    order = torch.empty_like(rows)
    order[rows] = torch.arange(len(rows))
    return BlockPlan(
        blocks=tuple(_move(b, device) for b in blocks), order=order.to(device), max_span=longest_span(spans)
    )


def repeat_key_heads(x: Float[Tensor, "n J L D"], heads: int) -> Float[Tensor, "n H L D"]:
    """Repeat each key head for the query heads that share it."""
    n, j, length, width = x.shape
    if j == heads:
        return x
    return x[:, :, None].expand(n, j, heads // j, length, width).reshape(n, heads, length, width)


def _attend_block(block: Block, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Float[Tensor, "m H D"]:
    heads = q.shape[1]
    n, length = block.queries.shape
    query = _take(q, block.queries).transpose(1, 2)
    key = repeat_key_heads(_take(k, block.keys).transpose(1, 2), heads)
    value = repeat_key_heads(_take(v, block.keys).transpose(1, 2), heads)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=block.mask, is_causal=block.mask is None, scale=scale
    )
    flat = out.transpose(1, 2).reshape(n * length, heads, -1)
    return flat if block.valid is None else flat.index_select(0, block.valid)


def _take(x: Float[Tensor, "T J D"], index: Int[Tensor, "n L"]) -> Float[Tensor, "n L J D"]:
    # index_select, because its backward (index_add) is far faster on the CPU than that of x[index] (sorted scatter)
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)


def _grouped_is_cheaper(span: Span) -> bool:
    total = sum(span.completions)
    grouped = total * (span.prompt + total)
    copies = len(span.completions) * span.prompt  # moving a key costs about as much as a few dozen scores
    separate = sum(c * (span.prompt + c) for c in span.completions) + 32 * copies
    return grouped <= separate


def _per_completion_size(span: Span) -> tuple[int, int]:
    longest = max(span.completions)
    return len(span.completions) * longest, span.prompt + longest


def _prompt_block(spans: tuple[Span, ...]) -> Block:
    length = max(s.prompt for s in spans)
    index = torch.stack([_range(s.start, s.prompt, length) for s in spans])
    # padding stands at the end, where the causal mask hides it from every real query
    return Block(queries=index, keys=index, mask=None, valid=_valid([s.prompt for s in spans], length))


def _grouped_block(spans: tuple[Span, ...]) -> Block:
    prompts, answers = max(s.prompt for s in spans), max(s.length - s.prompt for s in spans)
    queries = torch.stack([_range(s.first_completion, s.length - s.prompt, answers) for s in spans])
    prompt_keys = torch.stack([_range(s.start, s.prompt, prompts) for s in spans])
    completion = torch.full((len(spans), answers), -1)
    for row, span in enumerate(spans):
        owner = torch.repeat_interleave(torch.arange(len(span.completions)), torch.tensor(span.completions))
        completion[row, : len(owner)] = owner
    lower = torch.ones(answers, answers, dtype=torch.bool).tril()
    same = (completion[:, :, None] == completion[:, None, :]) & lower
    seen = torch.arange(prompts) < torch.tensor([s.prompt for s in spans])[:, None]
    mask = torch.cat([seen[:, None, :].expand(-1, answers, -1), same], dim=2)
    valid = _valid([s.length - s.prompt for s in spans], answers)
    return Block(queries=queries, keys=torch.cat([prompt_keys, queries], 1), mask=_one_if_same(mask), valid=valid)


def _per_completion_block(spans: tuple[Span, ...]) -> Block:
    prompts, longest = max(s.prompt for s in spans), max(max(s.completions) for s in spans)
    queries, prompt_keys, lengths, seen = [], [], [], []
    for span in spans:
        start = span.first_completion
        for length in span.completions:
            queries.append(_range(start, length, longest))
            prompt_keys.append(_range(span.start, span.prompt, prompts))
            seen.append(torch.arange(prompts) < span.prompt)
            lengths.append(length)
            start += length
    query = torch.stack(queries)
    lower = torch.ones(longest, longest, dtype=torch.bool).tril()
    mask = torch.cat([torch.stack(seen)[:, None].expand(-1, longest, -1), lower.expand(len(queries), -1, -1)], dim=2)
    keys = torch.cat([torch.stack(prompt_keys), query], 1)
    return Block(queries=query, keys=keys, mask=_one_if_same(mask), valid=_valid(lengths, longest))


def _one_if_same(mask: Bool[Tensor, "n Lq Lk"]) -> Bool[Tensor, "n 1 Lq Lk"]:
    """Keep one copy of a mask that is the same for the whole block."""
    same = len(mask) > 1 and bool((mask == mask[:1]).all())
    return (mask[:1] if same else mask)[:, None]


def _range(start: int, length: int, padded: int) -> Int[Tensor, "L"]:
    index = torch.full((padded,), start)
    index[:length] = torch.arange(start, start + length)
    return index


def _valid(lengths: list[int], padded: int) -> Int[Tensor, "m"] | None:
    if all(length == padded for length in lengths):
        return None
    return torch.cat([torch.arange(i * padded, i * padded + length) for i, length in enumerate(lengths)])


def _move(block: Block, device: torch.device) -> Block:
    mask, valid = block.mask, block.valid
    return Block(
        queries=block.queries.to(device),
        keys=block.keys.to(device),
        mask=None if mask is None else mask.to(device),
        valid=None if valid is None else valid.to(device),
    )
