"""A clip keeps its true frame times; frames are chosen, sized and turned by the written rules."""

from __future__ import annotations

import base64
import io
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.config.data import VideoLimits
from mmgrpo.errors import MediaError
from mmgrpo.media.adapters import Adapters
from mmgrpo.media.frames import VideoRules, choose_frames, frame_size, shown_at
from mmgrpo.media.video import VideoAdapter
from mmgrpo.types import Decoded, Media


def read(source: Any, *, rate: float | None = None, group: int = 1, factor: int = 1, **limits: Any) -> Decoded:
    rules = VideoRules(limits=VideoLimits(**limits), frames_at_once=group, side_factor=factor)
    clip = Adapters([VideoAdapter(rules)]).decode(Media(kind="video", source=source, rate=rate, name="the clip"))
    assert clip.data.dtype == np.uint8
    assert clip.data.ndim == 4
    assert clip.data.shape[-1] == 3
    assert len(clip.times) == len(clip.data)
    assert list(clip.times) == sorted(clip.times)
    return clip


def brightness(clip: Decoded) -> list[int]:
    return [round(frame.mean()) for frame in clip.data.astype(float)]


def animation(count: int = 36, milliseconds: int | Sequence[int] = 50, form: str = "GIF") -> bytes:
    frames = [Image.new("RGB", (20, 12), (i * 7, 0, 0)) for i in range(count)]
    out = io.BytesIO()
    more = {"lossless": True} if form == "WEBP" else {}
    frames[0].save(out, form, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0, **more)
    return out.getvalue()


