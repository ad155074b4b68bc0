"""Clip files (mp4, mkv, webm, avi, mov, …) through PyAV: real frame times, and only the frames that are wanted.

Two passes: the first reads the times of all packets without decoding, so that a header that does not know the number
of frames does no harm; the second decodes, jumps over what nobody asked for, and keeps one frame per moment. Frames
are turned upright, stretched to square pixels, and converted by the colours that the file declares. Interlaced clips
are not de-interlaced. PyAV is imported with the first clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.container import faults, open_container
from mmgrpo.media.frames import Clip, ClipRules, Deadline, check_frame, choose, clip_of, frame_size
from mmgrpo.media.image import MAX_PIXELS_DECODED

_JUMP_SECONDS = 4.0
"""Wanted frames that lie further apart are reached by seeking."""
_MOST_MISSING = 0.1
"""Share of a clip's length, by its header, that may be missing before it is taken for cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """What the first pass finds."""

    times: tuple[float, ...]
    """Of all frames, rising, from 0."""
    start: Fraction
    """When the first frame is shown, on the file's own clock."""
    seconds: float
    """Length of the clip."""


def read_film(source: bytes | Path, *, name: str, rules: ClipRules) -> Clip:
    """Read the wanted frames of a clip file.

    Args:
        source: Encoded bytes, or a file.
        name: How messages call the clip.
        rules: Which frames, and how large.

    Returns:
        The frames with their times.

    Raises:
        MediaError: Not a clip, damaged, cut off, too large, or slower to read than the limit.
    """
    deadline = Deadline(rules.limits.max_decode_seconds, name=name)
    try:
        scan = _scan(source, name, deadline)
        choice = choose(scan.times, scan.seconds, rules)
        jump = scan.seconds / len(choice.targets) > _JUMP_SECONDS
        found = _take(source, name, scan, choice.targets, rules, deadline, jump=jump)
    except MediaError:
        raise
    except faults() as error:
        raise MediaError(damaged(name, f"{type(error).__name__}: {error}")) from error
    times, frames = zip(*found, strict=True)
    return clip_of(frames, times, rate=choice.rate, group=rules.frames_at_once)


def has_sound(source: bytes | Path) -> bool:
    """Tell whether a file holds a sound track; False for what is no film at all.

    Args:
        source: Encoded bytes, or a file.
    """
    try:
        with closing(_open(source, "a clip")) as container:
            return bool(container.streams.audio)
    except (MediaError, *faults()):
        return False


def damaged(name: str, got: str) -> str:
    """Say that a clip is damaged.

    Args:
        name: How messages call it.
        got: What was found.
    """
    return explain(
        "A clip is damaged",
        where=name,
        got=got,
        fix="Replace the file, or set data.on_bad_media: skip to leave such rows out.",
    )


def _open(source: bytes | Path, name: str) -> Any:
    return open_container(source, name=name, expected="mp4, mkv, webm, avi or mov file, an animation, or frames")


def _stream(container: Any, name: str) -> Any:
    if not container.streams.video:
        raise MediaError(explain("A file holds no pictures", where=name, fix="Sounds go in an audio column."))
    stream = container.streams.video[0]
    check_frame(stream.height, stream.width, name=name, largest=MAX_PIXELS_DECODED)
    return stream


def _scan(source: bytes | Path, name: str, deadline: Deadline) -> _Scan:
    with closing(_open(source, name)) as container:
        stream = _stream(container, name)
        stamps: list[int | None] = []
        incomplete = False
        for packet in container.demux(stream):
            deadline.check()
            if packet.size and not packet.is_discard:
                stamps.append(packet.pts)
                incomplete = packet.is_corrupt
        base, rate = stream.time_base, stream.average_rate or stream.guessed_rate
        promised = _promised_seconds(container, stream)
    if not stamps or incomplete:
        raise MediaError(damaged(name, "it ends inside a frame" if stamps else "it holds no frame"))
    if base is None or any(stamp is None for stamp in stamps):
        return _counted(source, name, rate, deadline)
    marks = sorted({stamp for stamp in stamps if stamp is not None})
    times = tuple(float((mark - marks[0]) * base) for mark in marks)
    last = float(np.median(np.diff(times))) if len(times) > 1 else float(1 / rate) if rate else 1.0
    seconds = times[-1] + last
    if promised - seconds > max(1.0, _MOST_MISSING * promised):
        raise MediaError(damaged(name, f"it ends after {seconds:.2f} of {promised:.2f} seconds"))
    return _Scan(times=times, start=marks[0] * base, seconds=seconds)


