"""The sound of clips as media of their own, each right after its clip.

A family that reads both then sees the clip and hears it: after the clip, or woven into it, moment by moment, where the
family was made for that. A clip without sound stays as it is. Knows no family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from mmgrpo.errors import MediaError
from mmgrpo.media.film import has_sound
from mmgrpo.media.sources import find
from mmgrpo.types import Media, Message, Sample


def with_sound(sample: Sample, *, woven: bool = False) -> Sample:
    """Add the sound of each clip file behind its clip, in the messages and among the media.

    Args:
        sample: A row.
        woven: The sounds get no place of their own in the messages: they are part of their clips. Only where every
            clip of the row has a sound; else they stand behind their clips after all.

    Returns:
        The row with the sounds; the same object where no clip has one, or where they were added before.
    """
    loud = [medium.kind == "video" and _is_loud(medium) for medium in sample.media]
    pairs = [(a, b) for a, b in pairwise(sample.media) if (a.kind, b.kind) == ("video", "audio")]
    added = any(_film(clip.source) is sound.source for clip, sound in pairs)
    if not any(loud) or added:
        return sample
    media: list[Media] = []
    for medium, heard in zip(sample.media, loud, strict=True):
        media.append(medium)
        if heard:
            media.append(Media(kind="audio", source=_film(medium.source), name=f"{medium.name} (sound)"))
    if woven and sum(loud) == sum(medium.kind == "video" for medium in sample.media):
        return replace(sample, media=tuple(media))
    order = iter(loud)
    messages = tuple(_heard(message, order) for message in sample.messages)
    return replace(sample, messages=messages, media=tuple(media))


def woven_into(sample: Sample) -> list[int | None]:
    """Tell for each sound of a row inside which of its clips it stands.

    Args:
        sample: A row; sounds without a place in its messages are those of its clips, each right after its clip.

    Returns:
        Number of the clip among the clips, or None for a sound with a place of its own; empty where every sound has
        one.

    Example:
        >>> film, sound = Media(kind="video", source="a.mp4"), Media(kind="audio", source="a.mp4")
        >>> asked = {"role": "user", "content": [{"type": "video"}]}
        >>> woven_into(Sample(id="0", messages=(asked,), media=(film, sound)))
        [0]
    """
    blocks = [b["type"] for m in sample.messages if not isinstance(m["content"], str) for b in m["content"]]
    kinds = [medium.kind for medium in sample.media]
    if kinds.count("audio") <= blocks.count("audio"):
        return []
    follows = [before == "video" for before, kind in pairwise(["", *kinds]) if kind == "audio"]
    number = count()
    return [next(number) if own else None for own in follows]


def _heard(message: Message, order: Iterator[bool]) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return message
    blocks: list[Mapping[str, Any]] = []
    for block in content:
        blocks.append(block)
        if block["type"] != "text" and next(order):
            blocks.append({"type": "audio"})
    return {**message, "content": blocks}


def _film(source: Any) -> Any:
    """Give the clip itself, where a source says how to show it."""
    return source["video"] if isinstance(source, Mapping) and source.get("video") is not None else source


def _is_loud(medium: Media) -> bool:
    """Tell whether a clip is a file with a sound track; what cannot be opened is reported when it is decoded."""
    try:
        found = find(_film(medium.source), name=medium.name)
    except MediaError:
        return False
    return isinstance(found, bytes | Path) and has_sound(found)
