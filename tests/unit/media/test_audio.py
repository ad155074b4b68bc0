"""A sound is the same samples however a row names it; what cannot be read whole is refused."""

from __future__ import annotations

import base64
import io
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
import torch

from mmgrpo.config.data import AudioLimits
from mmgrpo.errors import MediaError
from mmgrpo.media.adapters import Adapters
from mmgrpo.media.arrays import as_channels
from mmgrpo.media.audio import AudioAdapter, longest_audio, resample, to_mono
from mmgrpo.media.audio_files import check_rate
from mmgrpo.types import Media


def tone(seconds: float = 0.5, rate: int = 16000, hz: float = 440.0, loud: float = 0.4) -> np.ndarray:
    return (loud * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encode(samples: np.ndarray, rate: int = 16000, form: str = "wav") -> bytes:
    """Write ``[n]`` or ``[n, channels]`` as a file."""
    out = io.BytesIO()
    if form in ("m4a", "aac"):
        name, container = "aac", {"m4a": "mp4", "aac": "adts"}[form]
        with av.open(out, "w", format=container) as file:
            stream = file.add_stream(name, rate=rate, layout="mono")
            for start in range(0, len(samples), 1024):
                frame = av.AudioFrame.from_ndarray(samples[None, start : start + 1024], format="fltp", layout="mono")
                frame.rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
        return out.getvalue()
    kind, subtype = {"opus": ("OGG", "OPUS"), "ogg": ("OGG", "VORBIS")}.get(form, (form.upper(), None))
    soundfile.write(out, samples, rate, format=kind, subtype=subtype)
    return out.getvalue()


def read(source: Any, *, rate: float | None = None, rate_hz: int = 16000, **limits: Any) -> np.ndarray:
    adapter = AudioAdapter(AudioLimits(**limits), rate_hz=rate_hz)
    decoded = Adapters([adapter]).decode(Media(kind="audio", source=source, rate=rate, name="the sound"))
    assert decoded.rate == rate_hz
    assert decoded.data.dtype == np.float32
    assert decoded.data.ndim == 1
    return decoded.data


def pitch(samples: np.ndarray, rate: int = 16000) -> float:
    middle = samples[len(samples) // 8 : -len(samples) // 8]
    return float(np.abs(np.fft.rfft(middle * np.hanning(len(middle)))).argmax() * rate / len(middle))


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"])
def test_every_format_gives_the_same_tone(form: str):
    heard = read(encode(tone(1.0), form=form))
    assert abs(len(heard) - 16000) <= 2200, "lossy formats may add silence at the ends"
    assert abs(pitch(heard) - 440) < 5
    assert 0.2 < np.abs(heard[4000:12000]).max() < 0.6


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_any_rate_comes_out_at_the_processors_rate(rate: int):
    heard = read(encode(tone(1.0, rate=rate), rate))
    assert abs(len(heard) - 16000) <= 1
    assert abs(pitch(heard) - 440) < 3
    assert abs(np.sqrt(np.mean(heard**2)) - 0.4 / np.sqrt(2)) < 0.01
    assert len(read(encode(tone(1.0, rate=rate), rate), rate_hz=24000)) == pytest.approx(24000, abs=1)


def test_every_path_gives_the_very_same_samples(tmp_path: Path):
    data = encode(tone(), form="flac")
    (tmp_path / "a.flac").write_bytes(data)
    expected = read(data)
    text = base64.b64encode(data).decode()
    for source in (
        tmp_path / "a.flac",
        str(tmp_path / "a.flac"),
        {"path": str(tmp_path / "a.flac"), "bytes": None},
        {"bytes": data, "path": "gone.flac"},
        text,
        "data:audio/flac;base64," + text,
    ):
        assert np.array_equal(read(source), expected)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16, np.int32, np.uint8])
def test_arrays_of_every_type_are_scaled_to_one(kind: type):
    wave = tone(loud=0.5)
    full = {np.int16: 2**15, np.int32: 2**31, np.uint8: 128}.get(kind, 1)
    stored = (wave.astype(np.float64) * full + (128 if kind is np.uint8 else 0)).astype(kind)
    assert np.abs(read(stored, rate=16000) - wave).max() < 0.01
    assert np.abs(read({"array": stored, "sampling_rate": 16000}) - wave).max() < 0.01
    assert np.abs(read((stored, 16000)) - wave).max() < 0.01
    if kind is not np.uint8:
        assert np.abs(read(torch.from_numpy(stored), rate=16000) - wave).max() < 0.01


def test_an_array_needs_a_rate():
    with pytest.raises(MediaError, match=r"no sampling rate[\s\S]*sampling_rate"):
        read(tone())
    for rate in (3.0, 1e9, float("nan"), -16000):
        with pytest.raises(MediaError, match="sampling rate"):
            read(tone(), rate=rate)


