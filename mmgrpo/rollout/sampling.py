"""Drawing one token per row: temperature, truncation, penalties, banned tokens, and the log-prob that is recorded.

Pure functions on logits. The recorded log-prob is of the temperature-scaled distribution *before* anything is cut
away: that is what the trainer computes. How much probability the cuts remove is measured, not hidden.

Random numbers are counter-based, one stream per completion, so that batching, dropping rows and resuming change
nothing: a uniform number is a hash of (seed, stream name, draw index of the prompt, completion index, token index),
and there is no state to save. The hash is the finaliser of SplitMix64, applied to each word in turn.

Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014, section 3.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mmgrpo.types import Sampling

MAX_TABLE = 1 << 24
"""Entries of a table of rows by vocabulary that are worked on at once: 128 MiB each in float64, whatever the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One token per row."""

    token_ids: Int[Tensor, "R"]
    logprobs: Float[Tensor, "R"]
    """log p before truncation, in nats, at the sampling temperature (at 1 when greedy)."""
    removed: Float[Tensor, "R"]
    """Probability that truncation, penalty and bans took from the distribution (total variation), 0 to 1."""


def draw(
    logits: Float[Tensor, "R V"],
    uniform: Float[Tensor, "R"],
    sampling: Sampling,
    *,
    banned: Int[Tensor, "B"],
    seen: Bool[Tensor, "R V"] | None = None,
) -> Draw:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: Raw logits.
        uniform: One number in [0, 1) per row, float64.
        sampling: Temperature and cuts.
        banned: Token ids that are never drawn (media placeholders), each below V.
        seen: Tokens that prompt or completion already hold; needed for a repetition penalty.

    Returns:
        Tokens, their log-probs and what the cuts removed.
    """
    rows = max(1, MAX_TABLE // logits.shape[-1])
    parts = [slice(start, start + rows) for start in range(0, len(logits), rows)] or [slice(0, 0)]
    drawn = [
        _draw(logits[p], uniform[p], sampling, banned=banned, seen=None if seen is None else seen[p]) for p in parts
    ]
    if len(drawn) == 1:
        return drawn[0]
    return Draw(
        token_ids=torch.cat([d.token_ids for d in drawn]),
        logprobs=torch.cat([d.logprobs for d in drawn]),
        removed=torch.cat([d.removed for d in drawn]),
    )


def _draw(
    logits: Float[Tensor, "R V"],
    uniform: Float[Tensor, "R"],
    sampling: Sampling,
    *,
    banned: Int[Tensor, "B"],
    seen: Bool[Tensor, "R V"] | None,
) -> Draw:
    scaled = (logits if logits.dtype == torch.float64 else logits.float()) / (sampling.temperature or 1.0)
    base = torch.log_softmax(scaled, dim=-1)
    cut = _penalised(scaled, sampling, seen)
    cut = cut.index_fill(-1, banned, float("-inf")) if len(banned) else cut
    cut = truncate(cut, sampling)
    if sampling.temperature == 0:
        ids = cut.argmax(dim=-1)
        removed = torch.zeros_like(uniform)
    else:
        probabilities = torch.softmax(cut.double(), dim=-1)
        cumulative = probabilities.cumsum(-1)
        # "first place where the sum exceeds u": a token of probability zero can never be that place
        ids = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True).squeeze(-1)
        ids = ids.clamp(max=logits.shape[-1] - 1)
        removed = _removed(base, probabilities, sampling, banned)
    return Draw(token_ids=ids, logprobs=base.gather(-1, ids[:, None]).squeeze(-1), removed=removed)


def _removed(
    base: Float[Tensor, "R V"], probabilities: Float[Tensor, "R V"], sampling: Sampling, banned: Int[Tensor, "B"]
) -> Float[Tensor, "R"]:
    """Total variation between the distribution before and after the cuts: sum over v of max(0, before - after)."""
    if truncates(sampling) or sampling.repetition_penalty != 1.0:
        return base.double().exp().sub_(probabilities).clamp_(min=0).sum(-1)
    # where tokens are only banned, all others gain, and no table of the vocabulary is needed to know it
    return base.index_select(-1, banned).double().exp().sum(-1)


def _penalised(
    scaled: Float[Tensor, "R V"], sampling: Sampling, seen: Bool[Tensor, "R V"] | None
) -> Float[Tensor, "R V"]:
    """Divide positive and multiply negative logits of seen tokens. Source: CTRL, arXiv:1909.05858, section 4.1."""
    if sampling.repetition_penalty == 1.0 or seen is None:
        return scaled
    penalty = sampling.repetition_penalty
    return torch.where(seen, torch.where(scaled > 0, scaled / penalty, scaled * penalty), scaled)


def truncates(sampling: Sampling) -> bool:
    """Tell whether top-k, top-p or min-p cuts anything away."""
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def truncate(scaled: Float[Tensor, "R V"], sampling: Sampling) -> Float[Tensor, "R V"]:
    """Set everything outside top-k, top-p and min-p to minus infinity, in this order; the likeliest token stays.

    Args:
        scaled: Logits after temperature.
        sampling: Says how much to keep.

    Returns:
        The same logits with the cut tokens at minus infinity.

    Source: top-p: arXiv:1904.09751; min-p: arXiv:2407.01082.
    """
    if 0 < sampling.top_k < scaled.shape[-1]:
        threshold = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < threshold, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, order = scaled.sort(dim=-1, descending=True)
        probabilities = torch.softmax(ordered, dim=-1)
        # a token leaves when those before it already hold top_p; the first never does, however small top_p is
        outside = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        outside[:, 0] = False
        scaled = scaled.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), float("-inf"))
    if sampling.min_p > 0.0:
        probabilities = torch.softmax(scaled, dim=-1)
        least = sampling.min_p * probabilities.amax(-1, keepdim=True)
        scaled = scaled.masked_fill(probabilities < least, float("-inf"))
    return scaled


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(state: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):  # wrapping around is what the hash is made of
        z = (state ^ word) + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def stream_keys(seed: int, stream: str, draw_index: int, count: int) -> NDArray[np.uint64]:
    """Keys of the ``count`` completions of one prompt.

    Args:
        seed: ``rollout.seed``.
        stream: "train", "eval", …: streams of different names share nothing.
        draw_index: Of the prompt in the run.
        count: Completions.

    Returns:
        One key per completion.
    """
    state = np.zeros(count, dtype=np.uint64)
    for word in (seed, zlib.crc32(stream.encode()), draw_index):
        state = _mix(state, np.full(count, word, dtype=np.uint64))
    return _mix(state, np.arange(count, dtype=np.uint64))


def uniforms(keys: NDArray[np.uint64], token: int) -> NDArray[np.float64]:
    """One number in [0, 1) per key for the token with this index.

    Example:
        >>> keys = stream_keys(0, "train", 7, 3)
        >>> bool((uniforms(keys, 0) == uniforms(keys, 0)).all())
        True
    """
    hashed = _mix(keys, np.full(len(keys), token, dtype=np.uint64))
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53
