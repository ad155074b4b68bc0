"""The sound of clips as media of their own, each right after its clip.

A family that reads both then sees the clip and hears it. A clip without sound stays as it is. Knows no family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmgrpo.errors import MediaError
from mmgrpo.media.film import has_sound
from mmgrpo.media.sources import find
from mmgrpo.types import Media, Message, Sample


def with_sound(sample: Sample) -> Sample:
    """Add the sound of each clip file behind its clip, in the messages and among the media.

    Args:
        sample: A row.

    Returns:
        The row with the sounds; the same object where no clip has one.
    """
    loud = [medium.kind == "video" and _is_loud(medium) for medium in sample.media]
    if not any(loud):
        return sample
    media: list[Media] = []
    for medium, heard in zip(sample.media, loud, strict=True):
        media.append(medium)
        if heard:
            media.append(Media(kind="audio", source=medium.source, name=f"{medium.name} (sound)"))
    order = iter(loud)
    messages = tuple(_heard(message, order) for message in sample.messages)
    return replace(sample, messages=messages, media=tuple(media))


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


def _is_loud(medium: Media) -> bool:
    """Tell whether a clip is a file with a sound track; what cannot be opened is reported when it is decoded."""
    try:
        found = find(medium.source, name=medium.name)
    except MediaError:
        return False
    return isinstance(found, bytes | Path) and has_sound(found)
