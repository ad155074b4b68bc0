"""Content blocks of messages, whoever wrote them, and tags in texts: both stand for media, or carry them.

Known are the blocks of transformers and TRL (``{"type": "image", "image": …}``), of OpenAI (``image_url``,
``input_audio``, ``video_url``) and of Anthropic (``source``). Settings beside a media item are kept with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmgrpo.addresses import KINDS, is_hole

TAG = re.compile(f"<({'|'.join(KINDS)})>")
"""``<image>`` and its kin: the place of a media item, written as text."""
OTHER_BLOCKS = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    "input_text": "text",
}
"""What content blocks are called elsewhere (OpenAI), and what they hold."""
_HOLDERS = ("source", "url", "path", "base64")
"""Keys under which a block may hold its media item, beside its kind and its own name."""
_DECODER_KEYS = frozenset({"bytes", "path", "array", "frames", "shuffled"})
"""Keys of the dictionaries that decoders read; with one of them a dictionary is the media item itself."""
_NOT_OPTIONS = frozenset({"type", "text", "data", "media_type", "format", "sampling_rate", "cache_control"})
"""Keys beside a media item that say nothing about how it is read."""


def plain_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Write a content block as text, or as ``{"type": kind, kind: source, "options": …}``.

    Args:
        block: Of transformers, TRL, OpenAI or Anthropic; keys that hold nothing are dropped (arrow tables fill them
            in). One without a type is what its only key says.

    Returns:
        The block; one of a type that is not known stays as it is, for the caller to refuse.

    Example:
        >>> plain_block({"type": "image_url", "image_url": {"url": "a.png"}, "text": None})
        {'type': 'image', 'image': 'a.png'}
        >>> plain_block({"type": "image", "text": None}), plain_block({"text": "How many?"})
        ({'type': 'image'}, {'type': 'text', 'text': 'How many?'})
    """
    held = {key: value for key, value in block.items() if (key == "text" and value == "") or not is_hole(value)}
    keys = [key for key in ("text", *KINDS, *OTHER_BLOCKS) if key in held]
    name = held.get("type", keys[0] if len(keys) == 1 else None)
    kind = OTHER_BLOCKS.get(name, name) if isinstance(name, str) else None
    if kind == "text":
        return {"type": "text", "text": block.get("text")}
    if kind not in KINDS:
        return held
    source, options = unwrap_media(held, kind, name=str(name))
    if source is held:  # nothing but settings, or nothing at all: a placeholder
        source, options = None, {key: value for key, value in held.items() if key not in _NOT_OPTIONS}
    plain = {"type": kind} if source is None else {"type": kind, kind: source}
    return {**plain, "options": options} if options else plain


def split_tags(text: str) -> list[dict[str, Any]]:
    """Cut a text at its tags, into text blocks and a placeholder block for each tag.

    Example:
        >>> split_tags("<image>How many?")
        [{'type': 'image'}, {'type': 'text', 'text': 'How many?'}]
    """
    pieces = [
        {"type": piece} if position % 2 else {"type": "text", "text": piece}
        for position, piece in enumerate(TAG.split(text))
        if piece
    ]
    return pieces or [{"type": "text", "text": text}]


def without_tags(text: str) -> str:
    r"""Remove all tags, and the white space around the text that is left.

    Example:
        >>> without_tags("<image>\nHow many?")
        'How many?'
    """
    return TAG.sub("", text).strip()


def blocks_of(turns: Any) -> Iterator[Mapping[str, Any]]:
    """Give the content blocks of all turns but the assistant's."""
    for turn in turns if isinstance(turns, list | tuple) else ():
        if isinstance(turn, Mapping) and turn.get("role") != "assistant":
            content = turn.get("content")
            content = [content] if isinstance(content, str) else content
            for block in content if isinstance(content, list | tuple) else ():
                yield plain_block(block if isinstance(block, Mapping) else {"type": "text", "text": block})


def unwrap_media(holder: Mapping[str, Any], kind: str, name: str = "") -> tuple[Any, dict[str, Any]]:
    """Split a dictionary into a media item and its settings.

    Args:
        holder: A content block, or an entry of a list of media.
        kind: "image", "video" or "audio".
        name: The block's own name, which may be a key too.

    Returns:
        The item, the dictionary itself where it holds none; and what else stands in it about the item.

    Example:
        >>> unwrap_media({"video": "a.mp4", "fps": 2, "max_pixels": None}, "video")
        ('a.mp4', {'fps': 2})
    """
    if _DECODER_KEYS & {key for key, value in holder.items() if not is_hole(value)}:
        own = _DECODER_KEYS | {kind, "rate", "sampling_rate"} | ({"fps"} if "frames" in holder else set())
        options = {key: value for key, value in holder.items() if key not in own and not is_hole(value)}
        return {key: value for key, value in holder.items() if key in own} if options else holder, options
    held = {key: value for key, value in holder.items() if not is_hole(value)}
    keys = dict.fromkeys((name, kind, f"{kind}_url", *_HOLDERS))
    options = {key: value for key, value in held.items() if key not in keys and key not in _NOT_OPTIONS}
    for key in keys:
        if key in held:
            inner = held[key]
            if isinstance(inner, Mapping) and not _DECODER_KEYS & set(inner):
                beside = {k: v for k, v in inner.items() if k not in (*_NOT_OPTIONS, "url") and not is_hole(v)}
                return _address(inner, kind), options | (beside if "url" in inner or "data" in inner else {})
            return inner, options
    return (_address(held, kind), options) if isinstance(held.get("data"), str) else (holder, {})


def _address(value: Mapping[str, Any], kind: str) -> Any:
    """Find the media item in ``{"url": …}``, or in ``{"data": …}`` with its format or type; else it is the value."""
    data = value.get("data")
    if isinstance(data, str):
        if data.startswith("data:"):
            return data
        media_type = value.get("media_type") or f"{kind}/{value.get('format') or 'unknown'}"
        return f"data:{media_type};base64,{data}"
    return value["url"] if value.get("url") is not None else value
