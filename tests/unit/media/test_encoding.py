"""A medium written to bytes and read back is the medium that it was, whatever held it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.errors import MediaError
from mmgrpo.media.serialize import serialize_media
from mmgrpo.types import Media
from tests.decoding import decode

SHIPPED = Path(__file__).parents[2] / "data_samples/media"
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (12, 16, 3), dtype=np.uint8)
MODES = ["1", "L", "P", "RGB", "RGBA", "LA", "La", "RGBa", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"]


def read_back(media: Media) -> Media:
    """Carry a medium as a converted file does."""
    pieces, frames, rate = serialize_media(media)
    assert all(isinstance(piece, bytes) for piece in pieces)
    return Media(kind=media.kind, source=pieces if frames else pieces[0], rate=rate, name=media.name)


def check(media: Media) -> None:
    before, after = decode(media), decode(read_back(media))
    assert np.array_equal(np.asarray(before.data), np.asarray(after.data))
    assert (before.rate, before.times) == (after.rate, after.times)


def picture(mode: str) -> Image.Image:
    rgb = Image.fromarray(PIXELS)
    if mode in ("LA", "La", "RGBA", "RGBa"):
        rgba = rgb.copy()
        rgba.putalpha(Image.fromarray(PIXELS[..., 0]))
        wide = rgba.convert("LA") if mode in ("LA", "La") else rgba
        return wide.convert(mode)
    if mode == "LAB":
        return Image.frombytes("LAB", rgb.size, PIXELS.tobytes())
    if mode in ("I", "F", "I;16"):
        grey = RANDOM.integers(0, 65536, (12, 16))
        kind = {"I": np.int32, "F": np.float32, "I;16": np.uint16}[mode]
        return Image.fromarray((grey / 65535 if mode == "F" else grey).astype(kind))
    return rgb.convert(mode)


@pytest.mark.parametrize("mode", MODES)
def test_pictures_of_every_mode(mode: str):
    image = picture(mode)
    assert image.mode == mode
    check(Media(kind="image", source=image))


def test_a_turned_picture_stays_turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "jpeg", exif=exif)
    with Image.open(buffer) as image:
        assert decode(Media(kind="image", source=image)).data.size == (12, 16)
        check(Media(kind="image", source=image))


ARRAYS = [PIXELS, np.moveaxis(PIXELS, -1, 0), PIXELS / 255.0, PIXELS[..., 0], PIXELS[..., :1], PIXELS > 99,
          PIXELS.astype(np.uint16) * 257, torch.from_numpy(PIXELS / 255.0)]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype} {tuple(a.shape)}")
def test_pictures_that_are_arrays(array: Any):
    check(Media(kind="image", source=array))


WAVE = np.sin(np.arange(3200) / 9).astype(np.float32)
SOUNDS = {
    "float": WAVE,
    "int16": (WAVE * 30000).astype(np.int16),
    "uint8": (WAVE * 100 + 128).astype(np.uint8),
    "stereo": np.stack([WAVE, WAVE / 2]),
    "stereo, channels last": np.stack([WAVE, WAVE / 2], axis=1),
    "torch": torch.from_numpy(WAVE),
    "with its rate": {"array": WAVE, "sampling_rate": 8000},
    "a pair": (WAVE, 8000),
}


@pytest.mark.parametrize("source", SOUNDS.values(), ids=SOUNDS)
def test_sounds(source: Any):
    check(Media(kind="audio", source=source, rate=16000.0))


FRAMES = RANDOM.integers(0, 256, (4, 12, 16, 3), dtype=np.uint8)
CLIPS = {
    "array": FRAMES,
    "channels first": np.moveaxis(FRAMES, -1, 1),
    "floats": FRAMES / 255.0,
    "grey": FRAMES[..., 0],
    "list of arrays": list(FRAMES),
    "list of pictures": [Image.fromarray(frame) for frame in FRAMES],
    "files": [SHIPPED / "frame0.png", SHIPPED / "frame2.png"],
    "files with a rate": {"frames": [SHIPPED / "frame0.png", SHIPPED / "frame2.png"], "fps": 0.5},
    "array with a rate": {"video": FRAMES, "fps": 8.0},
    "a file in a dictionary": {"video": SHIPPED / "flashes.gif"},
    "a file": SHIPPED / "flashes.gif",
    "a torch array": torch.from_numpy(FRAMES),
}


@pytest.mark.parametrize("source", CLIPS.values(), ids=CLIPS)
def test_clips(source: Any):
    check(Media(kind="video", source=source))


@pytest.mark.parametrize(("kind", "source"), [("image", 3), ("audio", 3), ("video", 3), ("video", [3]), ("image", {})])
def test_what_is_no_medium_is_refused(kind: Any, source: Any):
    with pytest.raises(MediaError):
        serialize_media(Media(kind=kind, source=source, name="a thing"))