@pytest.mark.parametrize("form", ["mp4", "matroska", "webm", "avi", "mov"])
def test_every_format_gives_the_same_frames(form: str, make_clip: Any):
    clip = read(make_clip(form=form, fps=10), fps=None)
    assert clip.data.shape == (20, 48, 64, 3)
    assert clip.rate == pytest.approx(10, rel=0.01)
    assert clip.times == pytest.approx([i / 10 for i in range(20)], abs=0.002)
    expected = [20 + 200 * i // 19 for i in range(20)]
    assert np.abs(np.array(brightness(clip)) - expected).max() <= 8


def test_every_path_gives_the_very_same_frames(make_clip: Any, tmp_path: Path):
    data = make_clip()
    (tmp_path / "a b.mp4").write_bytes(data)
    expected = read(data).data
    text = base64.b64encode(data).decode()
    for source in (
        tmp_path / "a b.mp4",
        str(tmp_path / "a b.mp4"),
        {"path": str(tmp_path / "a b.mp4"), "bytes": None},
        {"bytes": data, "path": None},
        text,
        "data:video/mp4;base64," + text,
    ):
        assert np.array_equal(read(source).data, expected)


def test_fps_spreads_frames_evenly_over_the_clip(make_clip: Any):
    clip = read(make_clip(count=20, fps=10), fps=2.0)
    assert len(clip.data) == 4
    assert clip.rate == pytest.approx(2.0)
    assert clip.times == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert read(make_clip(count=20, fps=10), fps=5.0).times == pytest.approx([i / 5 for i in range(10)])
    assert len(read(make_clip(count=20, fps=10), fps=25.0).data) == 20, "no frame is invented"
    assert len(read(make_clip(count=20, fps=10), fps=5.0, max_frames=3).data) == 3
    assert read(make_clip(count=20, fps=10), fps=5.0, max_frames=4).rate == pytest.approx(2.0)


def test_variable_rate_keeps_the_times_of_the_file(make_clip: Any):
    times = [0.0, 0.1, 0.2, 0.3, 2.0, 2.1, 3.5, 3.6]
    data = make_clip(count=8, times=times, form="matroska")
    whole = read(data, fps=None)
    assert whole.times == pytest.approx(times, abs=0.002)
    sampled = read(data, fps=1.0)
    assert sampled.times == pytest.approx([0.0, 0.3, 2.1], abs=0.002), "what a player shows at 0, 1.2 and 2.5 s"


def test_counts_are_multiples_of_what_the_encoder_merges(make_clip: Any):
    data = make_clip(count=7, fps=10)
    whole = read(data, fps=None, group=2)
    assert len(whole.data) == 8
    assert np.array_equal(whole.data[-1], whole.data[-2])
    assert whole.rate == pytest.approx(10)
    assert whole.times[-1] == pytest.approx(0.7)
    assert len(read(data, fps=4.5, group=2).data) == 2
    assert len(read(data, fps=0.1, group=2).data) == 2
    assert len(read(data, fps=None, max_frames=1, group=2).data) == 2
    assert len(read(make_clip(count=1), group=2).data) == 2


def test_choosing_twice_changes_nothing(make_clip: Any):
    for limits in ({"fps": 2.0}, {"fps": None}, {"fps": 5.0, "max_frames": 5}, {"fps": 3.3}, {"fps": 100.0}):
        for count in (1, 2, 7, 20):
            once = read(make_clip(count=count), group=2, factor=28, max_pixels=2000, **limits)
            again = read(once.data, rate=once.rate, group=2, factor=28, max_pixels=2000, **limits)
            assert np.array_equal(once.data, again.data)
            assert again.rate == pytest.approx(once.rate)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_animations_keep_their_frames_and_times(form: str):
    clip = read(animation(form=form), fps=None)
    assert clip.data.shape == (36, 12, 20, 3)
    assert clip.rate == pytest.approx(20)
    assert clip.times == pytest.approx([i * 0.05 for i in range(36)])
    assert [int(frame[3, 3, 0]) for frame in clip.data] == [i * 7 for i in range(36)]
    assert read(animation(4, [100, 900, 500, 500], form=form), fps=2.0).times == pytest.approx([0.0, 0.1, 1.0, 1.5])
    assert read(animation(2, 0), fps=None).rate == pytest.approx(10), (
        "frames that do not say stand a tenth of a second"
    )


@pytest.mark.parametrize("make", [np.asarray, Image.fromarray, lambda a: torch.from_numpy(a)])
def test_lists_of_frames_are_clips(make: Any, tmp_path: Path):
    arrays = [np.full((12, 20, 3), i * 10, np.uint8) for i in range(8)]
    frames = [make(array) for array in arrays]
    assert brightness(read(frames)) == [i * 10 for i in range(8)]
    assert read(frames).rate == 2.0, "frames without a rate were chosen already"
    assert read(frames, rate=4.0).times == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert read({"frames": frames, "fps": 8.0}).times == pytest.approx([0.0, 0.5])
    for i, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    assert np.array_equal(read([str(tmp_path / f"{i}.png") for i in range(8)]).data, read(frames).data)


@pytest.mark.parametrize("layout", ["THWC", "TCHW", "THW"])
@pytest.mark.parametrize("kind", ["uint8", "float", "torch"])
def test_arrays_of_every_layout_are_clips(layout: str, kind: str):
    values = np.zeros((6, 12, 20, 3), np.uint8) + np.arange(0, 240, 40, dtype=np.uint8)[:, None, None, None]
    array = {"THWC": values, "TCHW": values.transpose(0, 3, 1, 2), "THW": values[..., 0]}[layout]
    array = array / np.float32(255) if kind == "float" else array
    clip = read(torch.from_numpy(array.copy()) if kind == "torch" else array, rate=2.0)
    assert clip.data.shape == (6, 12, 20, 3)
    assert brightness(clip) == [0, 40, 80, 120, 160, 200]


@pytest.mark.parametrize("bad", [np.zeros((4, 5)), np.zeros((3, 4, 5, 7, 3)), [], 7, np.zeros((0, 4, 5, 3)), [3]])
def test_other_things_are_no_clips(bad: Any):
    with pytest.raises(MediaError, match="the clip"):
        read(bad)


def test_frames_of_different_sizes_are_refused():
    with pytest.raises(MediaError, match="the clip, frame 1"):
        read([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)])


