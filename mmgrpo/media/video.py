"""Videos: files, animations, lists of frames and arrays in; chosen frames with their times out.

Files are ``media/video_files.py``'s; here are those that are images already. All paths give upright RGB frames, and
choose frames by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmgrpo.config.data import VideoLimits
from mmgrpo.errors import MediaError, explain
from mmgrpo.media.arrays import array_to_frames
from mmgrpo.media.frames import (
    Deadline,
    VideoFrames,
    VideoRules,
    check_frame,
    choose_frames,
    frame_size,
    shown_at,
    stack_frames,
)
from mmgrpo.media.image import IMAGE_ERRORS, MAX_PIXELS_DECODED, open_image, read_image, to_rgb
from mmgrpo.media.sources import load_source, require_file, resolve_source
from mmgrpo.media.video_files import damaged_video, read_video_file
from mmgrpo.types import Decoded, Media, MediaKind

FRAMES_PER_SECOND = 2.0
"""Rate of frames that bring none and of which every one is taken."""
_STILL_SECONDS = 0.1
"""How long a frame of an animation stands that does not say: what browsers do."""
_MOST_FRAMES = 100_000
_TRIES = 8


def read_video(source: Any, *, name: str, rate: float | None, rules: VideoRules) -> VideoFrames:
    """Read one video.

    Args:
        source: A file, encoded bytes (a video or an animation), an array ``[frames, height, width, 3]``, a list of
            frames (paths, bytes, images, arrays), ``{"frames": …, "fps": …}``, or ``{"video": …, "shuffled": seed}``
            for the frames that are taken of a video in another order.
        name: How messages call the video.
        rate: Frames per second of a list or array. Without one they are taken as chosen already: at ``video.fps``.
        rules: Which frames, and how large.

    Returns:
        The frames with their times.

    Raises:
        MediaError: Not a video, damaged, cut off, too large, or slower to read than the limit.
    """
    if isinstance(source, Mapping) and source.get("shuffled") is not None:
        return _shuffled(read_video(source["video"], name=name, rate=rate, rules=rules), source["shuffled"])
    if isinstance(source, Mapping):
        own = next((source[key] for key in ("fps", "rate") if source.get(key)), rate)
        frames = next((source[key] for key in ("frames", "array", "video") if source.get(key) is not None), None)
        return read_video(
            resolve_source(source, name=name) if frames is None else frames, name=name, rate=own, rules=rules
        )
    if isinstance(source, str):
        return read_video(resolve_source(source, name=name), name=name, rate=rate, rules=rules)
    if isinstance(source, bytes | Path):
        head = _head(source, name)
        is_video_file = not _is_animation(head)
        return read_video_file(source, name=name, rules=rules) if is_video_file else _animation(source, name, rules)
    if isinstance(source, Sequence) and len(source):
        return _listed(source, name, rate, rules)
    if hasattr(source, "__array__") or hasattr(source, "cpu"):
        return _stacked(array_to_frames(source, name=name), name, rate, rules)
    raise MediaError(
        explain(
            "This is not a video",
            where=name,
            expected="a path, bytes, base64, a list of frames, or an array [frames, height, width, 3]",
            got="no frames" if isinstance(source, Sequence) else type(source).__name__,
        )
    )


def _shuffled(video: VideoFrames, seed: int) -> VideoFrames:
    """Show the frames of a video in another order, at the same times; one of equal frames has none."""
    order = np.random.RandomState(seed % 2**32)
    frames = video.frames
    for _ in range(_TRIES):
        frames = video.frames[order.permutation(len(video.frames))]
        if not np.array_equal(frames, video.frames):
            break
    return replace(video, frames=frames)


def _head(source: bytes | Path, name: str) -> bytes:
    if isinstance(source, bytes):
        return source[:4096]
    with require_file(source, name=name).open("rb") as file:
        return file.read(4096)


def _is_animation(head: bytes) -> bool:
    """Tell by the first bytes whether Pillow reads this: GIF, WebP, PNG, AVIF."""
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    is_avif = head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis")
    return head[:4] == b"GIF8" or head[:8] == b"\x89PNG\r\n\x1a\n" or is_webp or is_avif


def _animation(source: bytes | Path, name: str, rules: VideoRules) -> VideoFrames:
    deadline = Deadline(rules.limits.max_decode_seconds, name=name)
    data = source if isinstance(source, bytes) else load_source(source, name=name)
    try:
        with open_image(data, name=name) as image:
            check_frame(image.height, image.width, name=name, largest=MAX_PIXELS_DECODED)
            times = _durations(image, deadline)
            choice = choose_frames(times[:-1], times[-1], rules)
            size = frame_size(image.height, image.width, len(choice.targets), rules)
            numbers = shown_at(times[:-1], choice.targets)
            frames: dict[int, NDArray[np.uint8]] = {}
            for number in sorted(set(numbers)):
                deadline.check()
                image.seek(number)
                frames[number] = _sized(to_rgb(image, background=rules.background, name=name), size)
    except MediaError:
        raise
    except IMAGE_ERRORS as error:
        raise MediaError(damaged_video(name, f"{type(error).__name__}: {error}")) from error
    shown = [times[number] for number in numbers]
    return stack_frames([frames[n] for n in numbers], shown, rate=choice.rate, group=rules.frames_at_once)


def _durations(image: Image.Image, deadline: Deadline) -> list[float]:
    """When each frame of an animation is shown, and when the last one ends, in seconds."""
    times = [0.0]
    for number in range(min(getattr(image, "n_frames", 1), _MOST_FRAMES)):
        deadline.check()
        image.seek(number)
        image.load()  # only then do all formats know how long the frame stands
        times.append(times[-1] + (float(image.info.get("duration") or 0) / 1000 or _STILL_SECONDS))
    return times


def _listed(source: Sequence[Any], name: str, rate: float | None, rules: VideoRules) -> VideoFrames:
    if hasattr(source[0], "__array__") and np.ndim(source[0]) == 4:
        raise MediaError(explain("A list holds videos where one video is meant", where=name, expected="frames"))
    numbers, choice = _of_equal_length(len(source), name, rate, rules)
    frames: dict[int, NDArray[np.uint8]] = {}
    deadline = Deadline(rules.limits.max_decode_seconds, name=name)
    size: tuple[int, int] | None = None
    stored: tuple[int, int] | None = None
    for number in sorted(set(numbers)):
        deadline.check()
        at = f"{name}, frame {number}"
        image = read_image(load_source(source[number], name=at), name=at, background=rules.background)
        if stored not in (None, image.size):
            raise MediaError(explain("Frames differ in size", where=at, expected=f"{stored}", got=f"{image.size}"))
        if size is None:
            stored = image.size
            check_frame(image.height, image.width, name=name, largest=MAX_PIXELS_DECODED)
            size = frame_size(image.height, image.width, len(numbers), rules)
        frames[number] = _sized(image, size)
    return stack_frames([frames[n] for n in numbers], choice[0], rate=choice[1], group=rules.frames_at_once)


def _stacked(frames: NDArray[np.uint8], name: str, rate: float | None, rules: VideoRules) -> VideoFrames:
    height, width = frames.shape[1:3]
    check_frame(height, width, name=name, largest=MAX_PIXELS_DECODED)
    numbers, (times, taken) = _of_equal_length(len(frames), name, rate, rules)
    size = frame_size(height, width, len(numbers), rules)
    chosen = [frames[n] if size == (height, width) else _sized(Image.fromarray(frames[n]), size) for n in numbers]
    return stack_frames(chosen, times, rate=taken, group=rules.frames_at_once)


def _of_equal_length(
    count: int, name: str, rate: float | None, rules: VideoRules
) -> tuple[list[int], tuple[list[float], float]]:
    """Choose among frames that are equally long: their numbers, and their times and rate."""
    known = rate or rules.limits.fps or FRAMES_PER_SECOND
    if not 1e-3 <= known <= 1e5:
        raise MediaError(explain("A frame rate cannot be right", where=name, got=f"{known:g} frames per second"))
    times = [i / known for i in range(count)]
    choice = choose_frames(times, count / known, rules)
    numbers = shown_at(times, choice.targets)
    return numbers, ([times[n] for n in numbers], choice.rate)


def _sized(image: Image.Image, size: tuple[int, int]) -> NDArray[np.uint8]:
    high, wide = size
    same = (image.height, image.width) == size
    return np.asarray(image if same else image.resize((wide, high), Image.Resampling.BICUBIC))


class VideoAdapter:
    """Videos: files, animations, lists of frames, arrays."""

    kind: MediaKind = "video"

    def __init__(self, rules: VideoRules | None = None) -> None:
        """Take the rules by which frames are chosen and sized."""
        self._rules = rules or VideoRules(limits=VideoLimits())

    def reads(self, media: Media) -> bool:
        """Read every video."""
        return True

    def decode(self, media: Media) -> Decoded:
        """Decode one video."""
        name = media.name or "a video"
        video = read_video(media.source, name=name, rate=media.rate, rules=self._rules)
        return Decoded(kind="video", data=video.frames, rate=video.rate, times=video.times, name=media.name)

    def verify(self, media: Media) -> None:
        """Check one video: read the frames that a run would read."""
        self.decode(media)
