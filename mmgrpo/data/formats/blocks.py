"""Content blocks of a message, whoever wrote them, as the two kinds that the house knows: text, and a medium.

Known are the blocks of transformers and TRL (``{"type": "image", "image": …}``), of OpenAI (``image_url``,
``input_audio``, ``video_url``) and of Anthropic (``source``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KINDS = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    "input_text": "text",
}
"""What other blocks are called, and what they hold."""
_MEDIA = ("image", "video", "audio")
_HOLDERS = ("source", "url", "path", "base64")
"""Keys under which a block may hold its medium, beside its kind and its own name."""


def plain_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Write a block as ``{"type": "text", "text": …}`` or ``{"type": kind, kind: source}``.

    Args:
        block: A content block; keys that are None are dropped (arrow tables fill those in). One without a type is
            what its only key says.

    Returns:
        The block; one of a type that is not known stays as it is, for the caller to refuse.

    Example:
        >>> plain_block({"type": "image_url", "image_url": {"url": "a.png"}, "text": None})
        {'type': 'image', 'image': 'a.png'}
        >>> plain_block({"type": "image", "text": None}), plain_block({"text": "How many?"})
        ({'type': 'image'}, {'type': 'text', 'text': 'How many?'})
    """
    kept = {key: value for key, value in block.items() if value is not None}
    said = [key for key in ("text", *_MEDIA, *_KINDS) if key in kept]
    name = kept.get("type", said[0] if len(said) == 1 else None)
    kind = _KINDS.get(name, name) if isinstance(name, str) else None
    if kind == "text":
        return {"type": "text", "text": kept.get("text")}
    if kind not in _MEDIA:
        return kept
    source = medium_of(kept, kind, name=str(name))
    return {"type": kind} if source is None else {"type": kind, kind: source}


def medium_of(holder: Mapping[str, Any], kind: str, *, name: str = "") -> Any:
    """Find the medium in a dictionary that wraps it: a content block, or an entry of a list of media.

    Args:
        holder: Without keys that are None.
        kind: "image", "video" or "audio".
        name: The block's own name, which may be a key too.

    Returns:
        The medium; None where the dictionary holds none.

    Example:
        >>> medium_of({"type": "audio", "audio_url": "a.wav"}, "audio"), medium_of({"min_pixels": 9}, "image")
        ('a.wav', None)
    """
    keys = dict.fromkeys((name, kind, f"{kind}_url", *_HOLDERS))
    found = next((_held(holder[key], kind) for key in keys if holder.get(key) is not None), None)
    return _held(holder, kind) if found is None and isinstance(holder.get("data"), str) else found


def is_foreign(block: Any) -> bool:
    """Tell whether a block is one of those that carry an address: ``image_url`` and its kin."""
    return isinstance(block, Mapping) and isinstance(block.get("type"), str) and block["type"] in _KINDS


def _held(value: Any, kind: str) -> Any:
    """Find the medium in ``{"url": …}``, or in ``{"data": …}`` with its format or type; else it is the value."""
    if not isinstance(value, Mapping):
        return value
    data = value.get("data")
    if isinstance(data, str):
        if data.startswith("data:"):
            return data
        format = value.get("media_type") or f"{kind}/{value.get('format') or 'unknown'}"
        return f"data:{format};base64,{data}"
    return value["url"] if value.get("url") is not None else value
