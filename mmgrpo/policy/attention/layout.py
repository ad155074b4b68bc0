"""The packed row: where each prompt and each completion stands, and which rows predict what.

``[P1 | R1,1 … R1,G | P2 | R2,1 …]``: each prompt once, no padding. This file is index arithmetic only: it knows no
model, no device and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.types import Batch

Item = TypeVar("Item")
MAX_SCORES = 1 << 26
"""Largest number of (query, key) pairs in one block; bounds the size of masks and scores."""
MAX_WASTE = 1.25
"""Segments share a block when padding them to the longest costs at most this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One prompt and its completions in the row, all in tokens."""

    start: int
    """Row index of the first prompt token."""
    prompt: int
    """P, the prompt's length."""
    completions: tuple[int, ...]
    """C of each completion; empty for a row of prompts alone."""

    @property
    def first_completion(self) -> int:
        """Row index of the first token after the prompt."""
        return self.start + self.prompt

    @property
    def length(self) -> int:
        """Prompt and completions together."""
        return self.prompt + sum(self.completions)


def spans_of(lengths: list[tuple[int, tuple[int, ...]]]) -> tuple[Span, ...]:
    """Lay prompts and completions side by side.

    Args:
        lengths: Prompt length and completion lengths of each segment, in tokens.

    Returns:
        One span per segment, in order, without gaps.

    Example:
        >>> [s.start for s in spans_of([(3, (2, 1)), (4, ())])]
        [0, 6]
    """
    spans: list[Span] = []
    start = 0
    for prompt, completions in lengths:
        spans.append(Span(start=start, prompt=prompt, completions=completions))
        start += spans[-1].length
    return tuple(spans)


def longest_span(spans: Sequence[Span]) -> int:
    """Tokens from the first of a prompt to the last of its longest completion: what one query may look back."""
    return max(s.prompt + max(s.completions, default=0) for s in spans)


def batch_lengths(batch: Batch) -> list[tuple[int, tuple[int, ...]]]:
    """Prompt length and completion lengths of each segment of a batch, in tokens."""
    return [(len(s.prompt.token_ids), tuple(len(c.token_ids) for c in s.completions)) for s in batch.segments]


def prompt_index(spans: tuple[Span, ...]) -> Int[Tensor, "Psum"]:
    """Row index of every prompt token, in order."""
    return torch.cat([torch.arange(s.start, s.first_completion) for s in spans])


def completion_index(spans: tuple[Span, ...]) -> Int[Tensor, "K"]:
    """Row index of every completion token, in order."""
    return torch.cat([torch.arange(s.first_completion, s.start + s.length) for s in spans])


def predictor_index(spans: tuple[Span, ...]) -> Int[Tensor, "K"]:
    """Row index whose hidden state predicts each completion token.

    The last prompt token predicts the first token of all G completions, so its row stands here G times; every other
    token is predicted by the one before it.

    Example:
        >>> predictor_index(spans_of([(3, (2, 1))])).tolist()
        [2, 3, 2]
    """
    rows: list[Tensor] = []
    for span in spans:
        start = span.first_completion
        for length in span.completions:
            rows.append(torch.arange(start - 1, start - 1 + length))
            rows[-1][0] = span.first_completion - 1
            start += length
    return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)


def completion_offsets(spans: tuple[Span, ...]) -> Int[Tensor, "K"]:
    """Place of every completion token within its own completion: 0, 1, 2 and so on."""
    steps = [torch.arange(length) for span in spans for length in span.completions]
    return torch.cat(steps) if steps else torch.zeros(0, dtype=torch.long)


def completion_segment(spans: tuple[Span, ...]) -> Int[Tensor, "K"]:
    """Which span each completion token belongs to."""
    counts = torch.tensor([sum(s.completions) for s in spans])
    return torch.repeat_interleave(torch.arange(len(spans)), counts)


def similar_chunks(items: tuple[Item, ...], size: Callable[[Item], tuple[int, int]]) -> Iterator[tuple[Item, ...]]:
    """Group items of similar size, bounded in padding and in the number of scores."""
    ordered = sorted(items, key=lambda s: (size(s)[1], size(s)[0]))
    chunk: list[Item] = []
    for item in ordered:
        candidate = [*chunk, item]
        queries, keys = (max(size(s)[i] for s in candidate) for i in (0, 1))
        padded = len(candidate) * queries * keys
        exact = sum(size(s)[0] * size(s)[1] for s in candidate)
        if chunk and (padded > MAX_WASTE * exact or padded > MAX_SCORES):
            yield tuple(chunk)
            candidate = [item]
        chunk = candidate
    if chunk:
        yield tuple(chunk)
