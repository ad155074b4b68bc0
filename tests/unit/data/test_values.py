"""What people's cells hold: lists written as text, values of numpy and pandas, frames and numbers in lists."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.formats.reading import list_media
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import DatasetError, MediaError
from mmgrpo.types import Sample
from tests.decoding import decode

SHIPPED = Path(__file__).parents[2] / "data_samples"
THREE = SHIPPED / "media/three.png"
FORMS = ["easyr1", "easyr1_video", "openai", "sharegpt", "swift", "swift_query", "trl", "vlm_r1", "r1v", "r1v_eval"]


def samples(rows: Any, **columns: Any) -> list[Sample]:
    opened = rows_from_python(rows, base=SHIPPED)
    return list(Samples(opened, columns=Columns(**columns), template=Template()))


def one(**row: Any) -> Sample:
    return samples([{"problem": "?", "solution": "1"} | row])[0]


def encoded(kind: str, shade: int = 0, **save: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, kind, **save)
    return buffer.getvalue()


@pytest.mark.parametrize("write", [json.dumps, str], ids=["json", "python"])
@pytest.mark.parametrize("name", FORMS)
def test_rows_of_every_form_survive_a_table_of_text(name: str, write: Any, tmp_path: Path):
    rows = [json.loads(line) for line in (SHIPPED / f"{name}.jsonl").read_text().splitlines()]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        for row in rows:
            cells = [row.get(column) for column in columns]
            table.writerow(["" if c is None else c if isinstance(c, str) else write(c) for c in cells])
    read = open_rows(Files(path=str(tmp_path / "rows.csv"), media_root=str(SHIPPED)), base=tmp_path)
    found = Samples(read, columns=Columns(), template=Template())
    meant = Samples(open_rows(Files(path=f"{name}.jsonl"), base=SHIPPED), columns=Columns(), template=Template())
    assert found.form.name == meant.form.name
    for ours, theirs in zip(found, meant, strict=True):
        assert ours.messages == theirs.messages
        assert [(m.kind, m.source) for m in ours.media] == [(m.kind, m.source) for m in theirs.media]
        assert str(ours.answer) == str(theirs.answer)


@pytest.mark.parametrize("text", ["[1] what is it?", "(a) or (b)?", "{not json", "[" * 5000, '["a", "b"]'])
def test_text_that_only_looks_like_a_list_stays_the_question(text: str):
    assert one(problem=text).messages[0]["content"] == text


def test_values_of_data_frames_are_plain_values():
    turns = np.array([{"role": "user", "content": "<image>?"}], dtype=object)
    row = {"messages": turns, "images": np.array(["media/three.png"], dtype=object), "solution": np.int64(3)}
    sample = samples([row | {"score": np.float64(0.5)}])[0]
    assert [m.source for m in sample.media] == [THREE]
    assert sample.answer == 3 and type(sample.answer) is int
    assert type(sample.extras["score"]) is float


def test_a_data_frame_is_rows_and_its_holes_are_none():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"problem": ["a", "b"], "solution": ["1", None], "level": [1.0, float("nan")]})
    assert [s.extras["level"] for s in samples(frame)] == [1.0, None]
    assert [s.answer for s in samples(frame)] == ["1", None]


def test_a_dictionary_of_columns_is_refused_with_what_to_write():
    with pytest.raises(DatasetError, match="These are columns, not rows") as caught:
        samples({"problem": ["a"], "solution": ["b"]})
    assert "from_dict" in str(caught.value)


PNG, JPEG, WEBP = encoded("png", 200), encoded("jpeg", 200), encoded("webp", 200)
FRAMES = {
    "bytes": [PNG, PNG],
    "jpeg": [JPEG, JPEG],
    "webp": [WEBP, WEBP],
    "dictionaries": [{"bytes": PNG, "path": None}, {"bytes": PNG, "path": None}],
    "base64": [base64.b64encode(PNG).decode()] * 2,
    "data addresses": ["data:image/png;base64," + base64.b64encode(PNG).decode()] * 2,
    "arrays": [np.full((8, 8, 3), 200, np.uint8)] * 2,
    "channels first": [np.full((3, 8, 8), 200, np.uint8)] * 2,
    "numbers": np.full((2, 8, 8, 3), 200, np.uint8).tolist(),
    "pictures": [Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8))],
}


@pytest.mark.parametrize("nested", [False, True], ids=["one clip", "a list of one clip"])
@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES)
def test_a_list_of_pictures_under_video_is_one_clip_however_they_are_held(frames: list[Any], nested: bool):
    sample = one(video=[frames] if nested else frames)
    assert [m.kind for m in sample.media] == ["video"]
    assert decode(sample.media[0]).data.shape == (2, 8, 8, 3)


def test_a_list_of_clips_under_video_is_several():
    gif = (SHIPPED / "media/flashes.gif").read_bytes()
    moving = encoded("webp", save_all=True, append_images=[Image.new("RGB", (8, 8), (9, 9, 9))])
    for clips in ([gif, gif], [moving, moving], ["1.mp4", "2.mp4"], [{"bytes": gif, "path": None}] * 2):
        assert len(one(video=clips).media) == 2
    assert [item.source for item in list_media(["1.webp"], "video")] == ["1.webp"]
    assert [item.source for item in list_media(["1.webp", "2.webp"], "video")] == [["1.webp", "2.webp"]]


def test_pixels_in_lists_are_the_picture_that_they_were():
    pixels = np.asarray(Image.open(THREE).convert("RGB"))
    (medium,) = one(image=pixels.tolist()).media
    assert np.array_equal(np.asarray(decode(medium).data), pixels)
    assert len(one(images=[pixels.tolist(), pixels.tolist()]).media) == 2


def test_lists_of_numbers_that_are_no_picture_are_refused_with_their_row():
    with pytest.raises(MediaError, match="An image is not made of numbers") as caught:
        one(image=[[1, 2], [3]])
    assert "row 0, column image" in str(caught.value)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("samples_", [np.full(1600, 0.5, np.float32), [0.5] * 1600], ids=["array", "list"])
def test_samples_beside_their_rate_are_a_sound(samples_: Any, turned: bool):
    pair = (16000, samples_) if turned else (samples_, 16000)
    (medium,) = one(audio=pair).media
    assert decode(medium).data == pytest.approx(np.full(1600, 0.5))


def test_whole_numbers_of_an_array_keep_their_full_scale():
    (medium,) = one(audio={"array": np.full(1600, 16384, np.int16), "sampling_rate": 16000}).media
    assert decode(medium).data == pytest.approx(np.full(1600, 0.5))


@pytest.mark.parametrize(
    "holder",
    [{"url": "media/three.png"}, {"image": "media/three.png"}, {"image_url": {"url": "media/three.png"}},
     {"type": "image", "image": "media/three.png", "min_pixels": 9}],
)  # fmt: skip
def test_media_in_dictionaries_of_other_tools_are_found(holder: dict[str, Any]):
    assert [m.source for m in one(images=[holder]).media] == [THREE]


@pytest.mark.parametrize("hole", ["", " ", None, float("nan")])
def test_holes_inside_a_list_are_no_media(hole: Any):
    assert [m.source for m in one(images=[hole, "media/three.png"]).media] == [THREE]


def test_a_clip_that_datasets_opened_is_read_from_its_bytes():
    class Opened:  # what a Video column gives where torchcodec is installed
        _hf_encoded = {"path": None, "bytes": (SHIPPED / "media/flashes.gif").read_bytes()}

    for value in (Opened(), [Opened()]):
        (medium,) = one(video=value).media
        assert decode(medium).data.shape[1:] == (56, 56, 3)


def test_bytes_in_memory_are_bytes():
    assert decode(one(image=io.BytesIO(PNG)).media[0]).data.size == (8, 8)


def test_an_open_file_is_refused_not_taken_for_a_tensor():
    with THREE.open("rb") as file, pytest.raises(MediaError, match="not an image"):
        decode(one(image=file).media[0])


def test_a_path_of_another_system_says_how_paths_are_written():
    with pytest.raises(MediaError, match="does not exist") as caught:
        decode(one(image="media\\three.png").media[0])
    assert "Paths are written with /" in str(caught.value)
