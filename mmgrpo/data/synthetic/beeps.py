"""Counting beeps in audio: beeps of one pitch over quiet noise, and the question how many there are.

The columns are those of other counting rows, with audio in place of the image; the ground truth is the count and when
each beep begins.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgrpo.data.rows import Row, Rows

BEEP_QUESTION = "How many times does it beep?"
BEEP_RATE_HZ = 16_000
"""Sampling rate of the audio."""
BEEP_SECONDS = 0.1
"""Length of one beep; between two there is at least as much quiet."""
_RAMP_SECONDS = 0.01


def make_beeps(
    seed: int, index: int, *, seconds: float, count: int, noise: float
) -> tuple[NDArray[np.float32], list[float]]:
    """Make one audio item.

    Args:
        seed: Audio items of different seeds are different.
        index: Which item of the seed.
        seconds: Its length.
        count: How many beeps.
        noise: Root mean square of the noise, full scale being 1.

    Returns:
        float32 ``[samples]`` at 16 kHz, and when each beep begins, in seconds.

    Example:
        >>> samples, starts = make_beeps(0, 0, seconds=1.0, count=2, noise=0.0)
        >>> samples.shape, len(starts)
        ((16000,), 2)
    """
    rng = random.Random(f"beeps {seed} {index}")
    slot = 2 * BEEP_SECONDS
    free = seconds - count * slot
    shifts = sorted(rng.random() for _ in range(count))
    starts = [round(free * shift + i * slot, 4) for i, shift in enumerate(shifts)]
    hertz, loud = 400 + 800 * rng.random(), 0.3 + 0.3 * rng.random()
    hiss = np.random.RandomState(int(rng.random() * 2**32)).standard_normal(round(seconds * BEEP_RATE_HZ))
    samples = hiss * noise
    time = np.arange(round(BEEP_SECONDS * BEEP_RATE_HZ)) / BEEP_RATE_HZ
    ramp = np.clip(np.minimum(time, BEEP_SECONDS - time) / _RAMP_SECONDS, 0, 1)  # without it each end would click
    for start in starts:
        at = round(start * BEEP_RATE_HZ)
        samples[at : at + len(time)] += loud * ramp * np.sin(2 * np.pi * hertz * time)
    return samples.astype(np.float32), starts


class BeepRows(Rows):
    """Lazy counting rows; an audio item is made when its row is read, and not kept."""

    def __init__(self, count: int, *, seed: int, seconds: float, min_beeps: int, max_beeps: int, noise: float) -> None:
        """Promise ``count`` rows of audio with ``min_beeps`` to ``max_beeps`` beeps, each number equally likely."""
        self._count, self._seed, self._seconds, self._noise = count, seed, seconds, noise
        self._min, self._max = min_beeps, max_beeps
        self.name = f"beeps of seed {seed}"
        self.columns = ("id", "audio", "problem", "solution", "count", "starts")
        self.generated = True

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Row:
        """Make item ``index`` and put the question."""
        rng = random.Random(f"number of beeps {self._seed} {index}")
        count = self._min + int(rng.random() * (self._max - self._min + 1))
        samples, starts = make_beeps(self._seed, index, seconds=self._seconds, count=count, noise=self._noise)
        audio: Mapping[str, Any] = {"array": samples, "sampling_rate": BEEP_RATE_HZ}
        return {
            "id": self.id(index),
            "audio": audio,
            "problem": BEEP_QUESTION,
            "solution": f"<answer> {count} </answer>",
            "count": count,
            "starts": starts,
        }

    def where(self, index: int) -> str:
        """Name the seed and the item."""
        return f"{self.name}, audio {index}"

    def id(self, index: int) -> str:
        """Name the item by seed and number."""
        return f"beeps-{self._seed}-{index}"
