"""``<image>``, ``<video>`` and ``<audio>`` in a text: places of media, written as text.

Knows texts, no rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

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


def tags_match(text: Any, media: Iterable[Part]) -> bool:
    """Tell whether a text has tags, and exactly one for each medium.

    Example:
        >>> tags_match("Is <image> like <image>?", [Part("image", "a.png"), Part("image", "b.png")])
        True
        >>> tags_match("Write an <image> element.", [])
        False
    """
    found = Counter(_TAG.findall(text)) if isinstance(text, str) else Counter()
    return bool(found) and found == Counter(part.kind for part in media)
