"""Images: encoded bytes, arrays or Pillow images in, upright RGB out.

All paths come through here, so an image looks the same however a row names it. The size is checked before any pixel
is decoded, the camera's orientation is applied once, and only the first frame of an animation is used, with a warning.

| mode | rule |
|---|---|
| RGB | as it is |
| 1, L, P, YCbCr, HSV, CMYK | Pillow's conversion; colour profiles are not applied |
| LA, La, PA, RGBA, RGBa, and anything with a transparent colour | laid on the background colour |
| LAB | through Pillow's colour management to sRGB |
| I;16, I (16-bit grey) and F | as arrays of these types: ``media/arrays.py`` |

Shapes that no processor takes (2276 x 10 pixels stop those of the Qwen family, whose longest shape is 1 : 200) are
refused or padded by the YAML's choice. Sizes in pixels (``model.max_pixels``) are the processor's affair.
"""

from __future__ import annotations

import io
import math
import struct
import threading
import warnings
import zlib
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from mmgrpo.config.data import ImageLimits
from mmgrpo.errors import MediaError, explain
from mmgrpo.media.arrays import array_to_image, gray_bytes
from mmgrpo.media.sources import load_source
from mmgrpo.types import Decoded, Media, MediaKind

Color = tuple[int, int, int]


MAX_PIXELS_DECODED = 89_478_485
"""Larger images are refused before decoding, as Pillow warns about them: a quarter of a gigabyte of RGB."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF", "BMP", "DIB", "TIFF", "ICO", "PPM", "TGA", "JPEG2000", "PCX", "QOI")
"""Formats that are read; those that would start other programs (EPS, PDF) are not among them."""

IMAGE_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, TypeError, KeyError, IndexError, OverflowError, ZeroDivisionError,
    MemoryError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
"""What Pillow's decoders raise on damaged files."""


def read_image(
    source: Any, *, name: str, background: Color = (255, 255, 255), max_pixels_decoded: int = MAX_PIXELS_DECODED
) -> Image.Image:
    """Decode one image.

    Args:
        source: Encoded bytes, a Pillow image, or an array (numpy or torch).
        name: How messages call the image.
        background: Colour under transparent pixels.
        max_pixels_decoded: Refuse larger images, in pixels (width times height).

    Returns:
        A new RGB image, upright, without metadata.

    Raises:
        MediaError: Not an image, damaged, too large, or of values without a rule.
    """
    if isinstance(source, bytes):
        with open_image(source, name=name) as image:
            return _upright(image, name, background, max_pixels_decoded)
    if isinstance(source, Image.Image):
        with image_lock(source):
            return _upright(source, name, background, max_pixels_decoded)
    if hasattr(source, "__array__") or hasattr(source, "cpu"):
        return to_rgb(array_to_image(source, name=name), background=background, name=name)
    raise MediaError(
        explain(
            "This is not an image",
            where=name,
            expected="a path, bytes, base64, an array or a Pillow image",
            got=type(source).__name__,
        )
    )


def verify_image(source: Any, *, name: str, max_pixels_decoded: int = MAX_PIXELS_DECODED) -> tuple[int, int] | None:
    """Check that an image can be decoded to its end, as cheaply as its format allows.

    Args:
        source: As for :func:`read_image`; images and arrays that are in memory already are not looked at.
        name: How messages call the image.
        max_pixels_decoded: Refuse larger images, in pixels.

    Returns:
        Width and height as stored, before any turning; None for what was not looked at.

    Raises:
        MediaError: Not an image, damaged, cut off or too large.
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


def image_lock(source: Any) -> AbstractContextManager[Any]:
    """Keep an image of Pillow for one thread: it reads its file when it is first used, and several rows may hold it.

    Args:
        source: Of a media item; nothing is kept but images of Pillow.
    """
    return _LOCKS[id(source) // 64 % len(_LOCKS)] if isinstance(source, Image.Image) else nullcontext()


@lru_cache(maxsize=1)
def _readable() -> tuple[str, ...]:
    Image.init()  # or Pillow knows only its commonest formats
    return tuple(name for name in FORMATS if name in Image.OPEN)


def open_image(data: bytes, *, name: str) -> Image.Image:
    """Open an image or an animation, without decoding it; close it with ``with``.

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
                "This is not an image that can be read",
                where=name,
                expected=f"an undamaged file of one of {', '.join(FORMATS)}",
                got=f"{len(data)} bytes that begin with {data[:12]!r}" if data else "no bytes",
            )
        ) from error
    except IMAGE_ERRORS as error:
        raise MediaError(_damaged(name, error)) from error


def _upright(image: Image.Image, name: str, background: Color, limit: int) -> Image.Image:
    _check_size(image, name, limit)
    _warn_of_frames(image, name)
    _load(image, name)
    try:
        turned = ImageOps.exif_transpose(image)
    except IMAGE_ERRORS as error:
        warnings.warn(f"{name}: the EXIF data are damaged ({error}); the image is used unturned.", stacklevel=4)
        turned = image
    try:
        return to_rgb(turned, background=background, name=name)
    except MediaError:
        raise
    except IMAGE_ERRORS as error:
        raise MediaError(_damaged(name, error)) from error


def _check_size(image: Image.Image, name: str, limit: int) -> None:
    width, height = image.size
    if width * height > limit:
        raise MediaError(
            explain(
                "An image is too large to decode",
                where=name,
                expected=f"at most {limit:,} pixels",
                got=f"{width} x {height} = {width * height:,} pixels",
                fix="Shrink the file.",
            )
        )
    if not width or not height:
        raise MediaError(explain("An image is empty", where=name, got=f"{width} x {height} pixels"))


