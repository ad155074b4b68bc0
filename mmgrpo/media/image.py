"""Pictures: encoded bytes, arrays or Pillow pictures in, upright RGB out.

All paths come through here, so a picture looks the same however a row names it. The size is checked before any pixel
is decoded, the camera's orientation is applied once, and only the first frame of an animation is used, with a warning.
"""

from __future__ import annotations

import io
import struct
import threading
import warnings
import zlib
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.color import Color, array_to_image, to_rgb

MAX_PIXELS_DECODED = 89_478_485
"""Larger pictures are refused before decoding, as Pillow warns about them: a quarter of a gigabyte of RGB."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF", "BMP", "DIB", "TIFF", "ICO", "PPM", "TGA", "JPEG2000", "PCX", "QOI")
"""Formats that are read; those that would start other programs (EPS, PDF) are not among them."""

FAULTS = (
    OSError, SyntaxError, ValueError, EOFError, TypeError, KeyError, IndexError, OverflowError, ZeroDivisionError,
    MemoryError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
"""What Pillow's decoders raise on damaged files."""


def read_image(
    source: Any, *, name: str, background: Color = (255, 255, 255), max_pixels_decoded: int = MAX_PIXELS_DECODED
) -> Image.Image:
    """Decode one picture.

    Args:
        source: Encoded bytes, a Pillow picture, or an array (numpy or torch).
        name: How messages call the picture.
        background: Colour under transparent pixels.
        max_pixels_decoded: Refuse larger pictures, in pixels (width times height).

    Returns:
        A new RGB picture, upright, without metadata.

    Raises:
        MediaError: Not a picture, damaged, too large, or of values without a rule.
    """
    if isinstance(source, bytes):
        with open_image(source, name=name) as image:
            return _upright(image, name, background, max_pixels_decoded)
    if isinstance(source, Image.Image):
        with held(source):
            return _upright(source, name, background, max_pixels_decoded)
    if hasattr(source, "__array__") or hasattr(source, "cpu"):
        return to_rgb(array_to_image(source, name=name), background=background, name=name)
    raise MediaError(
        explain(
            "This is not a picture",
            where=name,
            expected="a path, bytes, base64, an array or a Pillow picture",
            got=type(source).__name__,
        )
    )


def verify_image(source: Any, *, name: str, max_pixels_decoded: int = MAX_PIXELS_DECODED) -> tuple[int, int] | None:
    """Check that a picture can be decoded to its end, as cheaply as its format allows.

    Args:
        source: As for :func:`read_image`; pictures and arrays that are in memory already are not looked at.
        name: How messages call the picture.
        max_pixels_decoded: Refuse larger pictures, in pixels.

    Returns:
        Width and height as stored, before any turning; None for what was not looked at.

    Raises:
        MediaError: Not a picture, damaged, cut off or too large.
    """
    if not isinstance(source, bytes):
        return None
    with open_image(source, name=name) as image:
        _check_size(image, name, max_pixels_decoded)
        size = image.size
        if image.format == "JPEG":
            image.draft("RGB", (max(1, image.width // 8), max(1, image.height // 8)))  # all bytes, fewer pixels
        _load(image, name)
    return size


_LOCKS = tuple(threading.Lock() for _ in range(64))


def held(source: Any) -> AbstractContextManager[Any]:
    """Keep a picture of Pillow for one thread: it reads its file when it is first used, and several rows may hold it.

    Args:
        source: Of a medium; nothing is kept but pictures of Pillow.
    """
    return _LOCKS[id(source) // 64 % len(_LOCKS)] if isinstance(source, Image.Image) else nullcontext()


@lru_cache(maxsize=1)
def _readable() -> tuple[str, ...]:
    Image.init()  # or Pillow knows only its commonest formats
    return tuple(name for name in FORMATS if name in Image.OPEN)


def open_image(data: bytes, *, name: str) -> Image.Image:
    """Open a picture or an animation, without decoding it; close it with ``with``.

    Args:
        data: Encoded bytes.
        name: How messages call it.

    Raises:
        MediaError: Not of a format that is read.
    """
    try:
        return Image.open(io.BytesIO(data), formats=_readable())
    except UnidentifiedImageError as error:
        raise MediaError(
            explain(
                "This is not a picture that can be read",
                where=name,
                expected=f"an undamaged file of one of {', '.join(FORMATS)}",
                got=f"{len(data)} bytes that begin with {data[:12]!r}" if data else "no bytes",
            )
        ) from error
    except FAULTS as error:
        raise MediaError(_damaged(name, error)) from error


def _upright(image: Image.Image, name: str, background: Color, limit: int) -> Image.Image:
    _check_size(image, name, limit)
    _warn_of_frames(image, name)
    _load(image, name)
    try:
        turned = ImageOps.exif_transpose(image)
    except FAULTS as error:
        warnings.warn(f"{name}: the EXIF data are damaged ({error}); the picture is used unturned.", stacklevel=4)
        turned = image
    try:
        return to_rgb(turned, background=background, name=name)
    except MediaError:
        raise
    except FAULTS as error:
        raise MediaError(_damaged(name, error)) from error


def _check_size(image: Image.Image, name: str, limit: int) -> None:
    width, height = image.size
    if width * height > limit:
        raise MediaError(
            explain(
                "A picture is too large to decode",
                where=name,
                expected=f"at most {limit:,} pixels",
                got=f"{width} x {height} = {width * height:,} pixels",
                fix="Shrink the file.",
            )
        )
    if not width or not height:
        raise MediaError(explain("A picture is empty", where=name, got=f"{width} x {height} pixels"))


def _warn_of_frames(image: Image.Image, name: str) -> None:
    """Say that an animation or a document of several pages is cut to its first; a phone's MPO is one picture."""
    if image.format == "MPO":
        return
    try:
        frames = getattr(image, "n_frames", 1)
    except FAULTS as error:
        raise MediaError(_damaged(name, error)) from error
    if frames > 1:
        warnings.warn(
            f"{name}: a picture with {frames} frames; only the first is used. To use all, give it as a video.",
            stacklevel=5,
        )


def _load(image: Image.Image, name: str) -> None:
    try:
        image.load()
    except FAULTS as error:
        raise MediaError(_damaged(name, error)) from error


def _damaged(name: str, error: BaseException) -> str:
    return explain(
        "A picture is damaged",
        where=name,
        got=f"{type(error).__name__}: {error}",
        fix="Replace the file, or set data.on_bad_media: skip to leave such rows out.",
    )
