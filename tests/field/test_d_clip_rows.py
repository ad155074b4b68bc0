"""Field cases of clips: animations, broken files, and all real films."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmgrpo.config.data import Data, VideoLimits
from mmgrpo.config.load import load_config
from mmgrpo.errors import ConfigError, MediaError
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.frames import VideoRules, choose_frames
from mmgrpo.types import Decoded, Media

DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")).absolute()
VIDEO = DATA / "video"
needs_files = pytest.mark.skipif(not VIDEO.is_dir(), reason="MMGRPO_FIELD_DATA names no folder of real files")


def watch(source: Any, name: str = "a clip", **limits: Any) -> Decoded:
    data = Data(video=VideoLimits(**limits))
    return Adapters(built_in(data)).decode(Media(kind="video", source=source, name=name))


@pytest.mark.parametrize("by", ["path", "bytes"])
def test_d07_an_animation_in_a_video_column_keeps_all_frames_and_their_rate(by: str, tmp_path: Path):
    frames = [Image.new("RGB", (20, 20), (i * 7, 0, 0)) for i in range(36)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=50)
    (tmp_path / "a.gif").write_bytes(out.getvalue())
    clip = watch(tmp_path / "a.gif" if by == "path" else out.getvalue(), fps=None)
    assert len(clip.data) == 36
    assert clip.rate == pytest.approx(20)
    assert [int(frame[4, 4, 0]) for frame in clip.data] == [i * 7 for i in range(36)]


@needs_files
@pytest.mark.parametrize(("name", "frames"), [("iss634.webp", 42), ("dispose_bgnd.gif", 5), ("apng_delay.png", 5)])
def test_d07_real_animations_give_every_frame(name: str, frames: int):
    assert len(watch(DATA / "odd_images" / name, fps=None).data) == frames


@needs_files
@pytest.mark.parametrize("by", ["path", "bytes"])
@pytest.mark.parametrize("case", ["corrupted.mp4", "nasa_13013.mp4 cut to 200 kB"])
def test_d16_broken_films_are_refused_by_name_within_ten_seconds(case: str, by: str, tmp_path: Path):
    path = VIDEO / case.split()[0]
    if "cut" in case:
        (tmp_path / "cut.mp4").write_bytes(path.read_bytes()[:200_000])
        path = tmp_path / "cut.mp4"
    start = time.monotonic()
    with pytest.raises(MediaError, match=path.name):
        watch(path if by == "path" else path.read_bytes(), name=path.name)
    assert time.monotonic() - start < 10


@needs_files
def test_every_real_film_loads_with_its_true_frames_or_is_refused():
    rows = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "video"]
    refused = set()
    for row in rows:
        path = DATA / row["file"]
        try:
            clip = watch(path, name=path.name, fps=None, max_frames=400)
        except MediaError as error:
            assert path.name in str(error)
            refused.add(path.name)
            continue
        facts = dict(part.split("=") for part in row["media"].split() if "=" in part)
        assert len(clip.data) == int(facts["decoded"]), "also where the header says 0 frames"
        shown = facts["avg_fps"].split("/")
        assert clip.rate == pytest.approx(float(shown[0]) / float(shown[-1] if len(shown) > 1 else 1), rel=0.01)
        assert len(clip.data) / (clip.rate or 1) == pytest.approx(float(facts["dur"].rstrip("s")), rel=0.01)
    assert refused == {"corrupted.mp4", "sine_mono_s16.wav"}, "the latter is a sound, listed among the films"


@needs_files
def test_a_film_of_variable_length_is_sampled_at_true_times():
    clip = watch(VIDEO / "nasa_13013.mp4")
    assert len(clip.data) == 26
    assert clip.times == pytest.approx([i * 13 / 26 for i in range(26)], abs=0.05)
    assert watch(VIDEO / "carphone_pristine.mp4").data.shape == (8, 144, 193, 3), "176 wide, with pixels of 128 : 117"


@needs_files
def test_full_range_and_ten_bit_films_have_the_colours_of_the_test_card():
    card = watch(VIDEO / "bt709_full_range.mp4").data[0].astype(int)
    assert card.min() < 12
    assert card.max() > 243
    assert np.ptp(watch(VIDEO / "h264_10bits.mp4").data[0].astype(int)) > 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fps", 0),
        ("fps", -1.0),
        ("max_frames", 0),
        ("max_pixels", 0),
        ("min_pixels", 700_000),
        ("max_decode_seconds", 0),
    ],
)
def test_f05_limits_of_clips_that_cannot_be_are_refused_by_key(key: str, value: float):
    with pytest.raises(ConfigError, match=key):
        load_config(None, {f"data.video.{key}": value}, base={"model": {"name": "tiny:qwen2_5_vl"}})


def test_f05_an_odd_number_of_frames_is_rounded_to_what_the_encoder_merges():
    rules = VideoRules(limits=VideoLimits(max_frames=1), frames_at_once=2)
    assert len(choose_frames([i / 10 for i in range(50)], 5.0, rules).targets) == 2
    rules = VideoRules(limits=VideoLimits(max_frames=7), frames_at_once=2)
    assert len(choose_frames([i / 10 for i in range(50)], 5.0, rules).targets) == 6
