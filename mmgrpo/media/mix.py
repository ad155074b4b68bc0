"""Sounds of any shape, type and rate to mono float32 at one rate, by rules that are written down.

| what | rule |
|---|---|
| whole numbers | int16 / 32768, int32 / 2^31, uint8 (value - 128) / 128 |
| floats | as they are; not finite, or beyond 16, refused |
| channel axis | the shorter of two axes, at most 32 channels; two equal axes are refused |
| several channels | their mean, sample by sample |
| two different sounds | mixed, with a warning: correlation below 0.5 while both channels are louder than -50 dBFS |
| rate | 1,000 to 384,000 Hz; resampled with a windowed sinc (torchaudio) |
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgrpo.errors import MediaError, explain

Samples = NDArray[np.float32]
RATES_HZ = (1_000, 384_000)
"""Smallest and largest sampling rate that is believed."""
MOST_CHANNELS = 32
SAME_SOUND = 0.5
"""Two channels whose correlation is lower hold different sounds."""
AUDIBLE = 10 ** (-50 / 20)
"""A channel with a lower root mean square is silence: -50 dB of full scale."""
_LARGEST_FLOAT = 16.0
_LARGEST_KERNEL = 20_000_000


def as_channels(array: Any, *, name: str) -> Samples:
    """Bring an array to float32 ``[channels, samples]``.

    Args:
        array: ``[n]``, ``[channels, n]`` or ``[n, channels]``; numpy, torch or a list of numbers.
        name: How messages call the sound.

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
                "An array is not a sound",
                where=name,
                expected=f"[samples], [channels, samples] or [samples, channels], at most {MOST_CHANNELS} channels",
                got=f"shape {list(np.shape(array))}",
            )
        )
    return _as_floats(values, name)


def _as_floats(values: NDArray[Any], name: str) -> Samples:
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


def to_mono(samples: Samples, *, name: str) -> Samples:
    """Mix the channels of a sound: their mean, sample by sample.

    Warns where two channels are different sounds (two speakers, one on each side): the mix holds both at once.

    Args:
        samples: ``[channels, n]``.
        name: How the warning calls the sound.

    Returns:
        ``[n]``.

    Example:
        >>> to_mono(np.array([[0.0, 1.0], [0.5, 1.0]], np.float32), name="two notes").tolist()
        [0.25, 1.0]
    """
    if len(samples) == 2:
        _warn_of_two_sounds(samples, name)
    return samples[0] if len(samples) == 1 else samples.mean(axis=0, dtype=np.float32)


def _warn_of_two_sounds(samples: Samples, name: str) -> None:
    centred = samples - samples.mean(axis=1, keepdims=True)
    loudness = np.sqrt(np.square(centred, dtype=np.float64).mean(axis=1))
    if not (loudness > AUDIBLE).all():
        return
    correlation = float((centred[0] * centred[1]).mean(dtype=np.float64) / (loudness[0] * loudness[1]))
    if correlation < SAME_SOUND:
        warnings.warn(
            f"{name}: the two channels hold different sounds (correlation {correlation:.2f}) and were mixed into one. "
            "To hear one of them, give it as a sound of its own.",
            stacklevel=5,
        )


def check_rate(rate: float | None, *, name: str) -> int:
    """Check a sampling rate.

    Args:
        rate: In Hz; None: the source brought none.
        name: How messages call the sound.

    Returns:
        The rate, to whole Hz.

    Raises:
        MediaError: There is none, or it cannot be right.
    """
    low, high = RATES_HZ
    if rate is not None and low <= rate <= high:
        return round(rate)
    what = "A sound has no sampling rate" if rate is None else "A sampling rate cannot be right"
    raise MediaError(
        explain(
            what,
            where=name,
            expected=f"{low:,} to {high:,} Hz",
            got="" if rate is None else f"{rate:g} Hz",
            fix='Give arrays as {"array": samples, "sampling_rate": hz}.' if rate is None else "",
        )
    )


def resample(samples: Samples, *, rate: int, to: int) -> Samples:
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
