"""Images that completions make: a crop, a filter, or a drawing. For the ``render:`` key of ``vision.py``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from mmgrpo import last_answer

_NUMBER = r"\s*(-?[0-9]{1,12}(?:\.[0-9]{0,12})?)\s*"
_BOX = re.compile(r"\[" + ",".join([_NUMBER] * 4) + r"\]")
_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_MAX_PIXELS = 1024
_MAX_SHAPES = 300
_FAR = 4 * _MAX_PIXELS
"""How far outside the image a coordinate may lie: drawing takes time by what is drawn, seen or not."""


def crop(completion: str, images: Sequence[Any]) -> Any | None:
    """Cut the box ``[x1, y1, x2, y2]`` (pixels) that the answer names out of the first image.

    Args:
        completion: What the policy wrote; the last ``<answer>`` is read.
        images: Images of the prompt.

    Returns:
        The image, or None where there is no box of at least 8 by 8 pixels inside it.

    Example:
        >>> from PIL import Image
        >>> crop("<answer>[2, 2, 20, 12]</answer>", [Image.new("RGB", (32, 32))]).size
        (18, 10)
    """
    match = _BOX.search(last_answer(completion) or "")
    if match is None or not images:
        return None
    width, height = images[0].size
    x1, y1, x2, y2 = (float(value) for value in match.groups())
    box = (max(0, int(x1)), max(0, int(y1)), int(min(x2, width)), int(min(y2, height)))
    return images[0].crop(box) if box[2] - box[0] >= 8 and box[3] - box[1] >= 8 else None


def adjust(completion: str, images: Sequence[Any]) -> Any | None:
    """Change brightness, contrast, colour and sharpness of the first image as the answer says.

    The answer is JSON, ``{"brightness": 1.2, "contrast": 0.9}``; 1 leaves a quality as it is, 0 to 3 is allowed.

    Args:
        completion: What the policy wrote.
        images: Images of the prompt.

    Returns:
        The image, or None where the answer is not of this form.

    Example:
        >>> from PIL import Image
        >>> adjust('<answer>{"brightness": 0}</answer>', [Image.new("RGB", (8, 8), "red")]).getpixel((0, 0))
        (0, 0, 0)
    """
    from PIL import ImageEnhance

    tools = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "color": ImageEnhance.Color,
        "sharpness": ImageEnhance.Sharpness,
    }
    try:
        wanted = json.loads(last_answer(completion) or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(wanted, dict) or not images or not wanted or set(wanted) - set(tools):
        return None
    image = images[0]
    for name, factor in wanted.items():
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor <= 3:
            return None
        image = tools[name](image).enhance(float(factor))
    return image


def svg(completion: str, images: Sequence[Any] = ()) -> Any | None:
    """Draw the first ``<svg>`` of the answer: rect, circle, ellipse, line, polygon and polyline with plain colours.

    Args:
        completion: What the policy wrote; the last ``<answer>`` is read, else the whole text.
        images: Not used.

    Returns:
        The image (white behind it, at most 1024 pixels a side and 300 shapes; coordinates end at 4096), or None where
        it cannot be drawn.

    Example:
        >>> drawn = svg('<svg width="8" height="8"><rect x="0" y="0" width="8" height="8" fill="red"/></svg>')
        >>> drawn.getpixel((4, 4))
        (255, 0, 0)
    """
    from PIL import Image, ImageDraw

    match = _SVG.search(last_answer(completion) or completion)
    if match is None or "<!" in match.group() or len(match.group()) > 20_000:  # no entities
        return None
    try:
        root = ElementTree.fromstring(match.group())
        width, height = (int(_number(root.get(side, "256"))) for side in ("width", "height"))
        if not (0 < width <= _MAX_PIXELS and 0 < height <= _MAX_PIXELS):
            return None
        image = Image.new("RGB", (width, height), "white")
        pen = ImageDraw.Draw(image)
        shapes = list(root.iter())
        if len(shapes) > _MAX_SHAPES:
            return None
        for shape in shapes:
            _draw(pen, shape)
    except (ElementTree.ParseError, ValueError, OverflowError, RecursionError):
        return None
    return image


def _number(text: str) -> float:
    return float(text.strip().removesuffix("px"))


def _draw(pen: Any, shape: ElementTree.Element) -> None:
    kind = shape.tag.rpartition("}")[2]

    def value(name: str, default: str = "0") -> float:
        return max(-_FAR, min(_FAR, _number(shape.get(name, default))))

    fill, line = (None if c in (None, "none") else c for c in (shape.get("fill", "black"), shape.get("stroke")))
    width = max(1, int(value("stroke-width", "1")))
    if kind == "rect":
        x, y, w, h = (value(name) for name in ("x", "y", "width", "height"))
        if w > 0 and h > 0:
            pen.rectangle((x, y, x + w - 1, y + h - 1), fill=fill, outline=line, width=width)
    elif kind in ("circle", "ellipse"):
        x, y = value("cx"), value("cy")
        rx, ry = (value("r"),) * 2 if kind == "circle" else (value("rx"), value("ry"))
        if rx > 0 and ry > 0:
            pen.ellipse((x - rx, y - ry, x + rx, y + ry), fill=fill, outline=line, width=width)
    elif kind == "line":
        ends = tuple(value(name) for name in ("x1", "y1", "x2", "y2"))
        pen.line(ends, fill=line or "black", width=width)
    elif kind in ("polygon", "polyline"):
        numbers = [_number(n) for n in re.split(r"[\s,]+", shape.get("points", "").strip()) if n]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        if len(points) >= 2:
            pen.polygon(points, fill=fill, outline=line) if kind == "polygon" else pen.line(
                points, fill=line, width=width
            )
