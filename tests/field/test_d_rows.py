"""Field cases of data loading: real odd files, on every path by which a row can name them."""

from __future__ import annotations

import base64
import io
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.opening import check_media
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import MediaError
from mmgrpo.types import Media, Prompt, Sample
from tests.conftest import loader_of
from tests.decoding import decode, verify

DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")).absolute()
ODD = DATA / "odd_images"
needs_files = pytest.mark.skipif(not ODD.is_dir(), reason="MMGRPO_FIELD_DATA names no folder of real files")

PATHS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text path": str,
    "bytes": lambda path: {"bytes": path.read_bytes(), "path": None},
    "pillow": lambda path: Image.open(io.BytesIO(path.read_bytes())),
    "data address": lambda path: "data:image/x;base64," + base64.b64encode(path.read_bytes()).decode(),
    "base64": lambda path: base64.b64encode(path.read_bytes()).decode(),
}
every_path = pytest.mark.parametrize("by", PATHS)


def read(path: Path, by: str = "path", **options: Any) -> Image.Image:
    return decode(Media(kind="image", source=PATHS[by](path), name=path.name), **options).data


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=float)


def samples_of(rows: list[dict], folder: Path, **keys: Any) -> Samples:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    opened = open_rows(Files(path="train.jsonl", **keys), base=folder)
    return Samples(opened, columns=Columns(), template=Template())


def encode(sample: Sample, draw_index: int) -> Prompt:
    media = tuple(decode(m) for m in sample.media)
    return Prompt(
        sample=sample, text="", token_ids=torch.tensor([0]), model_inputs={}, media=media, draw_index=draw_index
    )


# D01


@needs_files
@every_path
def test_d01_phone_photos_stand_upright_on_every_path(by: str):
    first = pixels(read(ODD / "exif_Landscape_1.jpg", by))
    for number in (1, 3, 6, 8):
        image = read(ODD / f"exif_Landscape_{number}.jpg", by)
        assert image.size == (1800, 1200)
        # The number of the orientation is painted in the middle; everything else is the same photo.
        assert np.abs(pixels(image) - first).mean() < 0.02 * 255
    portrait = [read(ODD / f"exif_Portrait_{number}.jpg", by) for number in (1, 6)]
    assert {image.size for image in portrait} == {(1200, 1800)}


@needs_files
@every_path
def test_d01_all_eight_orientations_of_one_photo_are_the_same_picture(by: str):
    upright = pixels(read(ODD / "hopper.jpg", by))
    for number in range(2, 9):
        turned = pixels(read(ODD / f"hopper_orientation_{number}.jpg", by))
        assert turned.shape == upright.shape
        assert np.abs(turned - upright).mean() < 0.05 * 255


@needs_files
def test_d01_every_path_gives_the_very_same_pixels():
    path = ODD / "exif_Landscape_6.jpg"
    assert len({read(path, by).tobytes() for by in PATHS}) == 1


# D02


@needs_files
@every_path
def test_d02_three_formats_turn_once_and_never_twice(by: str):
    avif = read(ODD / "avif_rot1mir0.avif", by)
    webp = read(ODD / "hopper_orientation_6.webp", by)
    png = read(ODD / "exif_imagemagick_orientation.png", by)
    assert avif.size == (640, 427)
    assert np.abs(pixels(webp) - pixels(read(ODD / "hopper.jpg"))).mean() < 0.06 * 255
    with Image.open(ODD / "exif_imagemagick_orientation.png") as stored:
        stored.load()
        assert stored.getexif().get(0x0112) not in (None, 1)
        assert np.abs(pixels(png) - pixels(stored.convert("RGB"))).mean() > 1, "it had to be turned"
    for image in (avif, webp, png):
        saved = io.BytesIO()
        image.save(saved, "PNG")
        again = decode(Media(kind="image", source=saved.getvalue(), name="saved")).data
        assert again.tobytes() == image.tobytes()


@needs_files
def test_d02_sky_is_above_grass_in_the_turned_avif():
    image = pixels(read(ODD / "avif_rot1mir0.avif"))
    top, bottom = image[:60, :, 2].mean(), image[-60:, :, 2].mean()
    assert top > bottom + 40, "the sky is blue and above"


# D03


@pytest.fixture
def six_rows(tmp_path: Path) -> Samples:
    rows = []
    for i in range(6):
        path = {3: ODD / "truncated_jpeg.jpg", 5: ODD / "broken.png"}.get(i, tmp_path / f"{i}.png")
        if i not in (3, 5):
            Image.new("RGB", (30, 30), (i * 20, 0, 0)).save(path)
        rows.append({"image": str(path), "problem": "?", "solution": str(i * 20)})
    return samples_of(rows, tmp_path)


@needs_files
def test_d03_error_names_row_and_file_before_training(six_rows: Samples):
    with pytest.raises(MediaError) as caught:
        check_media(six_rows, verify, on_bad_media="error")
    for part in ("truncated_jpeg.jpg", "broken.png", "train.jsonl:4", "train.jsonl:6", "2 of 6 rows"):
        assert part in str(caught.value)


