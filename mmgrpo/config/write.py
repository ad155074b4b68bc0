"""Plain values to YAML text that the loader reads back as the same values.

It knows scalars, lists and mappings, not the schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mmgrpo.config.tree import parse_value
from mmgrpo.errors import ConfigError

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_PLAIN = re.compile(r"[A-Za-z0-9_./~+-][\w ./:{}@+~-]*\Z")


def flow(value: Any) -> str:
    """Write a value on one line.

    Args:
        value: Text, a number, a boolean, None, or lists and mappings of them; anything else is written as the text
            of its ``repr``.

    Returns:
        YAML.

    Example:
        >>> flow({"stop": ["a", "no", "1e6"], "x": None, "y": 1e-6})
        '{stop: [a, no, "1e6"], x: null, y: 1e-06}'
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return "{" + ", ".join(f"{text(str(key), inside=True)}: {_inner(inner)}" for key, inner in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inner(inner) for inner in cast("Sequence[Any]", value)) + "]"
    return _scalar(value)


def _inner(value: Any) -> str:
    return text(value, inside=True) if isinstance(value, str) else flow(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _floating(value)
    return text(value if isinstance(value, str) else repr(value))


def _floating(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"


def text(value: str, *, inside: bool = False) -> str:
    """Write text, in quotes where YAML would read it as something else.

    Args:
        value: The text.
        inside: It stands in a flow list or mapping, where commas and braces mean something.

    Returns:
        YAML on one line.

    Example:
        >>> text("a: b"), text("tiny:qwen2_5_vl"), text("true")
        ('"a: b"', 'tiny:qwen2_5_vl', '"true"')
    """
    if _PLAIN.match(value) and not (inside and re.search("[{}]", value)) and _reads_back(value):
        return value
    return '"' + "".join(_ESCAPES.get(letter) or _visible(letter) for letter in value) + '"'


def _reads_back(value: str) -> bool:
    try:
        return parse_value(value, source="") == value
    except ConfigError:
        return False


def _visible(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def block(value: str, indent: str) -> list[str]:
    """Write text of several lines as a YAML block, where that is possible.

    Args:
        value: The text.
        indent: Spaces in front of its lines.

    Returns:
        The header (``|`` or ``|-``) and the lines; a single quoted line where a block would not read back.
    """
    body = value[:-1] if value.endswith("\n") else value
    lines = body.split("\n")
    blockable = all(line == line.rstrip() and line.isprintable() for line in lines)
    if len(lines) < 2 or not blockable or value.endswith("\n\n") or not lines[0] or lines[0][0] == " ":
        return [text(value)]
    return ["|" if value.endswith("\n") else "|-", *(indent + line if line else "" for line in lines)]
