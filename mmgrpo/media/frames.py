"""Which frames of a clip are taken, and how large they become. Pure numbers: opens nothing, decodes nothing.

Times are true times: a clip of variable rate is cut into slots of equal length, and each slot shows the frame that a
player would show at its start.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgrpo.config.data import VideoLimits
from mmgrpo.errors import MediaError, explain
from mmgrpo.media.color import Color

MAX_ASPECT_RATIO = 200.0
"""Longer side over shorter side of a frame; no processor of the Qwen family takes more."""
_SAME_TIME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRules:
    """How clips are read: the YAML's limits, and what the processor reads at once."""

    limits: VideoLimits
    """Frames per second, counts and sizes."""
    frames_at_once: int = 1
    """Frames that the encoder merges: counts are multiples of it."""
    side_factor: int = 1
    """Pixels that sides are multiples of where frames are resized."""
    background: Color = (255, 255, 255)
    """Colour under transparent pixels."""

    @staticmethod
    def of(limits: VideoLimits, processor: Any, *, background: Color = (255, 255, 255)) -> ClipRules:
        """Read a processor's own numbers.

        Args:
            limits: The YAML's.
            processor: A loaded processor, or None.
            background: Colour under transparent pixels.
        """
        video = getattr(processor, "video_processor", None)
        patch = getattr(video, "patch_size", None)
        return ClipRules(
            limits=limits,
            frames_at_once=int(getattr(video, "temporal_patch_size", None) or 1),
            side_factor=patch * int(getattr(video, "merge_size", None) or 1) if isinstance(patch, int) else 1,
            background=background,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A clip as it is read: chosen frames, upright RGB."""

    frames: NDArray[np.uint8]
    """``[frames, height, width, 3]``."""
    rate: float
    """Frames per second of these frames: their number over the clip's length."""
    times: tuple[float, ...]
    """Seconds from the clip's start to each frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Frames to take."""

    targets: tuple[float, ...]
    """When, in seconds from the clip's start: the frame that is shown then."""
    rate: float
    """Frames per second."""


def choose(times: Sequence[float], seconds: float, rules: ClipRules) -> Choice:
    """Choose frames: ``fps`` times the length, at most ``max_frames``, a multiple of ``frames_at_once``.

    Args:
        times: When each frame of the clip is shown, rising, from 0.
        seconds: Length of the clip.
        rules: How many to take.

    Returns:
        Every frame where at least as many are asked for as there are; else equally long slots.

    Example:
        >>> rules = ClipRules(limits=VideoLimits(fps=2.0), frames_at_once=2)
        >>> choose([i / 10 for i in range(20)], 2.0, rules).targets
        (0.0, 0.5, 1.0, 1.5)
    """
    group = rules.frames_at_once
    most = max(group, rules.limits.max_frames // group * group)
    fps = rules.limits.fps
    wanted = len(times) if fps is None else max(group, math.floor(min(seconds * fps, most) / group + 1e-6) * group)
    if min(wanted, most) >= len(times):
        return Choice(targets=tuple(times), rate=len(times) / seconds)
    count = min(wanted, most)
    return Choice(targets=tuple(k * seconds / count for k in range(count)), rate=count / seconds)


def shown_at(times: Sequence[float], targets: Sequence[float]) -> list[int]:
    """Find which frame is shown at each moment.

    Args:
        times: When each frame is shown, rising.
        targets: Moments, in seconds.

    Example:
        >>> shown_at([0.0, 1.0, 5.0], [0.0, 2.0, 4.9, 5.0])
        [0, 1, 1, 2]
    """
    return [max(0, bisect_right(times, target + _SAME_TIME) - 1) for target in targets]


def clip_of(frames: Sequence[NDArray[np.uint8]], times: Sequence[float], *, rate: float, group: int) -> Clip:
    """Stack frames; the last one is repeated up to a multiple of ``group``.

    Args:
        frames: Each ``[height, width, 3]``.
        times: When each is shown.
        rate: Frames per second.
        group: Frames that the encoder merges.
    """
    missing = -len(frames) % group
    last = times[-1]
    return Clip(
        frames=np.stack([*frames, *[frames[-1]] * missing]),
        rate=rate,
        times=(*times, *(last + (i + 1) / rate for i in range(missing))),
    )


def frame_size(height: int, width: int, count: int, rules: ClipRules) -> tuple[int, int]:
    """Find the size of each frame under the limits.

    Args:
        height: Of the stored frame, in pixels.
        width: In pixels.
        count: How many frames are taken: they share ``max_total_pixels``.
        rules: The limits; sides become multiples of ``side_factor``, so that the processor changes nothing more.

    Returns:
        Height and width; the stored ones where no limit bites (the processor then resizes by its own rules).

    Example:
        >>> rules = ClipRules(limits=VideoLimits(max_pixels=200 * 200), side_factor=28)
        >>> frame_size(360, 640, 8, rules)
        (140, 252)
        >>> frame_size(100, 100, 8, rules)
        (100, 100)
    """
    factor, limits = rules.side_factor, rules.limits
    caps = [limits.max_pixels, limits.max_total_pixels and limits.max_total_pixels // count]
    cap = max(factor**2, min([c for c in caps if c], default=height * width * 4 + factor**2 * 4))
    high, wide = (max(factor, round(side / factor) * factor) for side in (height, width))
    scale = 1.0
    if high * wide > cap:
        scale = math.sqrt(cap / (height * width))
        high, wide = (max(factor, math.floor(side * scale / factor) * factor) for side in (height, width))
        return min(high, cap // factor // factor * factor), min(wide, cap // high // factor * factor)
    if limits.min_pixels and high * wide < min(limits.min_pixels, cap):
        scale = math.sqrt(limits.min_pixels / (height * width))
        high, wide = (math.ceil(side * scale / factor) * factor for side in (height, width))
        return (high, wide) if high * wide <= cap else (height, width)
    return height, width


def check_frame(height: int, width: int, *, name: str, largest: int) -> None:
    """Refuse frames that no processor can take, before any is decoded.

    Args:
        height: In pixels.
        width: In pixels.
        name: How messages call the clip.
        largest: Most pixels.

    Raises:
        MediaError: Empty, too large, or too narrow.
    """
    fault = ""
    if height < 1 or width < 1:
        fault = "at least one pixel"
    elif height * width > largest:
        fault = f"at most {largest:,} pixels"
    elif max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        fault = f"sides of at most 1 : {MAX_ASPECT_RATIO:g}"
    if fault:
        raise MediaError(
            explain("The frames of a clip cannot be used", where=name, expected=fault, got=f"{width} x {height}")
        )


class Deadline:
    """A moment after which a clip is taken for broken."""

    def __init__(self, seconds: float, *, name: str) -> None:
        """Start the clock for the clip ``name``."""
        self._seconds, self._name = seconds, name
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Look at the clock.

        Raises:
            MediaError: The time is over.
        """
        if time.monotonic() > self._end:
            raise MediaError(
                explain(
                    "A clip takes too long to read",
                    where=self._name,
                    expected=f"at most {self._seconds:g} seconds",
                    fix="Shorten or shrink the file, or raise data.video.max_decode_seconds.",
                )
            )
