"""Damaged pictures, sounds and clips: only typed errors, no hang past the limit, no growth of memory."""

from __future__ import annotations

import gc
import io
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile
from PIL import Image

from mmgrpo.config.data import AudioLimits, Data, VideoLimits
from mmgrpo.errors import MediaError
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.types import Decoded, Media

SECONDS = 2.0
MEGABYTES = 100
IMAGES = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "ICO", "PPM", "TGA", "JPEG2000", "PCX")
SOUNDS = ("WAV", "FLAC", "OGG", "MP3", "OPUS", "M4A")
CLIPS = ("mp4", "matroska", "webm", "avi", "GIF", "WEBP")


def pictures() -> list[bytes]:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8))
    files = []
    for form in IMAGES:
        out = io.BytesIO()
        image.save(out, form)
        files.append(out.getvalue())
    for mode in ("RGBA", "P", "1", "LA", "I;16"):
        out = io.BytesIO()
        image.convert("L" if mode == "I;16" else mode).convert(mode).save(out, "PNG")
        files.append(out.getvalue())
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(out, "JPEG", exif=exif)
    return [*files, out.getvalue()]


def sounds(make_clip: Any) -> list[bytes]:
    wave = np.sin(np.arange(8000) / 9).astype(np.float32)
    files = []
    for form in SOUNDS[:-1]:
        out = io.BytesIO()
        kind, subtype = ("OGG", "OPUS") if form == "OPUS" else (form, None)
        soundfile.write(out, np.stack([wave, wave], axis=1), 16000, format=kind, subtype=subtype)
        files.append(out.getvalue())
    return [*files, make_clip(count=2, sound=wave)]


def clips(make_clip: Any) -> list[bytes]:
    noise = list(np.random.default_rng(0).integers(0, 255, (8, 32, 32, 3), dtype=np.uint8))
    films = [make_clip(noise, form=form) for form in CLIPS[:4]]
    for form in CLIPS[4:]:
        out = io.BytesIO()
        frames = [Image.fromarray(frame) for frame in noise]
        frames[0].save(out, form, save_all=True, append_images=frames[1:], duration=100)
        films.append(out.getvalue())
    return films


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, blank or insert bytes; headers are hit as often as everything else together."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        if not out:
            break
        at = rng.randrange(min(len(out), 64) if rng.random() < 0.5 else len(out))
        action = rng.randrange(6)
        if action <= 1:
            out[at] = rng.randrange(256)
        elif action == 2:
            out[at : at + 4] = rng.choice((b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", rng.randbytes(4)))
        elif action == 3:
            del out[at : at + rng.randrange(1, 50)]
        elif action == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 20))
        else:
            del out[rng.randrange(len(out)) :]
    return bytes(out)


def checked(decoded: Decoded) -> None:
    """What is read must keep the contract, however damaged the file was."""
    if decoded.kind == "image":
        assert decoded.data.mode == "RGB"
        assert decoded.data.width >= 1
    elif decoded.kind == "audio":
        assert decoded.data.dtype == np.float32
        assert np.isfinite(decoded.data).all()
        assert 0 < len(decoded.data) <= 5 * 16000 + 1
    else:
        assert decoded.data.dtype == np.uint8
        assert decoded.data.shape[-1] == 3
        assert 0 < len(decoded.data) <= 64
        assert (decoded.rate or 0) > 0


def fuzz(kind: Any, files: list[bytes], count: int, seed: int) -> tuple[int, int]:
    """Decode damaged files; gives how many were read and how many refused."""
    limits = Data(audio=AudioLimits(max_seconds=5), video=VideoLimits(max_decode_seconds=SECONDS))
    adapters = Adapters(built_in(limits, max_pixels_decoded=4_000_000))
    read = refused = 0
    process, before = psutil.Process(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(count):
            data = damaged(files[i % len(files)], random.Random(f"{kind} {seed} {i}"))
            start = time.monotonic()
            try:
                checked(adapters.decode(Media(kind=kind, source=data, name=f"file {i}")))
                read += 1
            except MediaError as error:
                assert f"file {i}" in str(error)
                refused += 1
            assert time.monotonic() - start < 2 * SECONDS + 1, f"file {i} of seed {seed} took too long"
            if i == min(200, count // 3):
                gc.collect()
                before = process.memory_info().rss
    gc.collect()
    grown = (process.memory_info().rss - before) / 1e6
    assert grown < MEGABYTES, f"{grown:.0f} MB more after {count} files"
    return read, refused


KINDS: dict[str, tuple[Callable[[Any], list[bytes]], int]] = {
    "image": (lambda make_clip: pictures(), 500),
    "audio": (sounds, 300),
    "video": (clips, 200),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damaged_files_are_read_or_refused(kind: str, make_clip: Any):
    files, count = KINDS[kind]
    read, refused = fuzz(kind, files(make_clip), count, seed=0)
    assert read > count // 20, "some damage does not hurt"
    assert refused > count // 4


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_thousand_damaged_files_are_read_or_refused(kind: str, make_clip: Any):
    files, count = KINDS[kind]
    fuzz(kind, files(make_clip), 20 * count, seed=random.randrange(2**32))


def test_undamaged_files_are_all_read(make_clip: Any):
    adapters = Adapters(built_in(Data()))
    for kind, (files, _) in KINDS.items():
        for data in files(make_clip):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                checked(adapters.decode(Media(kind=kind, source=data, name="whole")))  # type: ignore[arg-type]
