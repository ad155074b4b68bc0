"""Field cases of sounds: channels, rates, and all real sound files."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from torch import from_numpy
from torchaudio.functional import resample

from mmgrpo.errors import ProcessorError
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily
from mmgrpo.types import Media, Sample
from tests.decoding import decode

DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")).absolute()
AUDIO = DATA / "audio"
pytestmark = pytest.mark.skipif(not AUDIO.is_dir(), reason="MMGRPO_FIELD_DATA names no folder of real files")


def hear(source: Any, rate: float | None = None, name: str = "a sound") -> np.ndarray:
    return decode(Media(kind="audio", source=source, rate=rate, name=name)).data


def rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


@pytest.mark.parametrize("by", ["path", "bytes", "(n, 2)", "(2, n)"])
def test_p18_stereo_is_mixed_over_its_channels_on_every_path(by: str):
    stored, rate = soundfile.read(AUDIO / "jfk.flac", dtype="float32")
    assert stored.shape == (485100, 2)
    path = AUDIO / "jfk.flac"
    sources = {"path": path, "bytes": path.read_bytes(), "(n, 2)": stored, "(2, n)": stored.T}
    heard = hear(sources[by], rate)
    assert abs(len(heard) - 176_000) <= 2
    reference = resample(from_numpy(stored.mean(axis=1)), rate, 16000).numpy()
    assert abs(rms(heard) - rms(reference)) < 0.05 * rms(reference)
    assert np.corrcoef(heard, reference[: len(heard)])[0, 1] > 0.999


def test_p19_other_rates_and_stereo_give_the_same_sentence():
    stored, _ = soundfile.read(AUDIO / "librispeech_1272-128104-0000.flac", dtype="float32")
    files = {}
    for rate, channels in ((16000, 1), (8000, 1), (44100, 2)):
        wave = resample(from_numpy(stored), 16000, rate).numpy()
        out = io.BytesIO()
        soundfile.write(out, np.stack([wave] * channels, axis=1), rate, format="WAV")
        files[rate] = hear(out.getvalue())
    assert all(abs(len(heard) - len(stored)) <= 1 for heard in files.values())
    whole = {rate: heard[: len(stored)] for rate, heard in files.items()}
    low = {rate: np.fft.irfft(np.fft.rfft(heard)[: int(3500 * 5.855)]) for rate, heard in whole.items()}
    for one in low.values():
        for other in low.values():
            assert np.corrcoef(one, other)[0, 1] > 0.9


def test_p19_two_speakers_on_two_channels_give_a_warning_and_both_are_heard():
    with pytest.warns(UserWarning, match=r"stereo\.wav: the two channels hold different sounds"):
        heard = hear(AUDIO / "stereo_diarization.wav", name="stereo.wav")
    assert len(heard) / 16000 == pytest.approx(5.0, abs=0.01)
    stored, _ = soundfile.read(AUDIO / "stereo_diarization.wav", dtype="float32")
    for channel in stored.T:
        assert np.corrcoef(heard, channel)[0, 1] > 0.3
    with pytest.warns(UserWarning, match="different sounds"):
        hear(AUDIO / "stereo_16k_multitalker_spk1_and_2.wav")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hear(AUDIO / "jfk.flac")
        hear(AUDIO / "hotwords.mp3")


def test_p19_every_real_sound_comes_out_mono_at_16_khz_with_its_length():
    rows = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "audio"]
    assert len(rows) > 60
    for row in rows:
        path = DATA / row["file"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            heard = hear(path, name=path.name)
        info = soundfile.info(str(path))
        assert heard.ndim == 1
        assert len(heard) / 16000 == pytest.approx(info.duration, abs=0.01), path.name
        assert rms(heard) > 1e-3, path.name


@pytest.mark.parametrize("family", ["qwen2_audio", "qwen2_5_omni"])
def test_p03_a_prompt_is_never_cut_inside_a_sound(family: str):
    record = family_of(family)
    assert record.tiny is not None
    model, processor = record.tiny({}, 0)
    facts = LoadedFamily(spec=record, config=model.config)
    media = tuple(Media(kind="audio", source=AUDIO / "jfk.flac", name=f"jfk {i}") for i in range(2))
    blocks = [{"type": "audio"}, {"type": "audio"}, {"type": "text", "text": "Are they the same?"}]
    sample = Sample(id="row-0", messages=({"role": "user", "content": blocks},), media=media)
    whole = PromptBuilder(processor, family=facts).build_prompt(sample)
    heard = facts.count_media_tokens(whole.token_ids)["audio"]
    assert heard == 2 * 275, "eleven seconds at twenty-five tokens a second, twice"
    with pytest.raises(ProcessorError) as caught:
        PromptBuilder(processor, family=facts, max_prompt_tokens=200).build_prompt(sample)
    told = f"prompt needs {len(whole.token_ids)} tokens, limit is 200, of which {heard} are for the 2 audio clips"
    assert told in str(caught.value)
    assert "row-0" in str(caught.value)
