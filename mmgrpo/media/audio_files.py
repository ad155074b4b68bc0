"""Encoded audio to samples: soundfile for wav, flac, ogg, opus and mp3, PyAV for everything else.

That is m4a, aac, and the audio of a video. Neither library is imported before the first audio. A file that ends before
its header says so is refused where the format tells (wav, flac); mp3 and ogg streams do not say how long they are.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mmgrpo.errors import MediaError, explain
from mmgrpo.media.arrays import MOST_CHANNELS, AudioSamples
from mmgrpo.media.sources import av_errors, open_container

MAX_SECONDS_DECODED = 3600.0
"""Longer audio is refused whatever the limits: an hour at 48 kHz is 0.7 GB of samples."""
RATES_HZ = (1_000, 384_000)
"""Smallest and largest sampling rate that is believed."""
_BLOCK = 1 << 18
_UNKNOWN_SIZES = (0, 0x7FFFF000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waveform:
    """Audio as it was stored."""

    samples: AudioSamples
    """``[channels, n]``."""
    rate: int
    """Hz."""


def read_audio_file(source: bytes | Path, *, name: str, max_seconds: float) -> Waveform:
    """Decode an audio file.

    Args:
        source: Encoded bytes, or a file.
        name: How messages call the audio.
        max_seconds: A longer audio is refused before it fills the memory.

    Returns:
        All of its samples.

    Raises:
        MediaError: Not audio, damaged, cut off or too long; or no library that reads it is installed.
    """
    limit = min(max_seconds, MAX_SECONDS_DECODED)
    wave = _by_soundfile(source, name, limit)
    wave = wave or _by_av(source, name, limit)
    if wave.samples.shape[1] == 0:
        raise MediaError(explain("Audio is empty", where=name))
    return wave


def _by_soundfile(source: bytes | Path, name: str, limit: float) -> Waveform | None:
    """Read with soundfile; None where it is not installed or does not know the format."""
    try:
        import soundfile
    except ImportError:
        return None
    with _opened(source) as raw:
        try:
            file = soundfile.SoundFile(raw)
        except (soundfile.LibsndfileError, OSError, ValueError, RuntimeError, TypeError, OverflowError):
            return None
        with file:
            rate = check_rate(file.samplerate, name=name)
            if file.channels > MOST_CHANNELS:
                raise MediaError(explain("Audio has too many channels", where=name, got=str(file.channels)))
            known = 0 < file.frames < 2**62
            if known:
                check_seconds(file.frames / rate, limit, name=name)
            try:
                samples = np.concatenate(list(_blocks(file, rate, limit, name)) or [np.zeros((0, 1), np.float32)])
            except soundfile.LibsndfileError as error:
                raise MediaError(_damaged(name, str(error))) from error
            short = known and len(samples) < file.frames and file.format == "FLAC"
        if short or _wav_is_cut(raw):
            raise MediaError(_damaged(name, "it ends before its header says so"))
    return Waveform(samples=np.ascontiguousarray(samples.T), rate=rate)


def _blocks(file: Any, rate: int, limit: float, name: str) -> Iterator[AudioSamples]:
    total = 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        total += len(block)
        check_seconds(total / rate, limit, name=name)
        yield block


def _by_av(source: bytes | Path, name: str, limit: float) -> Waveform:
    expected = "wav, flac, mp3, ogg, opus, m4a or aac file"
    with closing(open_container(source, name=name, expected=expected)) as container:
        try:
            return _first_track(container, name, limit)
        except MediaError:
            raise
        except av_errors() as error:
            raise MediaError(_damaged(name, f"{type(error).__name__}: {error}")) from error


def _first_track(container: Any, name: str, limit: float) -> Waveform:
    import av

    if not container.streams.audio:
        raise MediaError(explain("A file holds no audio", where=name))
    stream = container.streams.audio[0]
    rate = check_rate(stream.rate, name=name)
    planar = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate)
    parts: list[AudioSamples] = []
    total = 0
    for frame in chain(container.decode(stream), [None]):  # None: what the resampler still holds
        for part in planar.resample(frame):
            parts.append(part.to_ndarray())
            total += part.samples
            check_seconds(total / rate, limit, name=name)
    return Waveform(samples=np.concatenate(parts, axis=1) if parts else np.zeros((1, 0), np.float32), rate=rate)


def check_seconds(seconds: float, limit: float, *, name: str) -> None:
    """Refuse audio that is longer than ``limit`` seconds.

    Args:
        seconds: How long it is, or how much of it was read so far.
        limit: In seconds.
        name: How messages call the audio.

    Raises:
        MediaError: It is longer.
    """
    if seconds > limit + 1e-6:
        raise MediaError(
            explain(
                "Audio is too long",
                where=name,
                expected=f"at most {limit:g} seconds",
                got=f"{seconds:.2f} seconds or more",
                fix="Cut the file, or raise data.audio.max_seconds as far as the model reads. Audio is never cut.",
            )
        )


def _opened(source: bytes | Path) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _wav_is_cut(file: BinaryIO) -> bool:
    """Tell whether a wav file ends inside its data; files written as a stream, of unknown size, do not say."""
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return False
    while len(chunk := file.read(8)) == 8:
        size = struct.unpack("<I", chunk[4:])[0]
        if chunk[:4] == b"data":
            return _UNKNOWN_SIZES[0] < size < _UNKNOWN_SIZES[1] and file.tell() + size > end
        file.seek(size + size % 2, io.SEEK_CUR)
    return False


def _damaged(name: str, got: str) -> str:
    return explain(
        "Audio is damaged",
        where=name,
        got=got,
        fix="Replace the file, or set data.on_bad_media: skip to leave such rows out.",
    )


def check_rate(rate: float | None, *, name: str) -> int:
    """Check a sampling rate.

    Args:
        rate: In Hz; None: the source brought none.
        name: How messages call the audio.

    Returns:
        The rate, to whole Hz.

    Raises:
        MediaError: There is none, or it cannot be right.
    """
    low, high = RATES_HZ
    if rate is not None and low <= rate <= high:
        return round(rate)
    what = "Audio has no sampling rate" if rate is None else "A sampling rate cannot be right"
    raise MediaError(
        explain(
            what,
            where=name,
            expected=f"{low:,} to {high:,} Hz",
            got="" if rate is None else f"{rate:g} Hz",
            fix='Give arrays as {"array": samples, "sampling_rate": hz}.' if rate is None else "",
        )
    )
