"""What a cell of a row may hold in place of the value itself, and what a list of media stands for.

Tables of text (CSV, exports of data frames, databases) write lists and conversations as JSON or as Python would print
them; a list under ``video`` may be one clip, frame by frame, or several clips. Pure functions: no file is opened.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

STILL = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".ppm", ".webp", ".avif"})
"""Endings of pictures: a list of such files is a clip, frame by frame."""
ANIMATED = frozenset({".webp", ".avif"})
"""Those of them that may also be a whole clip, where the file stands alone."""
_DATA = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{40,}")
_HEAD = 48
"""Letters of base64 that tell what the bytes are; a multiple of 4."""


def written(value: Any) -> Any:
    """Read a list or a dictionary that a cell holds as text; anything else stays as it is.

    Args:
        value: Of one cell.

    Example:
        >>> written('["a.png", "b.png"]'), written("['a.png']"), written("[1] a.png")
        (['a.png', 'b.png'], ['a.png'], '[1] a.png')
    """
    text = value.strip() if isinstance(value, str) else ""
    if text[:1] + text[-1:] not in ("[]", "{}", "()"):
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
    return found if isinstance(found, list | tuple | dict) else value


def conversation(value: Any) -> Any:
    """Read a conversation that a cell holds as text; anything else, lists of other things too, stays as it is.

    Args:
        value: Of one cell.

    Example:
        >>> conversation('[{"role": "user", "content": "?"}]'), conversation("[1, 2] is a list of?")
        ([{'role': 'user', 'content': '?'}], '[1, 2] is a list of?')
    """
    found = written(value)
    turns = found if isinstance(found, list) and found else ()
    spoken = all(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in turns)
    return found if turns and spoken else value


def is_hole(value: Any) -> bool:
    """Tell whether a value stands for no medium: None, blank text, NaN.

    Example:
        >>> is_hole(None), is_hole(" "), is_hole(float("nan")), is_hole(b"")
        (True, True, True, False)
    """
    blank = isinstance(value, str) and not value.strip()
    return value is None or blank or (isinstance(value, float) and value != value)


def nesting(value: Any) -> int:
    """Count how deep numbers lie in lists: 0 for what is no list of numbers.

    Example:
        >>> nesting([[1, 2], [3, 4]]), nesting(["a.png"]), nesting([])
        (2, 0, 0)
    """
    depth = 0
    while isinstance(value, list | tuple) and value:
        value, depth = value[0], depth + 1
    return depth if isinstance(value, int | float) and not isinstance(value, bool) else 0


def is_still(value: Any) -> bool:
    r"""Tell whether a medium is one picture, and so a frame where it stands in a list under ``video``.

    Args:
        value: A path, an address, encoded bytes, base64, ``{"bytes", "path"}``, a Pillow picture or an array.

    Example:
        >>> is_still("1.jpg"), is_still("1.mp4"), is_still({"bytes": b"\xff\xd8\xff", "path": None})
        (True, False, True)
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, str):
        kind = sniffed(_head(value))
        path = value.split("?")[0] if "://" in value else value
        return kind == "image" if kind else PurePath(path).suffix.lower() in STILL
    if isinstance(value, PurePath):
        return value.suffix.lower() in STILL
    if isinstance(value, bytes | bytearray | memoryview):
        return sniffed(bytes(value[:256])) == "image"
    if hasattr(value, "getpixel"):
        return True
    shape = tuple(getattr(value, "shape", ())) or _shape(value)
    return len(shape) == 2 or (len(shape) == 3 and bool({1, 3, 4} & {shape[0], shape[-1]}))


def sniffed(head: bytes) -> str | None:
    r"""Tell by its first bytes what encoded bytes are: ``image``, ``video`` (animations too), ``audio`` or None.

    Args:
        head: At least the first 16 bytes; a moving WebP or PNG is told from a still one with 256.

    Example:
        >>> sniffed(b"GIF89a"), sniffed(b"RIFF\x00\x00\x00\x00WAVEfmt "), sniffed(b"hello")
        ('video', 'audio', None)
    """
    if head[:4] == b"RIFF":
        moving = head[12:16] == b"VP8X" and len(head) > 20 and bool(head[20] & 2)
        return {b"WEBP": "video" if moving else "image", b"WAVE": "audio", b"AVI ": "video"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return "image" if brand == b"avif" else "audio" if brand in (b"M4A ", b"M4B ") else "video"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "video" if b"acTL" in head else "image"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


_MAGIC = {
    b"\xff\xd8\xff": "image",
    b"BM": "image",
    b"II*\x00": "image",
    b"MM\x00*": "image",
    b"GIF8": "video",
    b"\x1aE\xdf\xa3": "video",
    b"fLaC": "audio",
    b"OggS": "audio",
    b"ID3": "audio",
}


def _head(text: str) -> bytes:
    """Give the first bytes of what a text encodes; none where it encodes nothing, as a path."""
    data = _DATA.match(text)
    body = text[data.end() : data.end() + 2 * _HEAD] if data else text[: 2 * _HEAD]
    letters = re.sub(r"\s", "", body)[:_HEAD]
    if not data and not _BASE64.fullmatch(letters):
        return b""
    try:
        return base64.b64decode(letters[: len(letters) // 4 * 4].replace("-", "+").replace("_", "/"))
    except binascii.Error:
        return b""


def _shape(value: Any) -> tuple[int, ...]:
    """Give the lengths of nested lists of numbers."""
    found: list[int] = []
    for _ in range(nesting(value)):
        found.append(len(value))
        value = value[0]
    return tuple(found)