@needs_files
def test_d03_skip_leaves_the_others_intact_and_in_order(six_rows: Samples):
    with pytest.warns(UserWarning, match="left out") as caught:
        report = check_media(six_rows, verify, on_bad_media="skip")
    assert len(caught) == 1, "one line for all"
    assert "2 of 6 rows" in str(caught[-1].message)
    feed = loader_of(six_rows, encode, shuffle=False, skip_errors=(MediaError,), skip_rows=report.left_out)
    prompts = feed.take(4)
    assert [p.sample.id for p in prompts] == ["0", "1", "2", "4"]
    for prompt in prompts:
        assert prompt.media[0].data.getpixel((5, 5)) == (int(prompt.sample.answer), 0, 0), "never a black picture"


# D04


@every_path
def test_d04_a_sixteen_bit_ramp_keeps_its_levels(by: str, tmp_path: Path):
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    made = np.asarray(read(tmp_path / "ramp.png", by))
    assert made.shape == (64, 64, 3)
    assert (made.min(), made.max()) == (0, 255)
    assert len(np.unique(made)) > 200
    assert abs(made.mean() - 127) < 3


@needs_files
@every_path
def test_d04_real_sixteen_bit_files_are_scaled_by_65535_and_not_stretched(by: str):
    gray = pixels(read(ODD / "hopper.jpg").convert("L").convert("RGB"))
    assert np.abs(pixels(read(ODD / "hopper_16bit.pgm", by)) - gray).mean() < 0.05 * 255
    narrow = np.asarray(read(ODD / "16bit.cropped.tif", by))
    assert (narrow.min(), narrow.max()) == (round(291 / 257), round(694 / 257))


# D05


@needs_files
@every_path
def test_d05_cmyk_becomes_rgb_and_is_not_inverted(by: str):
    made = np.asarray(read(ODD / "pil_sample_cmyk.jpg", by))
    assert made.shape == (100, 100, 3)
    assert made.dtype == np.uint8
    with Image.open(ODD / "pil_sample_cmyk.jpg") as stored:
        expected = pixels(stored.convert("RGB"))
    assert abs(made.mean() - expected.mean()) <= 0.1 * expected.mean()


# D06


@needs_files
@every_path
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("photos/coins.png", "L"),
        ("odd_images/tga_common_200x32_la.png", "LA"),
        ("clevr/train/CLEVR_train_000000.png", "RGBA"),
        ("odd_images/skimage_green_palette.png", "P"),
        ("odd_images/transparent.gif", "P"),
        ("odd_images/hopper_bw_500.png", "1"),
        ("odd_images/hopper.Lab.tif", "LAB"),
    ],
)
def test_d06_every_mode_gives_three_channels(name: str, mode: str, by: str):
    with Image.open(DATA / name) as stored:
        assert stored.mode == mode
        size = stored.size
    made = np.asarray(read(DATA / name, by))
    assert made.shape == (size[1], size[0], 3)
    assert len(np.unique(made)) > 1


@needs_files
@every_path
@pytest.mark.parametrize("name", ["transparent.gif", "transparent.png", "transparent.webp"])
def test_d06_transparent_areas_show_the_background(name: str, by: str):
    for background in ((255, 255, 255), (10, 200, 30)):
        assert read(ODD / name, by, background=background).getpixel((1, 1)) == background


@needs_files
def test_d06_lab_colours_are_those_of_the_same_photo():
    assert np.abs(pixels(read(ODD / "hopper.Lab.tif")) - pixels(read(ODD / "hopper.jpg"))).mean() < 0.03 * 255


# D07 (pictures)


@needs_files
@every_path
@pytest.mark.parametrize(("name", "frames"), [("iss634.webp", 42), ("dispose_bgnd.gif", 5), ("apng_delay.png", 5)])
def test_d07_animations_give_their_first_frame_and_one_warning(name: str, frames: int, by: str):
    with pytest.warns(UserWarning, match=f"{frames} frames") as caught:
        made = read(ODD / name, by)
    assert len(caught) == 1
    with Image.open(ODD / name) as stored:
        stored.seek(0)
        assert made.size == stored.size


def test_d07_a_built_gif_of_36_frames_gives_its_first():
    frames = [Image.new("RGB", (20, 20), (i * 7, 0, 0)) for i in range(36)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=50)
    with pytest.warns(UserWarning, match="36 frames"):
        made = decode(Media(kind="image", source=out.getvalue(), name="clip")).data
    assert made.getpixel((3, 3)) == (0, 0, 0)


# D10


