"""Media back to bytes, without loss, for a file that carries them: what was bytes stays the same bytes.

Images and frames become PNG, audio 32-bit float WAV: read back, they decode to what they decoded to before. What
neither can hold (floats, LAB, CMYK) is converted by the rules of :mod:`mmgrpo.media.image` first. Knows no rows.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.adapters import Adapter
from mmgrpo.media.arrays import array_to_frames, array_to_image, as_channels
from mmgrpo.media.audio import audio_array
from mmgrpo.media.audio_files import check_rate
from mmgrpo.media.image import to_rgb
from mmgrpo.media.sources import load_source, resolve_source
from mmgrpo.types import Media

_PNG_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")


def serialize_media(media: Media, plugins: Sequence[Adapter] = ()) -> tuple[list[bytes], bool, float | None]:
    """Give one media item as bytes.

    Args:
        media: Any that a decoder of its kind reads.
        plugins: Readers of other sensors, asked first. What one of them reads is written as what it made: the bytes
            alone would mean nothing without their file's name.

    Returns:
        Its bytes, several where it is made of frames; whether it is made of frames; and its rate in Hz or frames per
        second, where the bytes do not say it.

    Raises:
        MediaError: It cannot be read, or is of a kind that has no bytes.
    """
    reader = next((one for one in plugins if one.kind == media.kind and one.reads(media)), None)
    if reader is not None:
        made = reader.decode(media)
        return serialize_media(Media(kind=made.kind, source=made.data, rate=made.rate, name=media.name))
    if media.kind == "video":
        return _video(media.source, media.rate, media.name)
    if media.kind == "audio":
        return [_audio(media.source, media.rate, media.name)], False, media.rate
    return [_image(media.source, media.name)], False, None


def _video(source: Any, rate: float | None, name: str) -> tuple[list[bytes], bool, float | None]:
    if isinstance(source, Mapping) and source.get("shuffled") is not None:
        fix = "Convert the source without shuffled_twins: it is a key of the source that is read later."
        raise MediaError(explain("A video with shuffled frames cannot be written", where=name, fix=fix))
    if isinstance(source, Mapping):
        frames = next((source[key] for key in ("frames", "array", "video") if source.get(key) is not None), None)
        own_rate = next((source[key] for key in ("fps", "rate") if source.get(key)), rate)
        return _video(resolve_source(source, name=name) if frames is None else frames, own_rate, name)
    if _is_array(source):
        source = list(array_to_frames(source, name=name))
    if isinstance(source, Sequence) and not isinstance(source, str | bytes | bytearray):
        return [_image(frame, name) for frame in source], True, rate
    return [_bytes(load_source(source, name=name), name)], False, rate


def _audio(source: Any, rate: float | None, name: str) -> bytes:
    array, own_rate = audio_array(source)
    if array is None:
        return _bytes(load_source(source, name=name), name)
    return _wav(as_channels(array, name=name), check_rate(rate if own_rate is None else own_rate, name=name))


def _image(source: Any, name: str) -> bytes:
    content = load_source(source, name=name)
    if _is_array(content) and not isinstance(content, Image.Image):
        return _png(array_to_image(content, name=name))
    if not isinstance(content, Image.Image):
        return _bytes(content, name)
    image = ImageOps.exif_transpose(content)
    if image.mode in ("La", "RGBa", "PA"):
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    elif image.mode not in _PNG_MODES:
        image = to_rgb(image, background=(255, 255, 255), name=name)
    return _png(image)


def _is_array(source: Any) -> bool:
    return hasattr(source, "__array__") or hasattr(source, "cpu")


def _bytes(content: Any, name: str) -> bytes:
    if isinstance(content, bytes):
        return content
    expected = "bytes, an image, an array, or audio with its rate"
    raise MediaError(
        explain("This media item cannot be written", where=name, expected=expected, got=type(content).__name__)
    )


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _wav(samples: Any, rate: int) -> bytes:
    """Write the header of a float WAV and the samples ``[channels, n]``, channels last."""
    channels = samples.shape[0]
    body = np.ascontiguousarray(samples.T, dtype="<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * 4, channels * 4, 32)
    size = 4 + 8 + len(form) + 8 + len(body)
    head = [b"RIFF", struct.pack("<I", size), b"WAVEfmt ", struct.pack("<I", len(form)), form]
    return b"".join([*head, b"data", struct.pack("<I", len(body)), body])
