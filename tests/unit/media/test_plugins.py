"""Adapters from outside: loaded by name, asked first, and held to the contract. The lidar example is one."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmgrpo
from mmgrpo.config.data import Columns, Data, MediaAdapter, Template
from mmgrpo.config.load import load_config
from mmgrpo.data.opening import check_media
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows
from mmgrpo.errors import ConfigError, MediaError
from mmgrpo.media.adapters import load_adapters, open_adapters
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily
from mmgrpo.types import Media

ROOT = Path(mmgrpo.__file__).resolve().parent.parent
LIDAR = str(ROOT / "examples" / "lidar_adapter.py")
PLUGIN = """
from PIL import Image
from mmgrpo import Decoded

class Sensor:
    kind = "image"
    def __init__(self, color="red"):
        self.color = color
    def reads(self, media):
        return str(media.source).endswith(".sensor")
    def decode(self, media):
        if "raise" in str(media.source):
            raise KeyError("no calibration")
        if "sound" in str(media.source):
            return Decoded(kind="audio", data=None)
        return Decoded(kind="image", data=Image.new("RGB", (8, 8), self.color), name=media.name)

class Checked(Sensor):
    def verify(self, media):
        raise ValueError("checked")

class Nothing:
    kind = "smell"

def fails():
    raise RuntimeError("no licence")

ready = Sensor("blue")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sensor.py").write_text(PLUGIN)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    return tmp_path


def image(source: Any) -> Media:
    return Media(kind="image", source=source, name="row 3")


def adapters(folder: Path, *names: Any, **data: Any) -> Any:
    return open_adapters(Data(adapters=names, **data), base=folder)


def test_a_plug_in_is_found_beside_the_yaml_and_asked_first(folder: Path, tmp_path: Path):
    both = adapters(folder, "sensor.py:Sensor")
    assert both.decode(image(Path("a.sensor"))).data.getpixel((0, 0)) == (255, 0, 0)
    assert both.decode(image(Image.new("RGB", (9, 9), "lime"))).data.getpixel((0, 0)) == (0, 255, 0)
    named = adapters(folder, {"fn": "sensor.py:Sensor", "args": {"color": "yellow"}})
    assert named.decode(image(Path("a.sensor"))).data.getpixel((0, 0)) == (255, 255, 0)
    ready = adapters(folder, "sensor.py:ready", "sensor.py:Sensor")
    assert ready.decode(image(Path("a.sensor"))).data.getpixel((0, 0)) == (0, 0, 255)


def test_an_entry_point_is_found_by_its_name(folder: Path, monkeypatch: Any):
    class Point:
        def load(self) -> Any:
            (loaded,) = load_adapters([MediaAdapter(fn="sensor.py:Sensor")], base=folder)
            return loaded

    class Points(dict):
        names = {"my_sensor"}

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: Points(my_sensor=Point()))
    assert adapters(folder, "my_sensor").decode(image(Path("a.sensor"))).data.size == (8, 8)
    with pytest.raises(ConfigError, match="my_sensor"):
        adapters(folder, "other_sensor")


@pytest.mark.parametrize("name", ["raise.sensor", "sound.sensor"])
def test_faults_of_a_plug_in_are_media_errors_that_name_it(name: str, folder: Path):
    plugin = adapters(folder, "sensor.py:Sensor")
    for call in (plugin.decode, plugin.verify):
        with pytest.raises(MediaError, match=r"sensor\.py:Sensor[\s\S]*row 3"):
            call(image(Path(name)))


def test_a_plug_in_may_bring_a_check_of_its_own(folder: Path):
    plugin = adapters(folder, "sensor.py:Checked")
    assert plugin.decode(image(Path("a.sensor")))
    with pytest.raises(MediaError, match="checked"):
        plugin.verify(image(Path("a.sensor")))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gone.py:Sensor", "Media adapter file gone.py does not exist"),
        ("sensor.py:Gone", "no media adapter 'Gone'"),
        ("sensor.py:Nothing", "not a media adapter"),
        ("broken.py:Sensor", "nothing_of_that_name"),
        ({"fn": "sensor.py:Sensor", "args": {"smell": 1}}, "smell"),
        ({"fn": "sensor.py:fails", "args": {"a": 1}}, "could not be built"),
        ("no_such_module_anywhere:Sensor", "cannot be imported"),
    ],
)
def test_adapters_that_cannot_be_used_are_refused_by_name(name: Any, told: str, folder: Path):
    with pytest.raises(ConfigError, match=told):
        adapters(folder, name)


# The worked example