def _promised_seconds(container: Any, stream: Any) -> float:
    """Length by the header, where it names the pictures' own; a longer sound track proves nothing."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    alone = len(container.streams) == 1 and container.duration is not None
    return container.duration / 1_000_000 if alone else 0.0


def _counted(source: bytes | Path, name: str, rate: Fraction | None, deadline: Deadline) -> _Scan:
    """Count frames by decoding them: the file has no times, so its frames are taken to be equally long."""
    if not rate:
        raise MediaError(damaged(name, "neither frame times nor a frame rate"))
    with closing(_open(source, name)) as container:
        count = 0
        for _ in container.decode(_stream(container, name)):
            deadline.check()
            count += 1
    if not count:
        raise MediaError(damaged(name, "it holds no frame"))
    times = tuple(float(i / rate) for i in range(count))
    return _Scan(times=times, start=Fraction(0), seconds=float(count / rate))


def _take(
    source: bytes | Path,
    name: str,
    scan: _Scan,
    targets: Sequence[float],
    rules: ClipRules,
    deadline: Deadline,
    *,
    jump: bool,
) -> list[tuple[float, NDArray[np.uint8]]]:
    """Decode, and keep the frame that is shown at each target."""
    with closing(_open(source, name)) as container:
        stream = _stream(container, name)
        taken: list[tuple[float, NDArray[np.uint8]]] = []
        frames = _timed(container, stream, scan, deadline)
        held = ahead = next(frames, None)
        for target in targets:
            if jump and ahead is not None and target - ahead[0] > _JUMP_SECONDS:
                container.seek(int((scan.start + Fraction(target)) / stream.time_base), stream=stream, backward=True)
                frames = _timed(container, stream, scan, deadline)
                ahead = next(frames, None)
                held = ahead if ahead is not None and ahead[0] <= target + 1e-6 else held
            while ahead is not None and ahead[0] <= target + 1e-6:
                held, ahead = ahead, next(frames, None)
            if held is None:
                raise MediaError(damaged(name, "it holds no frame that can be decoded"))
            if held[1].is_corrupt:
                raise MediaError(damaged(name, f"the frame at {held[0]:.2f} seconds is incomplete"))
            same = taken and taken[-1][0] == held[0]
            taken.append(taken[-1] if same else (held[0], _pixels(held[1], stream, len(targets), rules)))
    return taken


def _timed(container: Any, stream: Any, scan: _Scan, deadline: Deadline) -> Iterator[tuple[float, Any]]:
    for count, frame in enumerate(container.decode(stream)):
        deadline.check()
        if frame.pts is None or frame.time_base is None:
            yield scan.times[min(count, len(scan.times) - 1)], frame
        else:
            yield float(frame.pts * frame.time_base - scan.start), frame


def _pixels(frame: Any, stream: Any, count: int, rules: ClipRules) -> NDArray[np.uint8]:
    """Convert one frame: declared colours to RGB, square pixels, the wanted size, upright."""
    shape = float(stream.sample_aspect_ratio or 1)
    height, width = frame.height, max(1, round(frame.width * shape))
    high, wide = frame_size(height, width, count, rules)
    picture = frame.reformat(
        width=wide, height=high, format="rgb24", interpolation="BICUBIC", src_color_range=frame.color_range
    ).to_ndarray()
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(picture, turns)) if turns else picture
