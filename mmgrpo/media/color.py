"""Every picture mode to RGB, by rules that are written down.

| mode | rule |
|---|---|
| RGB | as it is |
| 1, L, P, YCbCr, HSV, CMYK | Pillow's conversion; colour profiles are not applied |
| LA, La, PA, RGBA, RGBa, and anything with a transparent colour | laid on the background colour |
| LAB | through Pillow's colour management to sRGB |
| I;16 and I (16-bit grey) | value / 65535, never stretched to the values that occur; I outside 0..65535 is refused |
| F, float arrays | times 255 where no value exceeds 1, else 0..255 as it is; outside, or not finite: refused |
| arrays | [H, W], [H, W, 1], [H, W, 3], [H, W, 4] or channels first; uint8, uint16, bool or float |
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from mmgrpo.errors import MediaError, explain

Color = tuple[int, int, int]


def to_rgb(image: Image.Image, *, background: Color, name: str) -> Image.Image:
    """Convert a picture of any mode to RGB.

    Args:
        image: The picture; it is not changed.
        background: Colour under transparent pixels.
        name: How messages call the picture.

    Returns:
        A new picture of mode RGB, without any metadata.

    Raises:
        MediaError: Values for which there is no rule.

    Example:
        >>> to_rgb(Image.new("LA", (1, 1), (0, 0)), background=(9, 8, 7), name="a dot").getpixel((0, 0))
        (9, 8, 7)
    """
    if image.mode.startswith("I") or image.mode == "F":
        rgb = Image.fromarray(_gray_bytes(np.asarray(image), name)).convert("RGB")
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


def array_to_image(array: Any, *, name: str) -> Image.Image:
    """Turn an array into a picture.

    Args:
        array: ``[H, W]``, ``[H, W, channels]`` or ``[channels, H, W]`` with 1, 3 or 4 channels; numpy or torch.
        name: How messages call the picture.

    Returns:
        A picture of mode L, RGB or RGBA.

    Raises:
        MediaError: Another shape, another type, or values for which there is no rule.

    Example:
        >>> array_to_image(np.zeros((3, 20, 30)), name="black").size
        (30, 20)
    """
    values = np.asarray(array.detach().cpu() if hasattr(array, "cpu") else array)
    if values.ndim == 3 and values.shape[-1] not in (1, 3, 4) and values.shape[0] in (1, 3, 4):
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[-1] not in (3, 4)) or 0 in values.shape:
        raise MediaError(
            explain(
                "An array is not a picture",
                where=name,
                expected="[H, W], [H, W, 1 | 3 | 4] or [1 | 3 | 4, H, W]",
                got=f"shape {list(values.shape)}",
            )
        )
    return Image.fromarray(np.ascontiguousarray(_gray_bytes(values, name)))


def array_to_frames(array: Any, *, name: str) -> NDArray[np.uint8]:
    """Turn an array into the frames of a clip; values are scaled as those of pictures, all frames alike.

    Args:
        array: ``[frames, H, W]``, ``[frames, H, W, 1 | 3]`` or ``[frames, 1 | 3, H, W]``; numpy or torch.
        name: How messages call the clip.

    Returns:
        ``[frames, H, W, 3]``.

    Raises:
        MediaError: Another shape, another type, or values for which there is no rule.

    Example:
        >>> array_to_frames(np.zeros((4, 3, 20, 30)), name="black").shape
        (4, 20, 30, 3)
    """
    values = np.asarray(array.detach().cpu() if hasattr(array, "cpu") else array)
    if values.ndim == 3:
        values = values[..., None]
    if values.ndim == 4 and values.shape[-1] not in (1, 3) and values.shape[1] in (1, 3):
        values = np.moveaxis(values, 1, -1)
    if values.ndim != 4 or values.shape[-1] not in (1, 3) or 0 in values.shape:
        raise MediaError(
            explain(
                "An array is not a clip",
                where=name,
                expected="[frames, H, W], [frames, H, W, 1 | 3] or [frames, 1 | 3, H, W]",
                got=f"shape {list(values.shape)}",
            )
        )
    frames = _gray_bytes(values, name)
    return np.ascontiguousarray(frames if values.shape[-1] == 3 else np.repeat(frames, 3, axis=-1))


def _gray_bytes(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Scale values of any type to 0..255, by the table above; the number of channels does not matter."""
    kind = values.dtype
    if kind == np.uint8:
        return values
    if kind == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if kind.kind == "f":
        return _from_floats(values, name)
    if kind.kind in "ui" and kind.itemsize in (2, 4) and kind != np.int16:
        _refuse_outside(values, 65535, name)
        return np.rint(values / 257).astype(np.uint8)
    raise MediaError(
        explain(
            "Pixels are of a type without a rule", where=name, expected="uint8, uint16, bool or float", got=str(kind)
        )
    )


def _from_floats(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if not np.isfinite(values).all():
        raise MediaError(explain("Pixels are not finite", where=name, got="NaN or infinity"))
    _refuse_outside(values, 255, name)
    return np.rint(values * (255 if values.max() <= 1 else 1)).astype(np.uint8)


def _refuse_outside(values: NDArray[Any], largest: int, name: str) -> None:
    low, high = values.min(), values.max()
    if low < 0 or high > largest:
        raise MediaError(
            explain(
                "Pixel values are outside their range",
                where=name,
                expected=f"0 to {largest}",
                got=f"{low} to {high}",
                fix="Scale the picture to 8 bits yourself: only you know what its values mean.",
            )
        )


@lru_cache(maxsize=1)
def _lab_to_srgb() -> ImageCms.ImageCmsTransform:
    return ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB")
