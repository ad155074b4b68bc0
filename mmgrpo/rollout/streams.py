"""Counter-based random streams: one per completion, so that batching, dropping rows and resuming change nothing.

A uniform number is a hash of (seed, stream name, occurrence of the prompt, completion index, token index); there is
no state to save. The hash is the finaliser of SplitMix64, applied to each word in turn.

Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014, section 3.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(state: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):  # wrapping around is what the hash is made of
        z = (state ^ word) + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def stream_keys(seed: int, stream: str, occurrence: int, count: int) -> NDArray[np.uint64]:
    """Keys of the ``count`` completions of one prompt.

    Args:
        seed: ``rollout.seed``.
        stream: "train", "eval", …: streams of different names share nothing.
        occurrence: Of the prompt in the run.
        count: Completions.

    Returns:
        One key per completion.
    """
    state = np.zeros(count, dtype=np.uint64)
    for word in (seed, zlib.crc32(stream.encode()), occurrence):
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
