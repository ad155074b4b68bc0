"""Counting sounds: beeps of one pitch over quiet noise, and the question how many there are.

The columns are those of other counting rows, with a sound in place of the picture; the truth is the count and when
each beep begins.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgrpo.data.rows import Row, Rows

QUESTION = "How many times does it beep?"
RATE_HZ = 16_000
"""Sampling rate of the sounds."""
BEEP_SECONDS = 0.1
"""Length of one beep; between two there is at least as much quiet."""
_RAMP_SECONDS = 0.01


def make_beeps(
    seed: int, index: int, *, seconds: float, count: int, noise: float
) -> tuple[NDArray[np.float32], list[float]]:
    """Make one sound.

    Args:
        seed: Sounds of different seeds are different.
        index: Which sound of the seed.
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
    hiss = np.random.RandomState(int(rng.random() * 2**32)).standard_normal(round(seconds * RATE_HZ))
    samples = hiss * noise
    time = np.arange(round(BEEP_SECONDS * RATE_HZ)) / RATE_HZ
    ramp = np.clip(np.minimum(time, BEEP_SECONDS - time) / _RAMP_SECONDS, 0, 1)  # without it each end would click
    for start in starts:
        at = round(start * RATE_HZ)
        samples[at : at + len(time)] += loud * ramp * np.sin(2 * np.pi * hertz * time)
    return samples.astype(np.float32), starts


class BeepRows(Rows):
    """Lazy counting rows; a sound is made when its row is read, and not kept."""

    def __init__(self, count: int, *, seed: int, seconds: float, min_beeps: int, max_beeps: int, noise: float) -> None:
        """Promise ``count`` rows of sounds of ``min_beeps`` to ``max_beeps`` beeps, each number equally likely."""
        self._count, self._seed, self._seconds, self._noise = count, seed, seconds, noise
        self._min, self._max = min_beeps, max_beeps
        self.name = f"beeps of seed {seed}"
        self.columns = ("id", "audio", "problem", "solution", "count", "starts")
        self.generated = True

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Row:
        """Make sound ``index`` and put the question."""
        rng = random.Random(f"number of beeps {self._seed} {index}")
        count = self._min + int(rng.random() * (self._max - self._min + 1))
        samples, starts = make_beeps(self._seed, index, seconds=self._seconds, count=count, noise=self._noise)
        sound: Mapping[str, Any] = {"array": samples, "sampling_rate": RATE_HZ}
        return {
            "id": self.id(index),
            "audio": sound,
            "problem": QUESTION,
            "solution": f"<answer> {count} </answer>",
            "count": count,
            "starts": starts,
        }

    def where(self, index: int) -> str:
        """Name the seed and the sound."""
        return f"{self.name}, sound {index}"

    def id(self, index: int) -> str:
        """Name the sound by seed and number."""
        return f"beeps-{self._seed}-{index}"