@pytest.fixture(scope="module")
def lidar() -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("lidar_adapter", LIDAR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("posts", [0, 1, 3, 6])
@pytest.mark.parametrize("form", ["bin", "npy"])
def test_a_scan_becomes_a_picture_in_which_the_posts_can_be_counted(posts: int, form: str, lidar: Any, tmp_path: Path):
    points = lidar.make_scan(posts, seed=posts)
    path = tmp_path / f"scan.{form}"
    if form == "bin":
        points.tofile(path)
    else:
        np.save(path, points)
    reader = adapters(tmp_path, {"fn": f"{LIDAR}:Lidar", "args": {"reach_metres": 22, "size": 224}})
    picture = np.asarray(reader.decode(image(path)).data)
    assert picture.shape == (224 + 56, 224, 3)
    green = picture[224:, :, 1] > 180  # strong returns of the range view
    columns = np.concatenate([[False], green.any(axis=0), [False]]).astype(int)
    rises = int((np.diff(columns) == 1).sum()) - int(green[:, 0].any() and green[:, -1].any())
    assert rises == posts
    if posts:
        assert (picture[:224, :, 1] > 180).any()


def test_places_in_the_birds_eye_view_are_metres(lidar: Any):
    points = np.array([[10, 0, 0, 1], [0, 10, 0, 1], [-10, -10, 0, 1], [100, 0, 0, 1]], np.float32)
    view = lidar.Lidar(reach_metres=20, size=40).birdseye(points)
    rows, columns = np.nonzero(view[..., 1])
    assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == [(10, 20), (20, 10), (30, 30)]
    high = np.array([[5, 5, -2, 1], [5, 5, 2, 0.1]], np.float32)
    cell = lidar.Lidar(reach_metres=20, size=40).birdseye(high)[15, 15]
    assert cell[0] == round(255 * 5 / 6), "the highest point"
    assert cell[1] == 255, "the strongest return"


def test_the_range_view_shows_the_nearest_point_of_a_direction(lidar: Any):
    points = np.array([[10, 0, -1, 0.2], [5, 0, -0.5, 0.8]], np.float32)
    view = lidar.Lidar(reach_metres=20, size=64).range_view(points)
    (row,), (column,) = np.nonzero(view[..., 0])
    assert column == 32
    assert view[row, column, 1] == round(0.8 * 255)


def test_radar_returns_show_speed_by_colour(lidar: Any, tmp_path: Path):
    path = tmp_path / "a.radar.npy"
    np.save(path, np.array([[10, 0, -20, 1.0], [-10, 0, 20, 1.0]], np.float32))
    reader = adapters(tmp_path, f"{LIDAR}:Radar", f"{LIDAR}:Lidar")
    picture = np.asarray(reader.decode(image(path)).data)
    assert picture.shape == (224, 224, 3)
    assert picture[:112, :, 0].max() == 255 > 0 == picture[:112, :, 2].max(), "ahead, and coming nearer"
    assert picture[112:, :, 2].max() == 255 > 0 == picture[112:, :, 0].max(), "behind, and going away"


@pytest.mark.parametrize(
    "content", [b"", b"12345", np.full((5, 4), np.nan, np.float32).tobytes(), b"\x93NUMPY junk that is no array"]
)
@pytest.mark.parametrize("ending", ["bin", "npy"])
def test_files_without_points_are_refused_by_name(content: bytes, ending: str, tmp_path: Path):
    path = tmp_path / f"bad.{ending}"
    path.write_bytes(content)
    with pytest.raises(MediaError, match="bad"):
        adapters(tmp_path, f"{LIDAR}:Lidar").verify(image(path))


def test_the_example_yaml_reads_its_scans_from_rows_to_prompts(lidar: Any, tmp_path: Path):
    config = load_config(ROOT / "examples" / "lidar_counting.yaml")
    rows = open_rows(config.data.train.model_copy(update={"path": str(lidar.write_rows(tmp_path, 6))}), base=tmp_path)
    assert json.loads((tmp_path / "train.jsonl").read_text().splitlines()[2])["solution"] == "<answer>3</answer>"
    samples = Samples(rows, columns=Columns(), template=Template())
    record = family_of("qwen2_5_vl")
    assert record.tiny is not None
    model, processor = record.tiny({}, 0)
    reader = open_adapters(config.data, base=ROOT, processor=processor)
    assert check_media(samples, reader.verify).media == 6
    builder = PromptBuilder(processor, family=LoadedFamily(spec=record, config=model.config), adapters=reader)
    prompts = [builder.build_prompt(sample) for sample in samples]
    assert {prompt.media[0].data.size for prompt in prompts} == {(112, 140)}
    assert all(prompt.model_inputs["image_grid_thw"].tolist() == [[1, 10, 8]] for prompt in prompts)
    assert len({prompt.media[0].data.tobytes() for prompt in prompts}) == 6