@pytest.mark.parametrize("size", [(360, 640), (640, 360), (90, 2000), (30, 30), (1000, 1000)])
@pytest.mark.parametrize("limits", [{"max_pixels": 50_000}, {"max_total_pixels": 400_000}, {"min_pixels": 60_000}])
def test_sizes_keep_to_their_limits(size: tuple[int, int], limits: dict[str, int]):
    rules = VideoRules(limits=VideoLimits(**limits), side_factor=28)
    high, wide = frame_size(*size, 8, rules)
    cap = limits.get("max_pixels", limits.get("max_total_pixels", 8 * 602_112) // 8)
    rounded = max(28, round(size[0] / 28) * 28) * max(28, round(size[1] / 28) * 28)
    if rounded > cap or rounded < limits.get("min_pixels", 0):
        assert (high % 28, wide % 28) == (0, 0)
        assert high * wide <= cap
    else:
        assert (high, wide) == size
    assert high * wide >= min(limits.get("min_pixels", 0), 602_112)


def test_frames_come_out_at_the_limited_size(make_clip: Any):
    data = make_clip(size=(360, 640), count=4)
    for source in (data, animation(4), [np.zeros((360, 640, 3), np.uint8)] * 4, np.zeros((4, 360, 640, 3), np.uint8)):
        high, wide = read(source, max_pixels=50_000, factor=28, fps=None).data.shape[1:3]
        assert high * wide <= 50_000
        assert (high, wide) in ((12, 20), (140, 280), (168, 280), (140, 252))


def test_phone_clips_are_turned_upright(make_clip: Any):
    half = np.zeros((48, 64, 3), np.uint8)
    half[:, :32] = 250  # bright on the left
    plain = read(make_clip([half] * 4))
    assert plain.data[0, :, :28].mean() > 200 > 50 > plain.data[0, :, 36:].mean()
    turned = read(_rotated(make_clip([half] * 4), quarter=1))
    assert turned.data.shape[1:3] == (64, 48)
    assert turned.data[0, :28].mean() > 200, "turned clockwise by a quarter, the left side is on top"
    assert turned.data[0, 36:].mean() < 50
    upside = read(_rotated(make_clip([half] * 4), quarter=2))
    assert upside.data[0, :, 36:].mean() > 200


def _rotated(data: bytes, quarter: int) -> bytes:
    """Write the display matrix that phones write: turn clockwise by so many quarters."""
    sine, cosine = {1: (1, 0), 2: (0, -1)}[quarter]
    one = 1 << 16
    matrix = struct.pack(">9i", cosine * one, sine * one, 0, -sine * one, cosine * one, 0, 0, 0, 1 << 30)
    at = data.index(b"tkhd") + 4 + 40
    return data[:at] + matrix + data[at + 36 :]


def test_colours_are_those_that_were_filmed(make_clip: Any):
    frame = np.full((48, 64, 3), (200, 30, 60), np.uint8)
    for form in ("mp4", "webm", "avi"):
        assert np.abs(read(make_clip([frame] * 4, form=form)).data[0].mean((0, 1)) - (200, 30, 60)).max() < 8


def test_far_frames_are_reached_by_seeking(make_clip: Any):
    data = make_clip(count=400, fps=10, size=(16, 16))
    fast, slow = read(data, fps=0.2, max_frames=8), read(data, fps=None, max_frames=400)
    assert fast.times == pytest.approx([i * 5.0 for i in range(8)])
    for frame, moment in zip(fast.data, fast.times, strict=True):
        assert np.abs(frame.astype(int) - slow.data[round(moment * 10)]).mean() < 2


@pytest.mark.parametrize(
    ("form", "cut"),
    [("mp4", 0.2), ("mp4", 0.5), ("mp4", 0.9), ("matroska", 0.2), ("matroska", 0.5), ("webm", 0.5), ("avi", 0.2)],
)
def test_cut_files_are_refused_soon(form: str, cut: float, make_clip: Any):
    noise = np.random.default_rng(0).integers(0, 255, (60, 48, 64, 3), dtype=np.uint8)
    data = make_clip(list(noise), form=form, fps=5)
    start = time.monotonic()
    with pytest.raises(MediaError, match="the clip"):
        read(data[: int(len(data) * cut)])
    assert time.monotonic() - start < 10


def test_foreign_files_are_refused_by_name(tmp_path: Path, make_clip: Any):
    for junk in (b"", b"GIF89a", b"\x00" * 999, b"\x89PNG\r\n\x1a\n", make_clip()[:100]):
        with pytest.raises(MediaError, match="the clip"):
            read(junk)
    with pytest.raises(MediaError, match="does not exist"):
        read(tmp_path / "gone.mp4")
    with pytest.raises(MediaError, match="http"):
        read("http://example.com/a.mp4")


def test_a_clip_that_takes_too_long_is_refused(make_clip: Any):
    for source in (make_clip(count=200), animation(200), [np.zeros((9, 9, 3), np.uint8)] * 50):
        with pytest.raises(MediaError, match="too long to read"):
            read(source, max_decode_seconds=1e-9)


def test_frames_too_large_or_too_narrow_are_refused_before_decoding():
    with pytest.raises(MediaError, match="1 : 200"):
        read(np.zeros((2, 3, 900, 3), np.uint8))


def test_every_frame_where_as_many_are_wanted():
    rules = VideoRules(limits=VideoLimits(fps=4.0))
    assert choose_frames([0.0, 0.25, 0.5, 0.75], 1.0, rules).targets == (0.0, 0.25, 0.5, 0.75)
    assert shown_at([0.0, 0.25], [0.25 - 1e-9]) == [1]
