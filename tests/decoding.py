"""One medium to the one object that processor, engine, trainer and rewards share, by the rules that stand by default.

A run has an :class:`~mmgrpo.media.adapters.Adapters` of its own, with its own limits and plug-ins; these two functions
are for a single file, in a notebook or a test.
"""

from __future__ import annotations

from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.image import MAX_PIXELS_DECODED, Color
from mmgrpo.types import Decoded, Media


def decode(
    media: Media, *, background: Color = (255, 255, 255), max_pixels_decoded: int = MAX_PIXELS_DECODED
) -> Decoded:
    """Decode one medium.

    Args:
        media: Kind and source. A source is a path, a ``file://`` or ``data:`` address, base64, bytes, a
            ``{"bytes", "path"}`` dictionary, an array, a Pillow picture, or for clips a list of frames.
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
    return _adapters(background, max_pixels_decoded).decode(media)


def verify(media: Media, *, max_pixels_decoded: int = MAX_PIXELS_DECODED) -> None:
    """Check that one medium can be read to its end, more cheaply than :func:`decode` where the format allows.

    Args:
        media: Kind and source.
        max_pixels_decoded: Larger pictures are refused, in pixels.

    Raises:
        MediaError: It cannot be read; the message names it.
    """
    _adapters((255, 255, 255), max_pixels_decoded).verify(media)


def _adapters(background: Color, max_pixels_decoded: int) -> Adapters:
    return Adapters(built_in(background=background, max_pixels_decoded=max_pixels_decoded))
