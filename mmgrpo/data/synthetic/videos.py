"""Videos with a known ground truth: a lamp that lights up so many times, or a square that moves one way.

The columns are those of other synthetic rows, with a video in place of the image.
"""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmgrpo.data.rows import Row, Rows

Question = Literal["blinks", "motion"]
QUESTIONS = {"blinks": "How many times does the lamp light up?", "motion": "Which way does the square move?"}
"""What is asked, by kind of video."""
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
"""Answers about motion: rows and columns per step."""
Frames = NDArray[np.uint8]


def blinking(rng: random.Random, *, size: int, frames: int, blinks: int) -> Frames:
    """Show a lamp on a dark wall; it is lit for one frame at a time, and dark before, between and after.

    Args:
        rng: Random numbers.
        size: Width and height, in pixels.
        frames: How many.
        blinks: How many of them are lit.

    Returns:
        ``[frames, size, size, 3]``.

    Example:
        >>> blinking(random.Random(0), size=16, frames=8, blinks=2).max(axis=(1, 2, 3)).tolist().count(255)
        2
    """
    wall = np.full((size, size, 3), int(20 + 40 * rng.random()), np.uint8)
    side = max(4, round(size * (0.4 + 0.2 * rng.random())))
    row, column = (int(rng.random() * (size - side + 1)) for _ in range(2))
    video = np.repeat(wall[None], frames, axis=0)
    video[:, row : row + side, column : column + side] = 90
    spare = frames - 1 - 2 * blinks  # frames beyond the least: dark, lit, dark, lit, …, dark
    shifts = sorted(int(rng.random() * (spare + 1)) for _ in range(blinks))
    for i, shift in enumerate(shifts):
        video[1 + 2 * i + shift, row : row + side, column : column + side] = (255, 240, 120)
    return video


def moving(rng: random.Random, *, size: int, frames: int, direction: str) -> Frames:
    """Show a square that crosses the image at an even pace.

    Args:
        rng: Random numbers.
        size: Width and height, in pixels.
        frames: How many.
        direction: A key of ``DIRECTIONS``.

    Returns:
        ``[frames, size, size, 3]``.
    """
    side = max(3, size // 4)
    way = size - side
    colour = tuple(int(120 + 135 * rng.random()) for _ in range(3))
    video = np.full((frames, size, size, 3), int(20 + 40 * rng.random()), np.uint8)
    across, start = int(rng.random() * (way + 1)), int(rng.random() * (way // 3 + 1))
    down, right = DIRECTIONS[direction]
    for i in range(frames):
        along = start + round((way - start) * i / (frames - 1))
        along = along if down + right > 0 else way - along
        row, column = (along, across) if down else (across, along)
        video[i, row : row + side, column : column + side] = colour
    return video


class VideoRows(Rows):
    """Lazy rows of videos; a video is made when its row is read, and not kept."""

    def __init__(
        self,
        count: int,
        *,
        seed: int,
        question: Question,
        image_size: int,
        frames: int,
        fps: float,
        blinks: tuple[int, int],
    ) -> None:
        """Promise ``count`` rows; ``blinks`` are the smallest and the largest count, each number equally likely."""
        self._count, self._seed, self._question = count, seed, question
        self._size, self._frames, self._fps, self._blinks = image_size, frames, fps, blinks
        self.name = f"videos of seed {seed}"
        self.columns = ("id", "video", "problem", "solution", "count" if question == "blinks" else "direction")
        self.generated = True

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Row:
        """Make video ``index`` and put the question."""
        rng = random.Random(f"{self._question} {self._seed} {index}")
        if self._question == "blinks":
            low, high = self._blinks
            ground_truth: int | str = low + int(rng.random() * (high - low + 1))
            video = blinking(rng, size=self._size, frames=self._frames, blinks=int(ground_truth))
        else:
            ground_truth = list(DIRECTIONS)[int(rng.random() * len(DIRECTIONS))]
            video = moving(rng, size=self._size, frames=self._frames, direction=ground_truth)
        return {
            "id": self.id(index),
            "video": {"frames": video, "fps": self._fps},
            "problem": QUESTIONS[self._question],
            "solution": f"<answer> {ground_truth} </answer>",
            self.columns[-1]: ground_truth,
        }

    def where(self, index: int) -> str:
        """Name the seed and the video."""
        return f"{self.name}, video {index}"

    def id(self, index: int) -> str:
        """Name the video by question, seed and number."""
        return f"{self._question}-{self._seed}-{index}"
