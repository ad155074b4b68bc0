"""The YAML's limits of pictures, in pixels, as settings of image processors that take areas.

Written into the processor itself, where saving it keeps them. Knows settings, no models.
"""

from __future__ import annotations

from typing import Any


def set_pixel_limits(processor: Any, min_pixels: int | None, max_pixels: int | None, *, counted: int = 1) -> None:
    """Write the picture limits into the image processor.

    Args:
        processor: A processor; one without pictures is left alone.
        min_pixels: Smallest picture after resizing, in pixels; None keeps the checkpoint's.
        max_pixels: Largest; None keeps the checkpoint's.
        counted: How often the processor counts each pixel: twice where it takes a picture for two frames.
    """
    image = getattr(processor, "image_processor", None)
    if image is None or (min_pixels is None and max_pixels is None):
        return
    size = dict(image.size) if image.size is not None else {}
    if min_pixels is not None:
        size["shortest_edge"] = min_pixels * counted
    if max_pixels is not None:
        size["longest_edge"] = max_pixels * counted
        size["shortest_edge"] = min(size.get("shortest_edge", max_pixels * counted), max_pixels * counted)
    image.size = size
    for name, value in (("min_pixels", size.get("shortest_edge")), ("max_pixels", size.get("longest_edge"))):
        if getattr(image, name, None) is not None:
            setattr(image, name, value)
