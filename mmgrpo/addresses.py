"""What a value means where a media item is expected, of which kind it is, and which files rows may name.

The one place that tells base64, addresses and paths apart, and the one table of file endings: rows, formats and
decoders all ask here. Opens and decodes nothing.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from mmgrpo.errors import MediaError, explain, shorten

ENDINGS: Mapping[str, frozenset[str]] = {
    "image": frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".avif"}),
    "video": frozenset({".mp4", ".mov", ".mkv", ".avi", ".webm"}),
    "audio": frozenset({".wav", ".flac", ".mp3", ".ogg", ".m4a", ".opus"}),
}
"""File endings of each kind of media, in lower case."""
KINDS = tuple(ENDINGS)
"""Kinds of media, in the order in which they stand before a text that does not place them."""
ANIMATED = frozenset({".gif", ".webp", ".avif"})
"""Endings of images that may be a whole video, where the file stands alone under ``video``."""
_STILL = ENDINGS["image"] - {".gif"}
AddressForm = Literal["data", "file", "http", "foreign", "base64", "path"]
"""A ``data:`` URI, a ``file:`` URI, an address of the web, one of another service (``s3://``), base64, or a path."""
_SCHEME = re.compile(r"(data|file|https?):|[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_BASE64_START = re.compile(r"[A-Za-z0-9+/_-]{40}")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/_\s-]")
_LONGEST_PATH = 4096
_HEAD = 48
"""Letters of base64 that tell what the bytes are; a multiple of 4."""
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


def kind_of_ending(name: str | PurePath) -> str | None:
    """Tell the kind of a file by its ending.

    Args:
        name: A path or an address; what follows a ``?`` in an address is not looked at.

    Returns:
        "image", "video" or "audio"; None for any other ending.

    Example:
        >>> kind_of_ending("clips/a.MP4"), kind_of_ending("https://a.b/c.png?size=2"), kind_of_ending("a.txt")
        ('video', 'image', None)
    """
    path = name.split("?")[0] if isinstance(name, str) and "://" in name else name
    ending = PurePath(path).suffix.lower()
    return next((kind for kind, endings in ENDINGS.items() if ending in endings), None)


def sniff_kind(head: bytes) -> str | None:
    r"""Tell by its first bytes what encoded bytes are: ``image``, ``video`` (animations too), ``audio`` or None.

    Args:
        head: At least the first 16 bytes; a moving WebP or PNG is told from a still one with 256.

    Example:
        >>> sniff_kind(b"GIF89a"), sniff_kind(b"RIFF\x00\x00\x00\x00WAVEfmt "), sniff_kind(b"hello")
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


def is_hole(value: Any) -> bool:
    """Tell whether a value stands for nothing: None, blank text, NaN, and lists or dictionaries of such alone.

    Example:
        >>> is_hole(None), is_hole(" "), is_hole({"bytes": None, "path": None}), is_hole(b"")
        (True, True, True, False)
    """
    if isinstance(value, Mapping):
        return all(is_hole(one) for one in value.values())
    if isinstance(value, list | tuple):
        return all(is_hole(one) for one in value[:1]) and all(is_hole(one) for one in value)
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
    r"""Tell whether a media item is one image, and so a frame where it stands in a list under ``video``.

    Args:
        value: A path, an address, encoded bytes, base64, ``{"bytes", "path"}``, a Pillow image or an array.

    Example:
        >>> is_still("1.jpg"), is_still("1.mp4"), is_still({"bytes": b"\xff\xd8\xff", "path": None})
        (True, False, True)
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, str):
        kind = sniff_kind(first_bytes(value))
        path = value.split("?")[0] if "://" in value else value
        return kind == "image" if kind else PurePath(path).suffix.lower() in _STILL
    if isinstance(value, PurePath):
        return value.suffix.lower() in _STILL
    if isinstance(value, bytes | bytearray | memoryview):
        return sniff_kind(bytes(value[:256])) == "image"
    if hasattr(value, "getpixel"):
        return True
    shape = tuple(getattr(value, "shape", ())) or _shape(value)
    return len(shape) == 2 or (len(shape) == 3 and bool({1, 3, 4} & {shape[0], shape[-1]}))


def holds_media(value: Any) -> str | None:
    """Tell the kind of media that a value surely is: encoded or decoded, not a name that may be anything.

    Args:
        value: Of a row; of a list its first.

    Example:
        >>> holds_media({"bytes": None, "path": "a.png"}), holds_media("a.png")
        ('image', None)
    """
    value = value[0] if isinstance(value, list | tuple) and value else value
    return None if isinstance(value, str) else looks_like(value)