def _warn_of_frames(image: Image.Image, name: str) -> None:
    """Say that an animation or a document of several pages is cut to its first; a phone's MPO is one image."""
    if image.format == "MPO":
        return
    try:
        frames = getattr(image, "n_frames", 1)
    except IMAGE_ERRORS as error:
        raise MediaError(_damaged(name, error)) from error
    if frames > 1:
        warnings.warn(
            f"{name}: an image with {frames} frames; only the first is used. To use all, give it as a video.",
            stacklevel=5,
        )


def _load(image: Image.Image, name: str) -> None:
    try:
        image.load()
    except IMAGE_ERRORS as error:
        raise MediaError(_damaged(name, error)) from error


def _damaged(name: str, error: BaseException) -> str:
    return explain(
        "An image is damaged",
        where=name,
        got=f"{type(error).__name__}: {error}",
        fix="Replace the file, or set data.on_bad_media: skip to leave such rows out.",
    )


def to_rgb(image: Image.Image, *, background: Color, name: str) -> Image.Image:
    """Convert an image of any mode to RGB.

    Args:
        image: The image; it is not changed.
        background: Colour under transparent pixels.
        name: How messages call the image.

    Returns:
        A new image of mode RGB, without any metadata.

    Raises:
        MediaError: Values for which there is no rule.

    Example:
        >>> to_rgb(Image.new("LA", (1, 1), (0, 0)), background=(9, 8, 7), name="a dot").getpixel((0, 0))
        (9, 8, 7)
    """
    if image.mode.startswith("I") or image.mode == "F":
        rgb = Image.fromarray(gray_bytes(np.asarray(image), name)).convert("RGB")
    elif image.mode == "LAB":
        rgb = ImageCms.applyTransform(image, _lab_to_srgb())
        assert rgb is not None
    elif image.has_transparency_data:
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        rgb = Image.new("RGB", image.size, background)
        rgb.paste(rgba, mask=rgba.getchannel("A"))
    else:
        rgb = image.convert("RGB")
    rgb.info = {}
    return rgb


@lru_cache(maxsize=1)
def _lab_to_srgb() -> ImageCms.ImageCmsTransform:
    return ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB")


def padded_size(width: int, height: int, limits: ImageLimits) -> tuple[int, int]:
    """Find the smallest canvas of an allowed shape that holds an image.

    Args:
        width: In pixels.
        height: In pixels.
        limits: Smallest side, longest shape.

    Returns:
        Width and height; those of the image where its shape is allowed.

    Example:
        >>> padded_size(2276, 10, ImageLimits(max_aspect_ratio=200))
        (2276, 12)
        >>> padded_size(40, 2000, ImageLimits(min_side=56))
        (56, 2000)
    """
    least = max(limits.min_side, math.ceil(max(width, height) / limits.max_aspect_ratio))
    return max(width, least), max(height, least)


def check_shape(width: int, height: int, limits: ImageLimits, *, name: str) -> None:
    """Refuse an image whose shape is not allowed, unless such images are padded.

    Args:
        width: In pixels.
        height: In pixels.
        limits: The YAML's.
        name: How messages call the image.

    Raises:
        MediaError: Too small or too narrow.
    """
    if limits.on_bad_shape == "pad" or padded_size(width, height, limits) == (width, height):
        return
    small = min(width, height) < limits.min_side
    raise MediaError(
        explain(
            "An image is too small" if small else "An image is too narrow",
            where=name,
            expected=f"sides of at least {limits.min_side} pixels"
            if small
            else f"a longer side of at most {limits.max_aspect_ratio:g} times the shorter",
            got=f"{width} x {height} pixels",
            fix="Replace the file, set data.image.on_bad_shape: pad, or leave such rows out with "
            "data.on_bad_media: skip.",
        )
    )


def fit_shape(image: Image.Image, limits: ImageLimits, *, background: Color, name: str) -> Image.Image:
    """Give an image an allowed shape, or refuse it.

    Args:
        image: An upright RGB image.
        limits: The YAML's.
        background: Colour of what is added.
        name: How messages call the image.

    Returns:
        The image, in the middle of a larger canvas where it had to be padded.

    Raises:
        MediaError: Too small or too narrow, and not to be padded.
    """
    check_shape(image.width, image.height, limits, name=name)
    size = padded_size(image.width, image.height, limits)
    if size == image.size:
        return image
    canvas = Image.new("RGB", size, background)
    canvas.paste(image, ((size[0] - image.width) // 2, (size[1] - image.height) // 2))
    return canvas


class ImageAdapter:
    """Images, of any format that Pillow reads safely."""

    kind: MediaKind = "image"

    def __init__(
        self,
        limits: ImageLimits | None = None,
        *,
        background: Color = (255, 255, 255),
        max_pixels_decoded: int = MAX_PIXELS_DECODED,
    ) -> None:
        """Take ``limits`` of shape, a colour for transparent pixels, and a size past which nothing is decoded."""
        self._limits, self._background, self._largest = limits or ImageLimits(), background, max_pixels_decoded

    def reads(self, media: Media) -> bool:
        """Read every image."""
        return True

    def decode(self, media: Media) -> Decoded:
        """Decode one image."""
        name = media.name or "an image"
        image = read_image(
            load_source(media.source, name=name),
            name=name,
            background=self._background,
            max_pixels_decoded=self._largest,
        )
        image = fit_shape(image, self._limits, background=self._background, name=name)
        return Decoded(kind="image", data=image, name=media.name)

    def verify(self, media: Media) -> None:
        """Check one image."""
        name = media.name or "an image"
        size = verify_image(load_source(media.source, name=name), name=name, max_pixels_decoded=self._largest)
        if size is None:
            self.decode(media)
        else:
            check_shape(*size, self._limits, name=name)
