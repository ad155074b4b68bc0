"""Audio: files, bytes, arrays with their rate in, mono float32 at the processor's rate out.

All paths come through here, so audio is the same however a row names it. Nothing is ever cut: audio that the
processor would cut is refused.

| what | rule |
|---|---|
| several channels | their mean, sample by sample |
| two different audio | mixed, with a warning: correlation below 0.5 while both channels are louder than -50 dBFS |
| rate | 1,000 to 384,000 Hz; resampled with a windowed sinc (torchaudio) |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.config.data import AudioLimits
from mmgrpo.errors import MediaError, explain
from mmgrpo.media.arrays import AudioSamples, as_channels
from mmgrpo.media.audio_files import MAX_SECONDS_DECODED, Waveform, check_rate, check_seconds, read_audio_file
from mmgrpo.media.sources import require_file, resolve_source
from mmgrpo.types import Decoded, Media, MediaKind

RATE_HZ = 16_000
"""Sampling rate of audio where no processor says otherwise."""


SAME_SIGNAL = 0.5
"""Two channels whose correlation is lower hold different sounds."""
AUDIBLE = 10 ** (-50 / 20)
"""A channel with a lower root mean square is silence: -50 dB of full scale."""
_LARGEST_KERNEL = 20_000_000


_ARRAY_KEYS = ("array", "samples", "data")
_RATE_KEYS = ("sampling_rate", "sample_rate", "rate")


def read_audio(source: Any, *, name: str, rate: float | None, rate_hz: int, limits: AudioLimits) -> AudioSamples:
    """Decode one audio item.

    Args:
        source: A file, encoded bytes, base64, ``{"bytes", "path"}``, ``{"array", "sampling_rate"}``, a pair of array
            and rate, an array, or a decoder of ``datasets`` (torchcodec).
        name: How messages call the audio.
        rate: Sampling rate of an array that does not bring its own, in Hz.
        rate_hz: Rate of the result.
        limits: Shortest and longest length.

    Returns:
        float32 ``[samples]``, 1.0 being full scale.

    Raises:
        MediaError: Not audio, damaged, too short or too long, or an array without a rate.
    """
    longest = limits.max_seconds or MAX_SECONDS_DECODED
    wave = _wave(source, name, rate, longest)
    seconds = wave.samples.shape[1] / wave.rate
    check_seconds(seconds, longest, name=name)
    if seconds < limits.min_seconds or not seconds:
        raise MediaError(
            explain(
                "Audio is too short",
                where=name,
                expected=f"at least {limits.min_seconds:g} seconds (data.audio.min_seconds)",
                got=f"{seconds:.4f} seconds",
            )
        )
    return resample(to_mono(wave.samples, name=name), rate=wave.rate, to=rate_hz)


def _wave(source: Any, name: str, rate: float | None, longest: float) -> Waveform:
    array, own_rate = audio_array(source)
    if array is not None:
        known = check_rate(rate if own_rate is None else own_rate, name=name)
        return Waveform(samples=as_channels(array, name=name), rate=known)
    found = resolve_source(source, name=name)
    if isinstance(found, Path):
        return read_audio_file(require_file(found, name=name), name=name, max_seconds=longest)
    if isinstance(found, bytes):
        return read_audio_file(found, name=name, max_seconds=longest)
    raise MediaError(
        explain(
            "This is not audio",
            where=name,
            expected='a path, bytes, base64, or {"array", "sampling_rate"}',
            got=type(source).__name__,
        )
    )


def audio_array(source: Any) -> tuple[Any, float | None]:
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


def to_mono(samples: AudioSamples, *, name: str) -> AudioSamples:
    """Mix the channels of audio: their mean, sample by sample.

    Warns where two channels are different audio (two speakers, one on each side): the mix holds both at once.

    Args:
        samples: ``[channels, n]``.
        name: How the warning calls the audio.

    Returns:
        ``[n]``.

    Example:
        >>> to_mono(np.array([[0.0, 1.0], [0.5, 1.0]], np.float32), name="two notes").tolist()
        [0.25, 1.0]
    """
    if len(samples) == 2:
        _warn_of_two_signals(samples, name)
    return samples[0] if len(samples) == 1 else samples.mean(axis=0, dtype=np.float32)


def _warn_of_two_signals(samples: AudioSamples, name: str) -> None:
    centred = samples - samples.mean(axis=1, keepdims=True)
    loudness = np.sqrt(np.square(centred, dtype=np.float64).mean(axis=1))
    if not (loudness > AUDIBLE).all():
        return
    correlation = float((centred[0] * centred[1]).mean(dtype=np.float64) / (loudness[0] * loudness[1]))
    if correlation < SAME_SIGNAL:
        warnings.warn(
            f"{name}: the two channels hold different sounds (correlation {correlation:.2f}) and were mixed into one. "
            "To hear one of them, give it as audio of its own.",
            stacklevel=5,
        )


def resample(samples: AudioSamples, *, rate: int, to: int) -> AudioSamples:
    """Resample to another rate.

    Where the two rates have no small common measure (44,101 to 16,000 Hz), the source's is rounded to 50 Hz, below
    20 kHz to 10 Hz: a change of pitch below 0.5 %, in place of gigabytes of filter.

    Args:
        samples: ``[n]``.
        rate: The source's, in Hz.
        to: In Hz.

    Returns:
        ``ceil(n * to / rate)`` samples.

    Raises:
        MediaError: torchaudio is not installed.

    Example:
        >>> len(resample(np.zeros(441, np.float32), rate=44_100, to=16_000))
        160
    """
    if rate == to:
        return samples
    common = math.gcd(rate, to)
    if (rate // common) * (to // common) > _LARGEST_KERNEL:
        step = 50 if rate >= 20_000 else 10
        rate = round(rate / step) * step
    try:
        import torch
        from torchaudio.functional import resample as sinc
    except ImportError as error:
        raise MediaError(
            explain("Resampling needs torchaudio", got=f"{rate} Hz", fix="Run: pip install 'mmgrpo[audio]'")
        ) from error
    return sinc(torch.from_numpy(np.ascontiguousarray(samples)), rate, to).numpy()


class AudioAdapter:
    """Audio, mono and at one rate."""

    kind: MediaKind = "audio"

    def __init__(self, limits: AudioLimits | None = None, *, rate_hz: int = RATE_HZ) -> None:
        """Take ``limits`` of length and the processor's rate."""
        self._limits, self._rate = limits or AudioLimits(), rate_hz

    def reads(self, media: Media) -> bool:
        """Read every audio item."""
        return True

    def decode(self, media: Media) -> Decoded:
        """Decode one audio item."""
        name = media.name or "audio"
        samples = read_audio(media.source, name=name, rate=media.rate, rate_hz=self._rate, limits=self._limits)
        return Decoded(kind="audio", data=samples, rate=float(self._rate), name=media.name)

    def verify(self, media: Media) -> None:
        """Check one audio item; audio is short, so this decodes it."""
        self.decode(media)


def longest_audio(limits: AudioLimits, processor: Any) -> float | None:
    """Find the longest audio that reaches the model whole, in seconds; feature extractors cut without a word.

    Args:
        limits: The YAML's.
        processor: A loaded processor, or None.

    Example:
        >>> longest_audio(AudioLimits(max_seconds=10), None)
        10.0
    """
    window = getattr(getattr(processor, "feature_extractor", None), "n_samples", None)
    known = [limits.max_seconds, window and window / sampling_rate(processor)]
    return min((seconds for seconds in known if seconds), default=None)


def sampling_rate(processor: Any) -> int:
    """Find the sampling rate that a processor takes, in Hz.

    Args:
        processor: A loaded processor, or None.

    Example:
        >>> sampling_rate(None)
        16000
    """
    extractor = getattr(processor, "feature_extractor", None)
    return int(getattr(extractor, "sampling_rate", None) or RATE_HZ)