def looks_like(value: Any) -> str | None:
    """Tell the kind of media that a value may be, by its type, its first bytes or the ending of its name."""
    value = value[0] if isinstance(value, list | tuple) and value else value
    if hasattr(value, "getpixel"):
        return "image"
    if isinstance(value, Mapping) and {"bytes", "path"} <= set(value):
        return looks_like(value["bytes"]) or looks_like(value["path"]) or "image"
    if isinstance(value, bytes):
        return sniff_kind(value[:256])
    if isinstance(value, str) and value[:5].lower() == "data:":
        return next((kind for kind in ENDINGS if value[5:].lower().startswith(f"{kind}/")), None)
    return kind_of_ending(value) if isinstance(value, str) and len(value) < 500 and "\n" not in value else None


def _shape(value: Any) -> tuple[int, ...]:
    """Give the lengths of nested lists of numbers."""
    lengths: list[int] = []
    for _ in range(nesting(value)):
        lengths.append(len(value))
        value = value[0]
    return tuple(lengths)


def address_form(text: str) -> AddressForm:
    """Tell what a text is, by its letters alone and in time linear in its length.

    Args:
        text: What a row, or a caller, names as a media item.

    Returns:
        The form. Letters that may be base64 may also be a path without an ending: see :func:`locate`.

    Example:
        >>> address_form("a/b.png"), address_form("data:image/png;base64,AAAA"), address_form("s3://bucket/a.png")
        ('path', 'data', 'foreign')
        >>> address_form("iVBORw0KGgo" * 9), address_form("iVBORw0KGgo" * 9 + "'")
        ('base64', 'path')
    """
    scheme = _SCHEME.match(text)
    if scheme is not None:
        known = (scheme[1] or "foreign").lower()
        return "http" if known.startswith("http") else known  # type: ignore[return-value]
    body = text.strip().rstrip("=")
    return "base64" if _BASE64_START.match(body) and not _NOT_BASE64.search(body) else "path"


