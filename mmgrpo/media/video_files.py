"""Video files (mp4, mkv, webm, avi, mov, …) through PyAV: real frame times, and only the frames that are wanted.

Two passes: the first reads the times of all packets without decoding, so that a header that does not know the number
of frames does no harm; the second decodes, jumps over what nobody asked for, and keeps one frame per moment. Frames
are turned upright, stretched to square pixels, and converted by the colours that the file declares. Interlaced videos
are not de-interlaced. PyAV is imported with the first video.

Audio tracks become media items of their own, each right after its video. A family that reads both then sees the video
and hears it: after the video, or interleaved with it, moment by moment, where the family was made for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.frames import Deadline, VideoFrames, VideoRules, check_frame, choose_frames, frame_size, stack_frames
from mmgrpo.media.image import MAX_PIXELS_DECODED
from mmgrpo.media.sources import av_errors, open_container, resolve_source
from mmgrpo.types import Media, Message, Sample

_JUMP_SECONDS = 4.0
"""Wanted frames that lie further apart are reached by seeking."""
_MOST_MISSING = 0.1
"""Share of a video's length, by its header, that may be missing before it is taken for cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """What the first pass finds."""

    times: tuple[float, ...]
    """Of all frames, rising, from 0."""
    start: Fraction
    """When the first frame is shown, on the file's own clock."""
    seconds: float
    """Length of the video."""


def read_video_file(source: bytes | Path, *, name: str, rules: VideoRules) -> VideoFrames:
    """Read the wanted frames of a video file.

    Args:
        source: Encoded bytes, or a file.
        name: How messages call the video.
        rules: Which frames, and how large.

    Returns:
        The frames with their times.

    Raises:
        MediaError: Not a video, damaged, cut off, too large, or slower to read than the limit.
    """
    deadline = Deadline(rules.limits.max_decode_seconds, name=name)
    try:
        scan = _scan(source, name, deadline)
        choice = choose_frames(scan.times, scan.seconds, rules)
        jump = scan.seconds / len(choice.targets) > _JUMP_SECONDS
        found = _take(source, name, scan, choice.targets, rules, deadline, jump=jump)
    except MediaError:
        raise
    except av_errors() as error:
        raise MediaError(damaged_video(name, f"{type(error).__name__}: {error}")) from error
    times, frames = zip(*found, strict=True)
    return stack_frames(frames, times, rate=choice.rate, group=rules.frames_at_once)


def has_audio_track(source: bytes | Path) -> bool:
    """Tell whether a file holds an audio track; False for what is no video file at all.

    Args:
        source: Encoded bytes, or a file.
    """
    try:
        with closing(_open(source, "a video")) as container:
            return bool(container.streams.audio)
    except (MediaError, *av_errors()):
        return False


def damaged_video(name: str, got: str) -> str:
    """Say that a video is damaged.

    Args:
        name: How messages call it.
        got: What was found.
    """
    return explain(
        "A video is damaged",
        where=name,
        got=got,
        fix="Replace the file, or set data.on_bad_media: skip to leave such rows out.",
    )


def _open(source: bytes | Path, name: str) -> Any:
    return open_container(source, name=name, expected="mp4, mkv, webm, avi or mov file, an animation, or frames")


def _stream(container: Any, name: str) -> Any:
    if not container.streams.video:
        raise MediaError(explain("A file holds no video", where=name, fix="Audio goes in an audio column."))
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
        raise MediaError(damaged_video(name, "it ends inside a frame" if stamps else "it holds no frame"))
    if base is None or any(stamp is None for stamp in stamps):
        return _counted(source, name, rate, deadline)
    marks = sorted({stamp for stamp in stamps if stamp is not None})
    times = tuple(float((mark - marks[0]) * base) for mark in marks)
    last = float(np.median(np.diff(times))) if len(times) > 1 else float(1 / rate) if rate else 1.0
    seconds = times[-1] + last
    if promised - seconds > max(1.0, _MOST_MISSING * promised):
        raise MediaError(damaged_video(name, f"it ends after {seconds:.2f} of {promised:.2f} seconds"))
    return _Scan(times=times, start=marks[0] * base, seconds=seconds)


