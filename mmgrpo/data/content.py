"""What a decoded medium depends on, as one key.

A file counts by its path, size and time of change, so that one that is replaced is another. Knows no processor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.types import Media


class _NoKeyError(Exception):
    """A medium's content cannot be told without decoding it."""


def key_of(medium: Media, fingerprint: str) -> str | None:
    """Name what a decoded medium is made of.

    Args:
        medium: Kind, source and rate.
        fingerprint: All settings that change how it is decoded.

    Returns:
        A hexadecimal key; None where the content cannot be told without decoding it, or the file is not there.

    Example:
        >>> a, b = Media(kind="image", source=b"1", name="a"), Media(kind="image", source=b"1", name="b")
        >>> key_of(a, "x") == key_of(b, "x"), key_of(a, "x") == key_of(a, "y")
        (True, False)
    """
    digest = hashlib.sha256(fingerprint.encode())
    try:
        digest.update(repr((medium.kind, medium.rate)).encode() + _source(medium.source))
    except (_NoKeyError, TypeError, ValueError, OSError):
        return None
    return digest.hexdigest()


def _source(source: Any) -> bytes:
    if isinstance(source, Path):
        facts = source.stat()
        return _hashed(repr((str(source), facts.st_size, facts.st_mtime_ns)).encode())
    if isinstance(source, bytes | bytearray | memoryview):
        return _hashed(bytes(source))
    if isinstance(source, str):
        return _hashed(source.encode("utf-8", "surrogatepass"))
    if isinstance(source, np.ndarray):
        return _hashed(repr((source.shape, source.dtype.str)).encode() + np.ascontiguousarray(source).tobytes())
    if isinstance(source, Mapping):
        return _hashed(b"".join(_hashed(str(key).encode()) + _source(source[key]) for key in sorted(source)))
    if isinstance(source, list | tuple):
        return _hashed(b"".join(_source(one) for one in source))
    if source is None or isinstance(source, int | float):
        return _hashed(repr(source).encode())
    if hasattr(source, "getpixel"):
        return _picture(source)
    raise _NoKeyError


def _picture(image: Any) -> bytes:
    """Hash a picture's pixels, and what else decides how they are seen: palette, transparency, orientation."""
    if getattr(image, "n_frames", 1) != 1:
        raise _NoKeyError
    palette = image.getpalette() if image.mode in ("P", "PA") else None
    facts = (image.mode, image.size, palette, image.info.get("transparency"), sorted(image.getexif().items()))
    return _hashed(repr(facts).encode() + image.tobytes())


def _hashed(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
