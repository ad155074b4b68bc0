"""One medium, as a row names it, to the one object that processor, engine, trainer and rewards share.

Chooses the decoder by kind; each kind has a file of its own.
"""

from __future__ import annotations

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.color import Color
from mmgrpo.media.image import MAX_PIXELS_DECODED, read_image, verify_image
from mmgrpo.media.sources import load
from mmgrpo.types import Decoded, Media


def decode(
    media: Media, *, background: Color = (255, 255, 255), max_pixels_decoded: int = MAX_PIXELS_DECODED
) -> Decoded:
    """Decode one medium.

    Args:
        media: Kind and source. A source is a path, a ``file://`` or ``data:`` address, base64, bytes, a
            ``{"bytes", "path"}`` dictionary, an array or a Pillow picture.
        background: Colour under transparent pixels of a picture.
        max_pixels_decoded: Larger pictures are refused before decoding, in pixels.

    Returns:
        The decoded medium, under the same name.

    Raises:
        MediaError: It cannot be read; the message names it.

    Example:
        >>> import numpy as np
        >>> decode(Media(kind="image", source=np.zeros((2, 3), np.uint8), name="dark")).data.size
        (3, 2)
    """
    _check_kind(media)
    source = load(media.source, name=media.name or "a picture")
    image = read_image(
        source, name=media.name or "a picture", background=background, max_pixels_decoded=max_pixels_decoded
    )
    return Decoded(kind=media.kind, data=image, name=media.name)


def verify(media: Media, *, max_pixels_decoded: int = MAX_PIXELS_DECODED) -> None:
    """Check that one medium can be read to its end, more cheaply than :func:`decode` where the format allows.

    Args:
        media: Kind and source.
        max_pixels_decoded: Larger pictures are refused, in pixels.

    Raises:
        MediaError: It cannot be read; the message names it.
    """
    _check_kind(media)
    name = media.name or "a picture"
    verify_image(load(media.source, name=name), name=name, max_pixels_decoded=max_pixels_decoded)


def _check_kind(media: Media) -> None:
    if media.kind != "image":
        raise MediaError(explain(f"There is no decoder for {media.kind}", where=media.name, expected="image"))