def _promised_seconds(container: Any, stream: Any) -> float:
    """Length by the header, where it names the frames' own; a longer audio track proves nothing."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    alone = len(container.streams) == 1 and container.duration is not None
    return container.duration / 1_000_000 if alone else 0.0


def _counted(source: bytes | Path, name: str, rate: Fraction | None, deadline: Deadline) -> _Scan:
    """Count frames by decoding them: the file has no times, so its frames are taken to be equally long."""
    if not rate:
        raise MediaError(damaged_video(name, "neither frame times nor a frame rate"))
    with closing(_open(source, name)) as container:
        count = 0
        for _ in container.decode(_stream(container, name)):
            deadline.check()
            count += 1
    if not count:
        raise MediaError(damaged_video(name, "it holds no frame"))
    times = tuple(float(i / rate) for i in range(count))
    return _Scan(times=times, start=Fraction(0), seconds=float(count / rate))


def _take(
    source: bytes | Path,
    name: str,
    scan: _Scan,
    targets: Sequence[float],
    rules: VideoRules,
    deadline: Deadline,
    *,
    jump: bool,
) -> list[tuple[float, NDArray[np.uint8]]]:
    """Decode, and keep the frame that is shown at each target."""
    with closing(_open(source, name)) as container:
        stream = _stream(container, name)
        taken: list[tuple[float, NDArray[np.uint8]]] = []
        frames = _timed(container, stream, scan, deadline)
        shown = ahead = next(frames, None)
        for target in targets:
            if jump and ahead is not None and target - ahead[0] > _JUMP_SECONDS:
                container.seek(int((scan.start + Fraction(target)) / stream.time_base), stream=stream, backward=True)
                frames = _timed(container, stream, scan, deadline)
                ahead = next(frames, None)
                shown = ahead if ahead is not None and ahead[0] <= target + 1e-6 else shown
            while ahead is not None and ahead[0] <= target + 1e-6:
                shown, ahead = ahead, next(frames, None)
            if shown is None:
                raise MediaError(damaged_video(name, "it holds no frame that can be decoded"))
            if shown[1].is_corrupt:
                raise MediaError(damaged_video(name, f"the frame at {shown[0]:.2f} seconds is incomplete"))
            same = taken and taken[-1][0] == shown[0]
            taken.append(taken[-1] if same else (shown[0], _pixels(shown[1], stream, len(targets), rules)))
    return taken


def _timed(container: Any, stream: Any, scan: _Scan, deadline: Deadline) -> Iterator[tuple[float, Any]]:
    for number, frame in enumerate(container.decode(stream)):
        deadline.check()
        if frame.pts is None or frame.time_base is None:
            yield scan.times[min(number, len(scan.times) - 1)], frame
        else:
            yield float(frame.pts * frame.time_base - scan.start), frame


def _pixels(frame: Any, stream: Any, count: int, rules: VideoRules) -> NDArray[np.uint8]:
    """Convert one frame: declared colours to RGB, square pixels, the wanted size, upright."""
    shape = float(stream.sample_aspect_ratio or 1)
    height, width = frame.height, max(1, round(frame.width * shape))
    high, wide = frame_size(height, width, count, rules)
    pixels = frame.reformat(
        width=wide, height=high, format="rgb24", interpolation="BICUBIC", src_color_range=frame.color_range
    ).to_ndarray()
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels


def with_audio_tracks(sample: Sample, *, interleaved: bool = False) -> Sample:
    """Add the audio of each video file behind its video, in the messages and among the media.

    Args:
        sample: A row.
        interleaved: The tracks get no place of their own in the messages: they are part of their videos. Only where
            every video of the row has one; else they stand behind their videos after all.

    Returns:
        The row with the audio; the same object where no video has one, or where they were added before.
    """
    has_tracks = [item.kind == "video" and _has_track(item) for item in sample.media]
    pairs = [(a, b) for a, b in pairwise(sample.media) if (a.kind, b.kind) == ("video", "audio")]
    added = any(_video_source(video.source) is audio.source for video, audio in pairs)
    if not any(has_tracks) or added:
        return sample
    media: list[Media] = []
    for item, has_track in zip(sample.media, has_tracks, strict=True):
        media.append(item)
        if has_track:
            media.append(Media(kind="audio", source=_video_source(item.source), name=f"{item.name} (sound)"))
    if interleaved and sum(has_tracks) == sum(item.kind == "video" for item in sample.media):
        return replace(sample, media=tuple(media))
    order = iter(has_tracks)
    messages = tuple(_with_audio_blocks(message, order) for message in sample.messages)
    return replace(sample, messages=messages, media=tuple(media))


def audio_in_video_slots(sample: Sample) -> list[int | None]:
    """Tell for each audio item of a row inside which of its videos it stands.

    Args:
        sample: A row; audio without a place in its messages are those of its videos, each right after its video.

    Returns:
        Number of the video among the videos, or None for audio with a place of its own; empty where each has one.

    Example:
        >>> video, audio = Media(kind="video", source="a.mp4"), Media(kind="audio", source="a.mp4")
        >>> asked = {"role": "user", "content": [{"type": "video"}]}
        >>> audio_in_video_slots(Sample(id="0", messages=(asked,), media=(video, audio)))
        [0]
    """
    blocks = [b["type"] for m in sample.messages if not isinstance(m["content"], str) for b in m["content"]]
    kinds = [item.kind for item in sample.media]
    if kinds.count("audio") <= blocks.count("audio"):
        return []
    follows = [before == "video" for before, kind in pairwise(["", *kinds]) if kind == "audio"]
    number = count()
    return [next(number) if own else None for own in follows]


def _with_audio_blocks(message: Message, order: Iterator[bool]) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return message
    blocks: list[Mapping[str, Any]] = []
    for block in content:
        blocks.append(block)
        if block["type"] != "text" and next(order):
            blocks.append({"type": "audio"})
    return {**message, "content": blocks}


def _video_source(source: Any) -> Any:
    """Give the video itself, where a source says how to show it."""
    return source["video"] if isinstance(source, Mapping) and source.get("video") is not None else source


def _has_track(item: Media) -> bool:
    """Tell whether a video is a file with an audio track; what cannot be opened is reported when it is decoded."""
    try:
        found = resolve_source(_video_source(item.source), name=item.name)
    except MediaError:
        return False
    return isinstance(found, bytes | Path) and has_audio_track(found)
