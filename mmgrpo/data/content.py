"""What a decoded medium depends on, as one key.

A file counts by its path, size and time of change, so that one that is replaced is another. Knows no processor.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmgrpo.types import Media


class _NoKeyError(Exception):
    """A medium's content cannot be told without decoding it."""


_UNREADABLE = (
    _NoKeyError, OSError, TypeError, ValueError, LookupError, AttributeError, EOFError, SyntaxError, ArithmeticError,
    RuntimeError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
"""What is raised where the content cannot be told: also by Pillow, of a damaged picture that it reads only now."""
_MOST_PIXELS = 89_478_485
"""Larger pictures are refused where they are decoded, and so are not read here; as Pillow warns about them."""


def key_of(medium: Media, fingerprint: str, *, by_name: bool = False) -> str | None:
    """Name what a decoded medium is made of.

    Args:
        medium: Kind, source and rate.
        fingerprint: All settings that change how it is decoded.
        by_name: Whether its name counts, too: who decodes it may look at that.

    Returns:
        A hexadecimal key; None where the content cannot be told without decoding it, or the file is not there.

    Example:
        >>> a, b = Media(kind="image", source=b"1", name="a"), Media(kind="image", source=b"1", name="b")
        >>> key_of(a, "x") == key_of(b, "x"), key_of(a, "x") == key_of(a, "y")
        (True, False)
    """
    facts = (medium.kind, medium.rate, medium.name if by_name else None)
    digest = hashlib.sha256(fingerprint.encode())
    try:
        digest.update(repr(facts).encode("utf-8", "surrogatepass") + _source(medium.source))
    except _UNREADABLE:
        return None
    return digest.hexdigest()


def _source(source: Any) -> bytes:
    """Hash a source; what is of another type is another source, even where its bytes are the same."""
    if isinstance(source, Path):
        return _file(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return _hashed("bytes", bytes(source))
    if isinstance(source, str):
        return _text(source)
    if isinstance(source, np.ndarray):
        if source.dtype.hasobject:  # its bytes are addresses, not content
            raise _NoKeyError
        return _hashed(f"array {source.shape} {source.dtype.str}", np.ascontiguousarray(source).tobytes())
    if isinstance(source, Mapping):
        pairs = (_hashed("key", str(key).encode()) + _source(source[key]) for key in sorted(source))
        return _hashed("mapping", b"".join(pairs))
    if isinstance(source, list | tuple):
        return _hashed("list", b"".join(_source(one) for one in source))
    if source is None or isinstance(source, int | float):
        return _hashed(type(source).__name__, repr(source).encode())
    if isinstance(source, Image.Image):
        return _picture(source)
    raise _NoKeyError


def _file(path: Path) -> bytes:
    facts = path.stat()
    if not path.is_file():
        raise _NoKeyError
    return _hashed("file", repr((str(path.absolute()), facts.st_size, facts.st_mtime_ns)).encode())


def _text(source: str) -> bytes:
    """Hash an address that holds its content; any other text may name a file, which can change under it."""
    scheme = source[:6].lower()
    if scheme.startswith("data:"):
        return _hashed("text", source.encode("utf-8", "surrogatepass"))
    if scheme.startswith("file:"):
        raise _NoKeyError
    return _file(Path(source))


def _picture(image: Image.Image) -> bytes:
    """Hash a picture's pixels, and what else decides how they are seen: palette, transparency, orientation."""
    if image.width * image.height > _MOST_PIXELS or getattr(image, "n_frames", 1) != 1:
        raise _NoKeyError
    image.load()  # only then are the facts those of the pixels
    palette = None if image.palette is None else image.getpalette("RGBA")
    facts = (image.mode, image.size, palette, image.info.get("transparency"), sorted(image.getexif().items()))
    return _hashed(f"picture {facts!r}", image.tobytes())


def _hashed(kind: str, content: bytes) -> bytes:
    digest = hashlib.sha256(kind.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(content)
    return digest.digest()
