"""Shapes of pictures that no processor takes: found before a run, refused or padded by the YAML's choice.

A picture of 2276 x 10 pixels stops processors of the Qwen family, whose longest shape is 1 : 200; a picture of one
pixel tells nobody anything. Sizes in pixels (``model.max_pixels``) are the processor's affair, not this file's.
"""

from __future__ import annotations

import math

from PIL import Image

from mmgrpo.config.data import ImageLimits
from mmgrpo.errors import MediaError, explain
from mmgrpo.media.color import Color


def needed_size(width: int, height: int, limits: ImageLimits) -> tuple[int, int]:
    """Find the smallest canvas of an allowed shape that holds a picture.

    Args:
        width: In pixels.
        height: In pixels.
        limits: Smallest side, longest shape.

    Returns:
        Width and height; those of the picture where its shape is allowed.

    Example:
        >>> needed_size(2276, 10, ImageLimits(max_aspect_ratio=200))
        (2276, 12)
        >>> needed_size(40, 2000, ImageLimits(min_side=56))
        (56, 2000)
    """
    least = max(limits.min_side, math.ceil(max(width, height) / limits.max_aspect_ratio))
    return max(width, least), max(height, least)


def check_shape(width: int, height: int, limits: ImageLimits, *, name: str) -> None:
    """Refuse a picture whose shape is not allowed, unless such pictures are padded.

    Args:
        width: In pixels.
        height: In pixels.
        limits: The YAML's.
        name: How messages call the picture.

    Raises:
        MediaError: Too small or too narrow.
    """
    if limits.on_bad_shape == "pad" or needed_size(width, height, limits) == (width, height):
        return
    small = min(width, height) < limits.min_side
    raise MediaError(
        explain(
            "A picture is too small" if small else "A picture is too narrow",
            where=name,
            expected=f"sides of at least {limits.min_side} pixels"
            if small
            else f"a longer side of at most {limits.max_aspect_ratio:g} times the shorter",
            got=f"{width} x {height} pixels",
            fix="Replace the file, set data.image.on_bad_shape: pad, or leave such rows out with "
            "data.on_bad_media: skip.",
        )
    )


def fitted(image: Image.Image, limits: ImageLimits, *, background: Color, name: str) -> Image.Image:
    """Give a picture an allowed shape, or refuse it.

    Args:
        image: An upright RGB picture.
        limits: The YAML's.
        background: Colour of what is added.
        name: How messages call the picture.

    Returns:
        The picture, in the middle of a larger canvas where it had to be padded.

    Raises:
        MediaError: Too small or too narrow, and not to be padded.
    """
    check_shape(image.width, image.height, limits, name=name)
    size = needed_size(image.width, image.height, limits)
    if size == image.size:
        return image
    canvas = Image.new("RGB", size, background)
    canvas.paste(image, ((size[0] - image.width) // 2, (size[1] - image.height) // 2))
    return canvas
