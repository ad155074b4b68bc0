"""Arrays that hold media already: pixels to images and frames, samples to channels, by rules that are written down.

| what | rule |
|---|---|
| pixels of uint8, bool | as they are, bool times 255 |
| uint16, uint32 | value / 65535, never stretched to the values that occur; outside 0..65535 refused |
| float pixels | times 255 where no value exceeds 1, else 0..255 as they are; outside, or not finite: refused |
| channels of pixels | [H, W], [H, W, 1], [H, W, 3], [H, W, 4] or channels first |
| whole-number samples | int16 / 32768, int32 / 2^31, uint8 (value - 128) / 128 |
| float samples | as they are; not finite, or beyond 16, refused |
| channel axis of samples | the shorter of two axes, at most 32 channels; two equal axes are refused |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmgrpo.errors import MediaError, explain

AudioSamples = NDArray[np.float32]
MOST_CHANNELS = 32
_LARGEST_FLOAT = 16.0


def array_to_image(array: Any, *, name: str) -> Image.Image:
    """Turn an array into an image.

    Args:
        array: ``[H, W]``, ``[H, W, channels]`` or ``[channels, H, W]`` with 1, 3 or 4 channels; numpy or torch.
        name: How messages call the image.

    Returns:
        An image of mode L, RGB or RGBA.

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
                "An array is not an image",
                where=name,
                expected="[H, W], [H, W, 1 | 3 | 4] or [1 | 3 | 4, H, W]",
                got=f"shape {list(values.shape)}",
            )
        )
    return Image.fromarray(np.ascontiguousarray(gray_bytes(values, name)))


def array_to_frames(array: Any, *, name: str) -> NDArray[np.uint8]:
    """Turn an array into the frames of a video; values are scaled as those of images, all frames alike.

    Args:
        array: ``[frames, H, W]``, ``[frames, H, W, 1 | 3]`` or ``[frames, 1 | 3, H, W]``; numpy or torch.
        name: How messages call the video.

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
                "An array is not a video",
                where=name,
                expected="[frames, H, W], [frames, H, W, 1 | 3] or [frames, 1 | 3, H, W]",
                got=f"shape {list(values.shape)}",
            )
        )
    frames = gray_bytes(values, name)
    return np.ascontiguousarray(frames if values.shape[-1] == 3 else np.repeat(frames, 3, axis=-1))


def gray_bytes(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
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
                fix="Scale the image to 8 bits yourself: only you know what its values mean.",
            )
        )


def as_channels(array: Any, *, name: str) -> AudioSamples:
    """Bring an array to float32 ``[channels, samples]``.

    Args:
        array: ``[n]``, ``[channels, n]`` or ``[n, channels]``; numpy, torch or a list of numbers.
        name: How messages call the audio.

    Returns:
        The samples, 1.0 being full scale.

    Raises:
        MediaError: Another shape, another type, or values for which there is no rule.

    Example:
        >>> as_channels(np.zeros((5, 2), np.int16), name="silence").shape
        (2, 5)
    """
    values = np.asarray(array.detach().cpu() if hasattr(array, "cpu") else array)
    if values.ndim == 1:
        values = values[None]
    elif values.ndim == 2 and values.shape[0] > values.shape[1]:
        values = values.T
    square = values.ndim == 2 and values.shape[0] == values.shape[1] > 1
    if values.ndim != 2 or square or not 1 <= values.shape[0] <= MOST_CHANNELS:
        raise MediaError(
            explain(
                "An array is not audio",
                where=name,
                expected=f"[samples], [channels, samples] or [samples, channels], at most {MOST_CHANNELS} channels",
                got=f"shape {list(np.shape(array))}",
            )
        )
    return _as_floats(values, name)


def _as_floats(values: NDArray[Any], name: str) -> AudioSamples:
    kind = values.dtype
    if kind in (np.int16, np.int32):
        return (values / np.float64(-np.iinfo(kind).min)).astype(np.float32)
    if kind == np.uint8:
        return (values.astype(np.float32) - 128) / 128
    if kind.kind != "f":
        expected = "float, int16, int32 or uint8"
        raise MediaError(explain("Samples are of a type without a rule", where=name, expected=expected, got=str(kind)))
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= _LARGEST_FLOAT:  # NaN fails too
        raise MediaError(
            explain(
                "Samples are outside their range",
                where=name,
                expected="finite numbers, 1.0 being full scale",
                got=f"a largest magnitude of {largest:g}",
                fix="Divide whole numbers stored as floats by their full scale, for example 32768.",
            )
        )
    return values.astype(np.float32)