def test_d10_pictures_are_found_beside_the_data_file_from_any_folder(tmp_path: Path, monkeypatch: Any):
    a, b, c = (tmp_path / name for name in ("dirA", "dirB", "dirC"))
    for folder, color in ((a, (1, 0, 0)), (c, (3, 0, 0))):
        (folder / "img").mkdir(parents=True)
        Image.new("RGB", (8, 8), color).save(folder / "img/x.png")
    b.mkdir()
    monkeypatch.chdir(b)
    row = {"image": "img/x.png", "problem": "?", "solution": "1"}
    assert encode(samples_of([row], a)[0], 0).media[0].data.getpixel((0, 0)) == (1, 0, 0)
    rooted = samples_of([row], a, media_root=str(c))
    assert encode(rooted[0], 0).media[0].data.getpixel((0, 0)) == (3, 0, 0)


def test_d10_a_missing_picture_is_found_before_training_with_its_resolved_path(tmp_path: Path):
    samples = samples_of([{"image": "img/no.png", "problem": "?", "solution": "1"}], tmp_path)
    with pytest.raises(MediaError, match="does not exist") as caught:
        check_media(samples, verify)
    assert str(tmp_path / "img/no.png") in str(caught.value)
    assert "train.jsonl:1" in str(caught.value)


# D11


@pytest.mark.parametrize("escape", ["../../../../etc/hostname", "/etc/hostname", "file:///etc/hostname"])
def test_d11_a_row_cannot_name_a_file_outside_the_media_root(escape: str, tmp_path: Path):
    rows = [{"image": None, "problem": "?", "solution": "1"}, {"image": escape, "problem": "?", "solution": "1"}]
    samples = samples_of(rows, tmp_path, media_root=str(tmp_path))
    assert samples[0].media == ()
    with pytest.raises(MediaError) as caught:
        samples[1]
    assert "train.jsonl:2" in str(caught.value)
    with pytest.raises(MediaError, match=r"train\.jsonl:2"):
        check_media(samples, verify)


def test_d11_a_relative_path_cannot_climb_even_without_a_root(tmp_path: Path):
    samples = samples_of([{"image": "../x.png", "problem": "?", "solution": "1"}], tmp_path)
    with pytest.raises(MediaError, match="climbs out"):
        samples[0]


# D12


@pytest.mark.parametrize("kind", ["jsonl", "json", "python", "csv"])
def test_d12_a_column_may_start_or_end_with_nulls(kind: str, tmp_path: Path):
    Image.new("RGB", (8, 8), (9, 0, 0)).save(tmp_path / "x.png")
    without = [{"image": None, "problem": f"text {i}", "solution": str(i)} for i in range(3)]
    pictured = {"image": "x.png", "problem": "picture", "solution": "9"}

    def load(rows: list[dict]) -> list[Sample]:
        if kind == "python":
            opened = rows_from_python(rows, base=tmp_path)
        else:
            path = tmp_path / f"rows.{kind}"
            text = {
                "jsonl": "\n".join(map(json.dumps, rows)),
                "json": json.dumps(rows),
                "csv": "\n".join(
                    ["image,problem,solution", *(",".join(v or "" for v in row.values()) for row in rows)]
                ),
            }[kind]
            path.write_text(text, encoding="utf-8")
            opened = open_rows(Files(path=path.name), base=tmp_path)
        return list(Samples(opened, columns=Columns(), template=Template()))

    def content(samples: list[Sample]) -> dict[str, Any]:
        return {s.answer: (s.messages, [m.source for m in s.media], dict(s.extras)) for s in samples}

    null_first, null_last = load([*without, pictured]), load([pictured, *without])
    assert content(null_first) == content(null_last)
    assert [len(s.media) for s in null_first] == [0, 0, 0, 1]
    assert [len(s.media) for s in null_last] == [1, 0, 0, 0]


# Faults without a report


@needs_files
def test_broken_exif_loads_with_or_without_a_warning_but_loads():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read(ODD / "hopper_bad_exif.jpg").size == (500, 500)
        assert read(ODD / "invalid-exif.jpg").size == (200, 200)


@needs_files
def test_five_thousand_rows_leave_no_file_open(tmp_path: Path):
    rows = [{"image": str(ODD / "tga_common_1x1_l.png"), "problem": "?", "solution": "1"}] * 5000
    samples = samples_of(rows, tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    kept = [encode(samples[i], i) for i in range(0, 5000, 10)]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert len(kept) == 500


@needs_files
@every_path
def test_p20_a_format_reads_alike_by_every_path(by: str):
    for name in ("transparent.webp", "avif_hopper.avif", "hopper.ico", "hopper.bmp", "sugarshack.mpo"):
        assert read(ODD / name, by).tobytes() == read(ODD / name).tobytes()
    with pytest.warns(UserWarning, match="3 frames"):
        assert read(ODD / "multipage.tiff", by).size == (10, 10)


@needs_files
def test_every_odd_file_is_read_or_refused_by_name():
    refused = set()
    for path in sorted(ODD.iterdir()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert read(path).mode == "RGB"
            except MediaError as error:
                assert path.name in str(error)
                refused.add(path.name)
    assert refused == {"broken.png", "broken_data_stream.png", "truncated_end_chunk.png", "truncated_jpeg.jpg"}
