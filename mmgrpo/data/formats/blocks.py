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


def plain_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Write a block as ``{"type": "text", "text": …}`` or ``{"type": kind, kind: source}``.

    Args:
        block: A content block; keys that are None are dropped (arrow tables fill those in).

    Returns:
        The block; one of a type that is not known stays as it is, for the caller to refuse.

    Example:
        >>> plain_block({"type": "image_url", "image_url": {"url": "a.png"}, "text": None})
        {'type': 'image', 'image': 'a.png'}
        >>> plain_block({"type": "image", "text": None})
        {'type': 'image'}
    """
    kept = {key: value for key, value in block.items() if value is not None}
    name = kept.get("type")
    if isinstance(name, str) and name in _KINDS:
        kind = _KINDS[name]
        if kind == "text":
            return {"type": "text", "text": kept.get("text")}
        source = _held(kept.get(name, kept.get(kind)), kind)
        return {"type": kind} if source is None else {"type": kind, kind: source}
    if isinstance(name, str) and name in ("image", "video", "audio") and isinstance(kept.get("source"), Mapping):
        return {"type": name, name: _source(kept["source"])}
    return kept


def is_foreign(block: Any) -> bool:
    """Tell whether a block is one of those that carry an address: ``image_url`` and its kin."""
    return isinstance(block, Mapping) and isinstance(block.get("type"), str) and block["type"] in _KINDS


def _held(value: Any, kind: str) -> Any:
    """Find the medium in ``{"url": …}`` or ``{"data": …, "format": …}``."""
    if not isinstance(value, Mapping):
        return value
    if value.get("data") is not None:
        data = value["data"]
        plain = isinstance(data, str) and not data.startswith("data:")
        return f"data:{kind}/{value.get('format') or 'unknown'};base64,{data}" if plain else data
    return value.get("url", value.get("path"))


def _source(source: Mapping[str, Any]) -> Any:
    """Find the medium in ``{"type": "base64", "media_type": …, "data": …}`` or ``{"type": "url", "url": …}``."""
    if source.get("data") is not None:
        return f"data:{source.get('media_type') or 'application/octet-stream'};base64,{source['data']}"
    return source.get("url")
