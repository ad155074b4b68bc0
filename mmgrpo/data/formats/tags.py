"""``<image>``, ``<video>`` and ``<audio>`` in a text: places of media, written as text.

Knows texts and turns, no rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmgrpo.data.formats.blocks import plain_block
from mmgrpo.data.formats.reading import KINDS, Part

_TAG = re.compile(f"<({'|'.join(KINDS)})>")


def split_tags(text: str) -> list[dict[str, Any]]:
    """Cut a text at its tags.

    Args:
        text: Text with or without tags.

    Returns:
        Text blocks, and a placeholder block for each tag.

    Example:
        >>> split_tags("<image>How many?")
        [{'type': 'image'}, {'type': 'text', 'text': 'How many?'}]
    """
    return list(_pieces(text)) or [{"type": "text", "text": text}]


def _pieces(text: str) -> Iterator[dict[str, Any]]:
    for position, piece in enumerate(_TAG.split(text)):
        if position % 2:
            yield {"type": piece}
        elif piece:
            yield {"type": "text", "text": piece}


def without_tags(text: str) -> str:
    r"""Remove all tags, and the white space around the text that is left.

    Example:
        >>> without_tags("<image>\nHow many?")
        'How many?'
    """
    return _TAG.sub("", text).strip()


def tags_match(prompt: Any, media: Iterable[Part]) -> bool:
    """Tell whether a prompt has tags, and exactly one for each medium.

    Args:
        prompt: Text, or chat messages; what the assistant said counts for nothing, and messages with blocks of media
            place their media by those.
        media: Of the row's columns.

    Example:
        >>> tags_match("Is <image> like <image>?", [Part("image", "a.png"), Part("image", "b.png")])
        True
        >>> tags_match("Write an <image> element.", [])
        False
        >>> tags_match([{"role": "user", "content": "<image>?"}], [Part("image", "a.png")])
        True
    """
    blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else list(_blocks(prompt))
    if any(block.get("type") != "text" for block in blocks):
        return False
    found = Counter(tag for block in blocks for tag in _TAG.findall(str(block.get("text"))))
    return bool(found) and found == Counter(part.kind for part in media)


def _blocks(turns: Any) -> Iterator[Mapping[str, Any]]:
    """Give the content blocks of all turns but the assistant's."""
    for turn in turns if isinstance(turns, list | tuple) else ():
        if isinstance(turn, Mapping) and turn.get("role") != "assistant":
            content = turn.get("content")
            content = [content] if isinstance(content, str) else content
            for block in content if isinstance(content, list | tuple) else ():
                yield plain_block(block if isinstance(block, Mapping) else {"type": "text", "text": block})
