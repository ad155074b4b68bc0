"""What a cell of a row may hold in place of the value itself, and what a list of media stands for.

Tables of text (CSV, exports of data frames, databases) write lists and conversations as JSON or as Python would print
them; a list under ``video`` may be one clip, frame by frame, or several clips. Pure functions: no file is opened.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from mmgrpo.addresses import ENDINGS, first_bytes, sniff_kind

STILL = ENDINGS["image"] - {".gif"}
"""Endings of pictures: a list of such files is a clip, frame by frame."""


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
        kind = sniff_kind(first_bytes(value))
        path = value.split("?")[0] if "://" in value else value
        return kind == "image" if kind else PurePath(path).suffix.lower() in STILL
    if isinstance(value, PurePath):
        return value.suffix.lower() in STILL
    if isinstance(value, bytes | bytearray | memoryview):
        return sniff_kind(bytes(value[:256])) == "image"
    if hasattr(value, "getpixel"):
        return True
    shape = tuple(getattr(value, "shape", ())) or _shape(value)
    return len(shape) == 2 or (len(shape) == 3 and bool({1, 3, 4} & {shape[0], shape[-1]}))


def _shape(value: Any) -> tuple[int, ...]:
    """Give the lengths of nested lists of numbers."""
    found: list[int] = []
    for _ in range(nesting(value)):
        found.append(len(value))
        value = value[0]
    return tuple(found)