def first_bytes(text: str) -> bytes:
    """Decode the first bytes of what a text encodes; none where it encodes nothing, as a path.

    Args:
        text: Base64, a ``data:`` URI, or anything else.
    """
    if text[:5].lower() == "data:":
        head, comma, body = text[:1024].partition(",")
        text = body if comma and head.lower().endswith(";base64") else ""
    elif address_form(text[: 2 * _HEAD]) != "base64":
        return b""
    letters = "".join(text[: 2 * _HEAD].split())[:_HEAD]
    try:
        return base64.b64decode(letters[: len(letters) // 4 * 4].replace("-", "+").replace("_", "/"))
    except (binascii.Error, ValueError):
        return b""


def decode_text(text: str, *, name: str) -> bytes:
    """Decode base64 or a ``data:`` URI.

    Args:
        text: Of :func:`address_form` "base64" or "data".
        name: How messages call the media item.

    Raises:
        MediaError: Malformed.

    Example:
        >>> decode_text("data:text/plain;base64,aGVsbG8=", name="a greeting")
        b'hello'
    """
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma:
            raise MediaError(explain("A data: address has no data", where=name, got=shorten(head)))
        if not head.lower().endswith(";base64"):
            return unquote_to_bytes(text)
        text = unquote(text) if "%" in text else text
    plain = "".join(text.split()).translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(explain("Base64 text is malformed", where=name, got=str(error))) from error


def file_of(address: str, *, where: str) -> str:
    """Give the path that a ``file:`` address names.

    Args:
        address: ``file:///absolute/path`` or ``file:relative/path``; %XX stands for a byte.
        where: Row and column, for messages.

    Raises:
        MediaError: It names a host, as in ``file://images/a.png``.

    Example:
        >>> file_of("file:///data/a%20b.png", where="row 0")
        '/data/a b.png'
    """
    parts = urlsplit(address)
    if parts.netloc and parts.netloc.lower() != "localhost":
        raise MediaError(
            explain(
                "A file:// address with two slashes names a host, not a folder",
                where=where,
                got=shorten(address),
                fix=f"Write {shorten(parts.netloc + parts.path)}, or file:/// and an absolute path.",
            )
        )
    return unquote(parts.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPolicy:
    """Which files the rows of one source may name."""

    base: Path | None
    """Folder that relative paths start from, and may not leave; None: relative paths are refused."""
    confined: bool = False
    """Read nothing outside ``base``, whatever the path; links are followed before judging."""
    allow_absolute: bool = True
    """Read paths that are absolute."""
    remote: Callable[[str], Path] | None = None
    """Downloads an ``http(s)`` address and gives the file; None: such addresses are refused."""


def locate(value: Any, policy: PathPolicy, *, where: str) -> Any:
    """Turn what a row names as a media item into something to open.

    Args:
        value: A path, an address, ``{"bytes", "path"}`` or ``{"frames", "fps"}`` dictionary, a list of such frames,
            or the media item itself.
        policy: Which files may be named.
        where: Row and column, for messages.

    Returns:
        An absolute path, or ``value`` where it is no path, base64 as a ``data:`` address. The file need not exist.

    Raises:
        MediaError: The path leaves its folder, or is of a kind that is not allowed.
    """
    if isinstance(value, Mapping):
        return _located_holder(value, policy, where)
    if isinstance(value, list | tuple):
        return [locate(one, policy, where=where) for one in value]
    if isinstance(value, Path):
        return _checked_path(str(value), policy, where)
    if not isinstance(value, str):
        return value
    form = address_form(value)
    if form == "data":
        return value
    if form == "http":
        return _downloaded(value, policy, where)
    if form == "file":
        return _checked_path(file_of(value, where=where), policy, where)
    if form == "foreign":
        raise MediaError(
            explain(
                f"Media are not read from {shorten(value.split('://')[0], limit=40)}:// addresses",
                where=where,
                expected="a path, base64, or an address that begins with data:, file: or http(s):",
                got=shorten(value),
                fix="Download it and name the local file.",
            )
        )
    if form == "base64" and not _exists(value, policy):
        return f"data:;base64,{value}"  # said for good: whoever opens it must not find a file of that name elsewhere
    return _checked_path(value, policy, where)


def _located_holder(value: Mapping[str, Any], policy: PathPolicy, where: str) -> Any:
    """Judge every path that a dictionary may hold: decoders look under all of these keys."""
    for key in ("bytes", "path"):
        if isinstance(value.get(key), str | Path):
            return locate(value[key], policy, where=where)
        if value.get(key) is not None:
            return value
    naming = (str, Path, list, tuple, Mapping)
    named = {key: value[key] for key in ("frames", "video") if isinstance(value.get(key), naming)}
    return {**value, **{key: locate(one, policy, where=where) for key, one in named.items()}}


def _downloaded(address: str, policy: PathPolicy, where: str) -> Path:
    if policy.remote is not None:
        return policy.remote(address)
    raise MediaError(
        explain(
            "Remote media are disabled",
            where=where,
            got=shorten(address),
            fix="Download it and name the local file, or set data.allow_remote: true.",
        )
    )


def _exists(text: str, policy: PathPolicy) -> bool:
    try:
        return len(text) <= _LONGEST_PATH and (policy.base or Path()).joinpath(text).exists()
    except OSError:  # longer than any file name may be
        return False


def _checked_path(text: str, policy: PathPolicy, where: str) -> Path:
    if "\0" in text:
        raise MediaError(explain("A media path holds a NUL character", where=where, got=shorten(repr(text))))
    if len(text) > _LONGEST_PATH:
        stray = _NOT_BASE64.search(text)
        raise MediaError(
            explain(
                "A text is too long for a path, and is no base64",
                where=where,
                got=shorten(text) + (f"; character {stray.start() + 1:,} is {stray[0]!r}" if stray else ""),
            )
        )
    path = Path(text)
    if path.is_absolute():
        if not policy.allow_absolute and not policy.confined:
            raise MediaError(
                explain(
                    "An absolute media path is not allowed",
                    where=where,
                    got=shorten(text),
                    fix="Set data.allow_absolute_media: true, or media_root to the folder that may be read.",
                )
            )
        return _confined(Path(os.path.normpath(path)), policy, where, text)
    if policy.base is None:
        raise MediaError(
            explain(
                "A relative media path has no folder to start from",
                where=where,
                got=shorten(text),
                fix="Set media_root to the folder of the media files.",
            )
        )
    base = Path(os.path.abspath(policy.base))
    full = Path(os.path.normpath(base / path))
    if not full.is_relative_to(base):
        raise MediaError(
            explain(
                "A media path climbs out of its folder",
                where=where,
                expected=f"a path below {base}",
                got=shorten(text),
                fix="Set media_root to a folder that holds all media, and write paths relative to it.",
            )
        )
    return _confined(full, policy, where, text)


def _confined(full: Path, policy: PathPolicy, where: str, text: str) -> Path:
    if not policy.confined or policy.base is None:
        return full
    root = policy.base.resolve()
    if full.resolve().is_relative_to(root):
        return full
    raise MediaError(
        explain(
            "A media path lies outside media_root",
            where=where,
            expected=f"a path below {root}",
            got=shorten(f"{text} ({full.resolve()})"),
            fix="Move the file, or set media_root to a folder that holds all media.",
        )
    )
