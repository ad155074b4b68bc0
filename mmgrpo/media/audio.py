"""Sounds: files, bytes, arrays with their rate in, mono float32 at the processor's rate out.

All paths come through here, so a sound is the same however a row names it. Nothing is ever cut: a sound that the
processor would cut is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmgrpo.config.data import AudioLimits
from mmgrpo.errors import MediaError, explain
from mmgrpo.media.mix import Samples, as_channels, check_rate, resample, to_mono
from mmgrpo.media.soundfiles import MAX_SECONDS_DECODED, Wave, check_seconds, read_sound_file
from mmgrpo.media.sources import find, require_file

_ARRAY_KEYS = ("array", "samples", "data")
_RATE_KEYS = ("sampling_rate", "sample_rate", "rate")


def read_audio(source: Any, *, name: str, rate: float | None, rate_hz: int, limits: AudioLimits) -> Samples:
    """Decode one sound.

    Args:
        source: A file, encoded bytes, base64, ``{"bytes", "path"}``, ``{"array", "sampling_rate"}``, a pair of array
            and rate, an array, or a decoder of ``datasets`` (torchcodec).
        name: How messages call the sound.
        rate: Sampling rate of an array that does not bring its own, in Hz.
        rate_hz: Rate of the result.
        limits: Shortest and longest length.

    Returns:
        float32 ``[samples]``, 1.0 being full scale.

    Raises:
        MediaError: Not a sound, damaged, too short or too long, or an array without a rate.
    """
    longest = limits.max_seconds or MAX_SECONDS_DECODED
    wave = _wave(source, name, rate, longest)
    seconds = wave.samples.shape[1] / wave.rate
    check_seconds(seconds, longest, name=name)
    if seconds < limits.min_seconds or not seconds:
        raise MediaError(
            explain(
                "A sound is too short",
                where=name,
                expected=f"at least {limits.min_seconds:g} seconds (data.audio.min_seconds)",
                got=f"{seconds:.4f} seconds",
            )
        )
    return resample(to_mono(wave.samples, name=name), rate=wave.rate, to=rate_hz)


def _wave(source: Any, name: str, rate: float | None, longest: float) -> Wave:
    array, own_rate = array_of(source)
    if array is not None:
        known = check_rate(rate if own_rate is None else own_rate, name=name)
        return Wave(samples=as_channels(array, name=name), rate=known)
    found = find(source, name=name)
    if isinstance(found, Path):
        return read_sound_file(require_file(found, name=name), name=name, max_seconds=longest)
    if isinstance(found, bytes):
        return read_sound_file(found, name=name, max_seconds=longest)
    raise MediaError(
        explain(
            "This is not a sound",
            where=name,
            expected='a path, bytes, base64, or {"array", "sampling_rate"}',
            got=type(source).__name__,
        )
    )


def array_of(source: Any) -> tuple[Any, float | None]:
    """Find the samples that a source holds already, and the rate that it brings.

    Args:
        source: As for :func:`read_audio`.

    Returns:
        An array and its rate in Hz, which may be None; (None, None) for what is encoded.
    """
    if isinstance(source, Mapping):
        array = next((source[key] for key in _ARRAY_KEYS if source.get(key) is not None), None)
        return array, next((source[key] for key in _RATE_KEYS if source.get(key) is not None), None)
    if hasattr(source, "get_all_samples"):  # what ``datasets`` makes of an audio column
        decoded = source.get_all_samples()
        return decoded.data, decoded.sample_rate
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], int | float):
        return source[0], source[1]
    if hasattr(source, "__array__") or hasattr(source, "cpu"):
        return source, None
    if isinstance(source, list) and all(isinstance(value, int | float) for value in source[:1]):
        return source or None, None
    return None, None
