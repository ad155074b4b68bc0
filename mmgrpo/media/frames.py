"""Which frames of a video are taken, and how large they become. Pure numbers: opens nothing, decodes nothing.

Times are true times: a video of variable rate is cut into slots of equal length, and each slot shows the frame that a
player would show at its start.

Also what processors of videos are told: the YAML's limits, written where saving the processor keeps them, so that an
engine that loads it comes to the same sizes; and frames as they were chosen, with their true times.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgrpo.config.data import VideoLimits
from mmgrpo.errors import MediaError, ProcessorError, explain
from mmgrpo.media.image import Color
from mmgrpo.types import Decoded

MAX_ASPECT_RATIO = 200.0
"""Longer side over shorter side of a frame; no processor of the Qwen family takes more."""
_SAME_TIME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRules:
    """How videos are read: the YAML's limits, and what the processor reads at once."""

    limits: VideoLimits
    """Frames per second, counts and sizes."""
    frames_at_once: int = 1
    """Frames that the encoder merges: counts are multiples of it."""
    side_factor: int = 1
    """Pixels that sides are multiples of where frames are resized."""
    background: Color = (255, 255, 255)
    """Colour under transparent pixels."""

    @staticmethod
    def of(limits: VideoLimits, processor: Any, *, background: Color = (255, 255, 255)) -> VideoRules:
        """Read a processor's own numbers.

        Args:
            limits: The YAML's.
            processor: A loaded processor, or None.
            background: Colour under transparent pixels.
        """
        video = getattr(processor, "video_processor", None)
        patch = getattr(video, "patch_size", None)
        return VideoRules(
            limits=limits,
            frames_at_once=int(getattr(video, "temporal_patch_size", None) or 1),
            side_factor=patch * int(getattr(video, "merge_size", None) or 1) if isinstance(patch, int) else 1,
            background=background,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFrames:
    """A video as it is read: chosen frames, upright RGB."""

    frames: NDArray[np.uint8]
    """``[frames, height, width, 3]``."""
    rate: float
    """Frames per second of these frames: their number over the video's length."""
    times: tuple[float, ...]
    """Seconds from the video's start to each frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameChoice:
    """Frames to take."""

    targets: tuple[float, ...]
    """When, in seconds from the video's start: the frame that is shown then."""
    rate: float
    """Frames per second."""


def choose_frames(times: Sequence[float], seconds: float, rules: VideoRules) -> FrameChoice:
    """Choose frames: ``fps`` times the length, at most ``max_frames``, a multiple of ``frames_at_once``.

    Args:
        times: When each frame of the video is shown, rising, from 0.
        seconds: Length of the video.
        rules: How many to take.

    Returns:
        Every frame where at least as many are asked for as there are; else equally long slots.

    Example:
        >>> rules = VideoRules(limits=VideoLimits(fps=2.0), frames_at_once=2)
        >>> choose_frames([i / 10 for i in range(20)], 2.0, rules).targets
        (0.0, 0.5, 1.0, 1.5)
    """
    group = rules.frames_at_once
    most = max(group, rules.limits.max_frames // group * group)
    fps = rules.limits.fps
    wanted = len(times) if fps is None else max(group, math.floor(min(seconds * fps, most) / group + 1e-6) * group)
    if min(wanted, most) >= len(times):
        return FrameChoice(targets=tuple(times), rate=len(times) / seconds)
    count = min(wanted, most)
    return FrameChoice(targets=tuple(k * seconds / count for k in range(count)), rate=count / seconds)


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


def stack_frames(
    frames: Sequence[NDArray[np.uint8]], times: Sequence[float], *, rate: float, group: int
) -> VideoFrames:
    """Stack frames; the last one is repeated up to a multiple of ``group``.

    Args:
        frames: Each ``[height, width, 3]``.
        times: When each is shown.
        rate: Frames per second.
        group: Frames that the encoder merges.
    """
    missing = -len(frames) % group
    last = times[-1]
    return VideoFrames(
        frames=np.stack([*frames, *[frames[-1]] * missing]),
        rate=rate,
        times=(*times, *(last + (i + 1) / rate for i in range(missing))),
    )


def frame_size(height: int, width: int, count: int, rules: VideoRules) -> tuple[int, int]:
    """Find the size of each frame under the limits.

    Args:
        height: Of the stored frame, in pixels.
        width: In pixels.
        count: How many frames are taken: they share ``max_total_pixels``.
        rules: The limits; sides become multiples of ``side_factor``, so that the processor changes nothing more.

    Returns:
        Height and width; the stored ones where no limit bites (the processor then resizes by its own rules).

    Example:
        >>> rules = VideoRules(limits=VideoLimits(max_pixels=200 * 200), side_factor=28)
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
        name: How messages call the video.
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
            explain("The frames of a video cannot be used", where=name, expected=fault, got=f"{width} x {height}")
        )


class Deadline:
    """A moment after which a video is taken for broken."""

    def __init__(self, seconds: float, *, name: str) -> None:
        """Start the clock for the video ``name``."""
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
                    "A video takes too long to read",
                    where=self._name,
                    expected=f"at most {self._seconds:g} seconds",
                    fix="Shorten or shrink the file, or raise data.video.max_decode_seconds.",
                )
            )


_TICKS = 1_000_000
"""Videos are described on a clock of microseconds, so that frames of any rate keep their true times."""

_PROBE_SIDE = 8192


def set_video_limits(processor: Any, limits: VideoLimits) -> None:
    """Lay the YAML's limits over those of the checkpoint.

    Args:
        processor: A loaded processor; one without videos, or whose videos have a fixed size, is left alone.
        limits: The YAML's.
    """
    video = getattr(processor, "video_processor", None)
    size = getattr(video, "size", None)
    edges = [value for name, value in dict(size or {}).items() if name in ("shortest_edge", "longest_edge")]
    if video is None or size is None or len(edges) != 2 or not all(isinstance(edge, int) for edge in edges):
        return
    lowest, highest = sorted(edges)
    if counts_all_frames(video):
        highest = limits.max_total_pixels or highest
    elif limits.max_pixels is not None:
        highest = min(highest, limits.max_pixels)
    if limits.max_total_pixels is not None:
        lowest = min(lowest, limits.max_total_pixels // limits.max_frames)
    video.size = type(size)(shortest_edge=min(limits.min_pixels or lowest, highest), longest_edge=highest)


def counts_all_frames(video_processor: Any) -> bool:
    """Tell whether a processor's limits are for all frames of a video together, or for each.

    Found by asking for the patches of a short and of a long video of huge frames: where they share a limit, ten times
    the frames do not give ten times the patches.

    Args:
        video_processor: What has the limits.
    """
    count = getattr(video_processor, "get_num_of_video_patches", None)
    if count is None:
        return False
    group = int(getattr(video_processor, "temporal_patch_size", None) or 1)
    try:
        short, long = (count(group * n, _PROBE_SIDE, _PROBE_SIDE, {}) for n in (2, 20))
    except (TypeError, ValueError, KeyError):
        return False
    return bool(long < 5 * short)


def video_inputs(videos: Sequence[Decoded], processor: Any) -> dict[str, Any]:
    """Hand frames over as they are: they were chosen here, so the processor must not choose again."""
    settings: dict[str, Any] = {
        "video_metadata": [video_metadata(video) for video in videos],
        "do_sample_frames": False,
    }
    part = getattr(processor, "video_processor", None)
    of_the_class = _settings_of_the_class(processor)
    if hasattr(part, "cap_pixels_per_frame"):
        settings["cap_pixels_per_frame"] = False  # sizes were limited here, and are saved with the processor
    if "size" in of_the_class and getattr(part, "size", None) is not None:
        sizes = dict(part.size)
        settings["size"] = {name: value for name, value in sizes.items() if value}  # else a constant would win
    if not of_the_class.get("return_metadata"):
        settings["fps"] = _one_rate(videos, processor)
    return {"videos": [video.data for video in videos], "videos_kwargs": settings}


def _settings_of_the_class(processor: Any) -> Mapping[str, Any]:
    """Give what the class of a processor hands to its video processor, whatever that was loaded with.

    Up to transformers 5.19 it stands among the defaults of the class's keyword arguments.
    """
    older = getattr(getattr(processor, "valid_processor_kwargs", None), "_defaults", {})
    return getattr(processor, "videos_kwargs", None) or older.get("videos_kwargs", {})


def _one_rate(videos: Sequence[Decoded], processor: Any) -> float:
    """Give the rate of all videos, for a processor that takes no other word on time."""
    rates = sorted({video.rate or 0.0 for video in videos})
    if len(rates) == 1:
        return rates[0]
    raise ProcessorError(
        explain(
            f"{type(processor).__name__} takes one frame rate for all videos of a prompt",
            where=", ".join(video.name for video in videos),
            got=", ".join(f"{rate:g}" for rate in rates) + " frames per second",
            fix="Give one video per row, or videos of one length.",
        )
    )


def video_metadata(video: Decoded) -> Mapping[str, Any]:
    """Describe a video on a clock of microseconds: its length, and when each frame is shown.

    Args:
        video: A decoded video.

    Returns:
        What transformers calls video metadata: frame numbers over ``fps`` are seconds, and the number of frames over
        ``total_num_frames`` times ``fps`` is the rate.

    Example:
        >>> import numpy as np
        >>> two = Decoded(kind="video", data=np.zeros((2, 4, 6, 3), np.uint8), rate=0.5, times=(0.0, 1.5))
        >>> video_metadata(two)["frames_indices"], video_metadata(two)["total_num_frames"]
        ([0, 1500000], 4000000)
    """
    count, height, width = video.data.shape[:3]
    rate = video.rate or 1.0
    times = video.times or tuple(i / rate for i in range(count))
    return {
        "total_num_frames": round(count / rate * _TICKS),
        "fps": float(_TICKS),
        "width": width,
        "height": height,
        "duration": count / rate,
        "frames_indices": [round(moment * _TICKS) for moment in times],
    }