@pytest.mark.parametrize("shape", [(2, 3000), (3000, 2), (1, 3000), (3000, 1), (3000,), (6, 3000), (3000, 6)])
def test_either_axis_may_be_the_channels(shape: tuple[int, ...]):
    channels = min(shape) if len(shape) == 2 else 1
    wave = np.tile(tone(3000 / 16000), (channels, 1))
    stored = wave[0] if len(shape) == 1 else wave if shape[0] == channels else wave.T
    assert stored.shape == shape
    assert np.allclose(read(stored, rate=16000), tone(3000 / 16000), atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 3), (2, 40, 40), (40, 50), ()])
def test_arrays_without_a_channel_axis_are_refused(shape: tuple[int, ...]):
    with pytest.raises(MediaError, match="not audio"):
        as_channels(np.zeros(shape), name="x")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 32767.0])
def test_values_out_of_range_are_refused(bad: float):
    wave = tone()
    wave[7] = bad
    with pytest.raises(MediaError, match="outside their range"):
        read(wave, rate=16000)


def test_the_mix_is_the_mean_of_the_channels():
    left, right = tone(hz=300), tone(hz=300) * 0.5
    assert np.allclose(read(np.stack([left, right]), rate=16000), (left + right) / 2, atol=1e-6)
    assert np.allclose(read(encode(np.stack([left, right], 1))), (left + right) / 2, atol=1e-3)


def test_two_different_sounds_are_warned_of_and_one_is_not():
    rng = np.random.default_rng(0)
    left, right = rng.normal(0, 0.1, (2, 8000)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"the sound: the two channels hold different sounds"):
        read(np.stack([left, right]), rate=16000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_mono(np.stack([left, left * 0.3 + right * 0.02]), name="one source, off centre")
        to_mono(np.stack([left, right * 0.001]), name="one side silent")
        to_mono(np.stack([left + 0.5, left - 0.5]), name="an offset")


def test_long_sounds_are_refused_and_never_cut(tmp_path: Path):
    assert len(read(encode(tone(2.0)), max_seconds=2.0)) == 32000
    for form in ("wav", "mp3", "m4a"):
        with pytest.raises(MediaError, match=r"too long[\s\S]*at most 1.5 seconds"):
            read(encode(tone(2.0), form=form), max_seconds=1.5)
    with pytest.raises(MediaError, match="too long"):
        read(tone(2.0), rate=16000, max_seconds=1.5)
    with pytest.raises(MediaError, match="too short"):
        read(tone(0.01), rate=16000)
    for nothing in (np.zeros((0,), np.float32), np.zeros((1, 0), np.float32)):
        with pytest.raises(MediaError, match=r"too short|not audio"):
            read(nothing, rate=16000, min_seconds=0)


def test_the_processors_window_limits_what_is_taken():
    class Extractor:
        n_samples, sampling_rate = 480000, 16000

    class Processor:
        feature_extractor = Extractor()

    assert longest_audio(AudioLimits(), Processor()) == 30
    assert longest_audio(AudioLimits(max_seconds=45), Processor()) == 30
    assert longest_audio(AudioLimits(max_seconds=5), Processor()) == 5
    assert longest_audio(AudioLimits(), None) is None


def test_cut_and_foreign_files_are_refused_by_name(tmp_path: Path):
    for form in ("wav", "flac", "m4a"):
        data = encode(tone(2.0), form=form)
        with pytest.raises(MediaError, match="the sound"):
            read(data[: len(data) // 2])
    for junk in (b"", b"RIFF", b"\x00" * 5000, b"<html>" * 50):
        with pytest.raises(MediaError, match="the sound"):
            read(junk)
    with pytest.raises(MediaError, match="does not exist"):
        read(tmp_path / "gone.wav")
    with pytest.raises(MediaError, match="not audio"):
        read(5)


def test_a_wav_that_was_written_as_a_stream_is_whole():
    data = bytearray(encode(tone()))
    at = data.index(b"data") + 4
    data[at : at + 4] = b"\xff\xff\xff\xff"
    assert len(read(bytes(data))) == 8000


def test_strange_rates_are_rounded_before_they_fill_the_memory():
    for rate in (44101, 7919, 383987):
        heard = resample(tone(1.0, rate=rate), rate=rate, to=16000)
        assert abs(len(heard) / 16000 - 1.0) < 0.005
    assert check_rate(44100.4, name="x") == 44100


def test_the_clips_sound_is_read_from_the_clip(make_clip: Any):
    heard = read(make_clip(sound=tone(1.0, hz=880)))
    assert abs(pitch(heard) - 880) < 8
    with pytest.raises(MediaError, match="holds no audio"):
        read(make_clip())
