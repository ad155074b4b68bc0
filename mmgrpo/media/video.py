"""Clips: files, animations, lists of frames and arrays in; chosen frames with their times out.

Files are ``media/film.py``'s; here are those that are pictures already. All paths give upright RGB frames, and choose
frames by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.color import array_to_frames, to_rgb
from mmgrpo.media.film import damaged, read_film
from mmgrpo.media.frames import Clip, ClipRules, Deadline, check_frame, choose, clip_of, frame_size, shown_at
from mmgrpo.media.image import FAULTS, MAX_PIXELS_DECODED, open_image, read_image
from mmgrpo.media.sources import find, load, require_file

FRAMES_PER_SECOND = 2.0
"""Rate of frames that bring none and of which every one is taken."""
_STILL_SECONDS = 0.1
"""How long a frame of an animation stands that does not say: what browsers do."""
_MOST_FRAMES = 100_000
_TRIES = 8


def read_video(source: Any, *, name: str, rate: float | None, rules: ClipRules) -> Clip:
    """Read one clip.

    Args:
        source: A file, encoded bytes (a film or an animation), an array ``[frames, height, width, 3]``, a list of
            frames (paths, bytes, pictures, arrays), ``{"frames": …, "fps": …}``, or ``{"video": …, "shuffled": seed}``
            for the frames that are taken of a clip in another order.
        name: How messages call the clip.
        rate: Frames per second of a list or array. Without one they are taken as chosen already: at ``video.fps``.
        rules: Which frames, and how large.

    Returns:
        The frames with their times.

    Raises:
        MediaError: Not a clip, damaged, cut off, too large, or slower to read than the limit.
    """
    if isinstance(source, Mapping) and source.get("shuffled") is not None:
        return _shuffled(read_video(source["video"], name=name, rate=rate, rules=rules), source["shuffled"])
    if isinstance(source, Mapping):
        own = next((source[key] for key in ("fps", "rate") if source.get(key)), rate)
        held = next((source[key] for key in ("frames", "array", "video") if source.get(key) is not None), None)
        return read_video(find(source, name=name) if held is None else held, name=name, rate=own, rules=rules)
    if isinstance(source, str):
        return read_video(find(source, name=name), name=name, rate=rate, rules=rules)
    if isinstance(source, bytes | Path):
        head = _head(source, name)
        film = not _is_animation(head)
        return read_film(source, name=name, rules=rules) if film else _animation(source, name, rules)
    if isinstance(source, Sequence) and len(source):
        return _listed(source, name, rate, rules)
    if hasattr(source, "__array__") or hasattr(source, "cpu"):
        return _stacked(array_to_frames(source, name=name), name, rate, rules)
    raise MediaError(
        explain(
            "This is not a clip",
            where=name,
            expected="a path, bytes, base64, a list of frames, or an array [frames, height, width, 3]",
            got="no frames" if isinstance(source, Sequence) else type(source).__name__,
        )
    )


def _shuffled(clip: Clip, seed: int) -> Clip:
    """Show the frames of a clip in another order, at the same times; a clip of one frame or of equal ones has none."""
    order = np.random.RandomState(seed % 2**32)
    frames = clip.frames
    for _ in range(_TRIES):
        frames = clip.frames[order.permutation(len(clip.frames))]
        if not np.array_equal(frames, clip.frames):
            break
    return replace(clip, frames=frames)


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


def _animation(source: bytes | Path, name: str, rules: ClipRules) -> Clip:
    deadline = Deadline(rules.limits.max_decode_seconds, name=name)
    data = source if isinstance(source, bytes) else load(source, name=name)
    try:
        with open_image(data, name=name) as image:
            check_frame(image.height, image.width, name=name, largest=MAX_PIXELS_DECODED)
            times = _durations(image, deadline)
            choice = choose(times[:-1], times[-1], rules)
            size = frame_size(image.height, image.width, len(choice.targets), rules)
            numbers = shown_at(times[:-1], choice.targets)
            frames: dict[int, NDArray[np.uint8]] = {}
            for number in sorted(set(numbers)):
                deadline.check()
                image.seek(number)
                frames[number] = _sized(to_rgb(image, background=rules.background, name=name), size)
    except MediaError:
        raise
    except FAULTS as error:
        raise MediaError(damaged(name, f"{type(error).__name__}: {error}")) from error
    shown = [times[number] for number in numbers]
    return clip_of([frames[n] for n in numbers], shown, rate=choice.rate, group=rules.frames_at_once)


def _durations(image: Image.Image, deadline: Deadline) -> list[float]:
    """When each frame of an animation is shown, and when the last one ends, in seconds."""
    times = [0.0]
    for number in range(min(getattr(image, "n_frames", 1), _MOST_FRAMES)):
        deadline.check()
        image.seek(number)
        image.load()  # only then do all formats know how long the frame stands
        times.append(times[-1] + (float(image.info.get("duration") or 0) / 1000 or _STILL_SECONDS))
    return times


def _listed(source: Sequence[Any], name: str, rate: float | None, rules: ClipRules) -> Clip:
    if hasattr(source[0], "__array__") and np.ndim(source[0]) == 4:
        raise MediaError(explain("A list holds clips where one clip is meant", where=name, expected="frames"))
    numbers, choice = _of_equal_length(len(source), name, rate, rules)
    frames: dict[int, NDArray[np.uint8]] = {}
    deadline = Deadline(rules.limits.max_decode_seconds, name=name)
    size: tuple[int, int] | None = None
    stored: tuple[int, int] | None = None
    for number in sorted(set(numbers)):
        deadline.check()
        at = f"{name}, frame {number}"
        image = read_image(load(source[number], name=at), name=at, background=rules.background)
        if stored not in (None, image.size):
            raise MediaError(explain("Frames differ in size", where=at, expected=f"{stored}", got=f"{image.size}"))
        if size is None:
            stored = image.size
            check_frame(image.height, image.width, name=name, largest=MAX_PIXELS_DECODED)
            size = frame_size(image.height, image.width, len(numbers), rules)
        frames[number] = _sized(image, size)
    return clip_of([frames[n] for n in numbers], choice[0], rate=choice[1], group=rules.frames_at_once)


def _stacked(frames: NDArray[np.uint8], name: str, rate: float | None, rules: ClipRules) -> Clip:
    height, width = frames.shape[1:3]
    check_frame(height, width, name=name, largest=MAX_PIXELS_DECODED)
    numbers, (times, taken) = _of_equal_length(len(frames), name, rate, rules)
    size = frame_size(height, width, len(numbers), rules)
    chosen = [frames[n] if size == (height, width) else _sized(Image.fromarray(frames[n]), size) for n in numbers]
    return clip_of(chosen, times, rate=taken, group=rules.frames_at_once)


def _of_equal_length(
    count: int, name: str, rate: float | None, rules: ClipRules
) -> tuple[list[int], tuple[list[float], float]]:
    """Choose among frames that are equally long: their numbers, and their times and rate."""
    known = rate or rules.limits.fps or FRAMES_PER_SECOND
    if not 1e-3 <= known <= 1e5:
        raise MediaError(explain("A frame rate cannot be right", where=name, got=f"{known:g} frames per second"))
    times = [i / known for i in range(count)]
    choice = choose(times, count / known, rules)
    numbers = shown_at(times, choice.targets)
    return numbers, ([times[n] for n in numbers], choice.rate)


def _sized(image: Image.Image, size: tuple[int, int]) -> NDArray[np.uint8]:
    high, wide = size
    same = (image.height, image.width) == size
    return np.asarray(image if same else image.resize((wide, high), Image.Resampling.BICUBIC))
