"""Media back to bytes, without loss, for a file that carries them: what was bytes stays the same bytes.

Pictures and frames become PNG, sounds 32-bit float WAV. Knows no rows.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.sources import load
from mmgrpo.types import Media


def encoded(media: Media) -> list[bytes]:
    """Give one medium as bytes.

    Args:
        media: Any that a decoder of its kind reads.

    Returns:
        Its bytes; several where it is a list of frames.

    Raises:
        MediaError: It cannot be read, or is of a kind that has no bytes.
    """
    if media.kind == "video" and isinstance(media.source, Mapping) and media.source.get("frames") is not None:
        return [_encoded(frame, "image", None, media.name) for frame in media.source["frames"]]
    if media.kind == "video" and isinstance(media.source, list | tuple):
        return [_encoded(load(frame, name=media.name), "image", None, media.name) for frame in media.source]
    source = load(media.source, name=media.name)
    if media.kind == "video" and isinstance(source, np.ndarray):
        return [_encoded(frame, "image", None, media.name) for frame in source]
    return [_encoded(source, media.kind, media.rate, media.name)]


def _encoded(source: Any, kind: str, rate: float | None, name: str) -> bytes:
    if isinstance(source, bytes):
        return source
    if kind == "audio" and isinstance(source, np.ndarray) and rate:
        return _wav(source, int(rate))
    if kind == "image" and (hasattr(source, "getpixel") or isinstance(source, np.ndarray)):
        return _png(source)
    expected = "bytes, a picture, or a sound with its rate"
    raise MediaError(
        explain("This medium cannot be written", where=name, expected=expected, got=type(source).__name__)
    )


def _png(source: Any) -> bytes:
    from PIL import Image

    image = Image.fromarray(source) if isinstance(source, np.ndarray) else source
    if image.mode not in ("1", "L", "LA", "I;16", "P", "RGB", "RGBA"):
        image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _wav(samples: Any, rate: int) -> bytes:
    """Write the header of a float WAV and the samples, channels last."""
    wide = np.asarray(samples, dtype="<f4")
    if wide.ndim == 2 and wide.shape[0] < wide.shape[1]:
        wide = wide.T
    channels = 1 if wide.ndim == 1 else wide.shape[1]
    body = np.ascontiguousarray(wide).tobytes()
    form = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * 4, channels * 4, 32)
    size = 4 + 8 + len(form) + 8 + len(body)
    head = [b"RIFF", struct.pack("<I", size), b"WAVEfmt ", struct.pack("<I", len(form)), form]
    return b"".join([*head, b"data", struct.pack("<I", len(body)), body])
