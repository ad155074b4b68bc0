"""Rows open from every container, lazily, and say where they came from."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from mmgrpo.config.data import Data, Files, Package, Scenes
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import DatasetError

ROWS = [{"problem": f"question {i}", "solution": str(i), "image": f"p{i}.png"} for i in range(6)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def opened(path: Path | str, base: Path, **keys: object):
    return open_rows(Files(path=str(path), **keys), base=base)


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path: Path) -> Path:
    lines = ["problem,solution,image", *(f"{r['problem']},{r['solution']},{r['image']}" for r in ROWS)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def make(kind: str, folder: Path) -> Path:
    if kind == "jsonl":
        return write_jsonl(folder / "rows.jsonl", ROWS)
    if kind == "json":
        (folder / "rows.json").write_text(json.dumps(ROWS), encoding="utf-8")
        return folder / "rows.json"
    if kind == "json with data":
        (folder / "rows.json").write_text(json.dumps({"version": 1, "data": ROWS}), encoding="utf-8")
        return folder / "rows.json"
    if kind == "csv":
        return write_csv(folder / "rows.csv")
    if kind == "parquet":
        datasets.Dataset.from_list(ROWS).to_parquet(str(folder / "rows.parquet"))
        return folder / "rows.parquet"
    if kind == "saved":
        datasets.Dataset.from_list(ROWS).save_to_disk(str(folder / "saved"))
        return folder / "saved"
    if kind == "saved splits":
        datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(str(folder / "saved"))
        return folder / "saved"
    if kind == "arrow":
        datasets.Dataset.from_list(ROWS).save_to_disk(str(folder / "saved"))
        return next((folder / "saved").glob("*.arrow"))
    if kind == "parquet folder":
        (folder / "many" / "data").mkdir(parents=True)
        datasets.Dataset.from_list(ROWS).to_parquet(str(folder / "many/data/train-00000-of-00001.parquet"))
        return folder / "many"
    raise AssertionError(kind)


KINDS = ["jsonl", "json", "json with data", "csv", "parquet", "saved", "saved splits", "arrow", "parquet folder"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_container_gives_the_same_rows(kind: str, tmp_path: Path):
    rows = opened(make(kind, tmp_path), tmp_path)
    assert len(rows) == 6
    assert [dict(row) for row in rows] == ROWS
    assert rows[-1]["solution"] == "5"
    assert [row["solution"] for row in rows[1:3]] == ["1", "2"]
    assert set(rows.columns) == {"problem", "solution", "image"}
    assert rows.base is not None
    assert rows.id(3) == "3"


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_messages_name_file_and_line(kind: str, tmp_path: Path):
    path = make(kind, tmp_path)
    line = 3 if kind == "jsonl" else 4  # the header is a line
    assert opened(path, tmp_path).where(2) == f"{path}:{line}"


def test_relative_paths_start_from_the_yaml_then_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "yaml").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_jsonl(tmp_path / "here" / "rows.jsonl", ROWS[:1])
    assert len(opened("rows.jsonl", tmp_path / "yaml")) == 1
    write_jsonl(tmp_path / "yaml" / "rows.jsonl", ROWS[:2])
    assert len(opened("rows.jsonl", tmp_path / "yaml")) == 2


def test_a_missing_file_is_named_with_its_resolved_path(tmp_path):
    with pytest.raises(DatasetError, match="does not exist") as caught:
        opened("sub/no.jsonl", tmp_path)
    assert str(tmp_path / "sub/no.jsonl") in str(caught.value)


def test_a_file_of_unknown_kind_is_refused(tmp_path):
    (tmp_path / "rows.xlsx").write_bytes(b"x")
    with pytest.raises(DatasetError, match=r"\.parquet"):
        opened("rows.xlsx", tmp_path)


def test_an_unreachable_hub_id_is_one_clear_error(tmp_path):
    with pytest.raises(DatasetError, match=r"needs the network|cannot be reached") as caught:
        opened("nobody/nothing", tmp_path)
    assert "nobody/nothing" in str(caught.value)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_dataset_is_refused(content: str, tmp_path):
    (tmp_path / "rows.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match="empty"):
        opened("rows.jsonl", tmp_path)


def test_a_header_without_rows_is_empty(tmp_path):
    (tmp_path / "rows.csv").write_text("problem,solution\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="empty"):
        opened("rows.csv", tmp_path)


def test_a_missing_split_lists_those_there_are(tmp_path):
    path = make("saved splits", tmp_path)
    with pytest.raises(DatasetError, match="one of 'train'"):
        opened(path, tmp_path, split="test")


def test_a_broken_parquet_file_is_one_clear_error(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DatasetError, match=r"rows\.parquet"):
        opened("rows.parquet", tmp_path)


@pytest.mark.parametrize(
    ("line", "says"), [("{broken", "not valid JSON"), ("[1, 2]", "not a row"), ('{"a": "\\ud800x', "not valid JSON")]
)
def test_malformed_lines_are_found_at_opening_with_their_number(line: str, says: str, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n\n" + line + "\n", encoding="utf-8")
    with pytest.raises(DatasetError, match=says) as caught:
        opened("rows.jsonl", tmp_path)
    assert "rows.jsonl:3" in str(caught.value)


def test_text_that_is_not_utf8_is_found_with_its_line(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff\xfe"}\n')
    with pytest.raises(DatasetError, match=r"rows\.jsonl:2"):
        opened("rows.jsonl", tmp_path)
    (tmp_path / "rows.csv").write_bytes(b"a,b\n1,2\n\xff\xfe,3\n")
    with pytest.raises(DatasetError, match=r"rows\.csv:"):
        opened("rows.csv", tmp_path)


def test_byte_order_marks_windows_line_ends_and_blank_lines_are_harmless(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"b": "\xc3\xa9"}')
    rows = opened("rows.jsonl", tmp_path)
    assert list(rows) == [{"a": 1, "b": None}, {"a": None, "b": "é"}]
    assert rows.where(1).endswith(":3")
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbfa,b\r\n1,\r\n\r\n2,x\r\n")
    assert list(opened("rows.csv", tmp_path)) == [{"a": "1", "b": None}, {"a": "2", "b": "x"}]


def test_csv_cells_may_hold_commas_quotes_and_line_breaks(tmp_path):
    (tmp_path / "rows.csv").write_text('a,b\n"one, two","line 1\nline ""2"""\nlast,x\n', encoding="utf-8")
    rows = opened("rows.csv", tmp_path)
    assert list(rows) == [{"a": "one, two", "b": 'line 1\nline "2"'}, {"a": "last", "b": "x"}]
    assert rows.where(1).endswith(":4")


def test_a_csv_record_with_too_many_cells_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n1,2,3\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="more cells") as caught:
        opened("rows.csv", tmp_path)
    assert "rows.csv:3" in str(caught.value)


def test_a_huge_csv_cell_is_read(tmp_path):
    (tmp_path / "rows.csv").write_text("a\n" + "x" * 400_000 + "\n", encoding="utf-8")
    assert len(opened("rows.csv", tmp_path)[0]["a"]) == 400_000


def test_limit_is_chosen_by_seed_and_keeps_order_and_names(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"n": i} for i in range(100)])
    take = lambda seed: open_rows(Files(path=str(path), limit=10), base=tmp_path, seed=seed)  # noqa: E731
    first, again, other = take(0), take(0), take(1)
    numbers = [row["n"] for row in first]
    assert numbers == sorted(numbers)
    assert numbers == [row["n"] for row in again] != [row["n"] for row in other]
    assert [int(first.id(i)) for i in range(10)] == numbers
    assert first.where(0) == f"{path}:{numbers[0] + 1}"
    assert first.base == tmp_path


def test_limit_beyond_the_end_takes_all(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    assert len(opened(path, tmp_path, limit=1000)) == 6


def test_pictures_of_tables_are_not_decoded_by_the_reader(tmp_path):
    noise = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    features = datasets.Features(
        image=datasets.Image(), images=datasets.List(datasets.Image()), problem=datasets.Value("string")
    )
    data = datasets.Dataset.from_list([{"image": noise, "images": [noise, noise], "problem": "?"}], features=features)
    data.to_parquet(str(tmp_path / "rows.parquet"))
    for rows in (opened("rows.parquet", tmp_path), rows_from_python(data)):
        row = rows[0]
        assert row["image"]["bytes"].startswith(b"\x89PNG")
        assert [set(value) for value in row["images"]] == [{"bytes", "path"}] * 2


def test_a_transform_of_the_user_is_left_to_work():
    data = datasets.Dataset.from_list(ROWS).with_transform(lambda b: {"twice": [p * 2 for p in b["problem"]]})
    assert rows_from_python(data)[1]["twice"] == "question 1question 1"


def test_python_lists_are_rows():
    rows = rows_from_python([{"a": 1}, {"b": 2}])
    assert list(rows) == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    assert rows.base == Path.cwd()


def test_a_dictionary_of_splits_gives_the_split():
    splits = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS))
    assert len(rows_from_python(splits)) == 6
    with pytest.raises(DatasetError, match="no split 'test'"):
        rows_from_python(splits, split="test")


@pytest.mark.parametrize("wrong", ["text", 3, [1, 2], [{"a": 1}, "b"], iter([{"a": 1}])])
def test_what_is_not_rows_is_refused(wrong: object):
    with pytest.raises(DatasetError, match="not rows"):
        rows_from_python(wrong)


def test_an_empty_list_is_refused():
    with pytest.raises(DatasetError, match="empty"):
        rows_from_python([])


def test_a_json_file_that_holds_no_rows_is_refused(tmp_path):
    (tmp_path / "rows.json").write_text('{"a": 1}', encoding="utf-8")
    with pytest.raises(DatasetError, match="does not hold rows"):
        opened("rows.json", tmp_path)
    (tmp_path / "rows.json").write_text('[{"a": 1},\n{"a": 2}', encoding="utf-8")
    with pytest.raises(DatasetError, match="not valid JSON"):
        opened("rows.json", tmp_path)


def test_a_folder_of_pictures_with_metadata(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    write_jsonl(folder / "metadata.jsonl", [{"file_name": "a.png", "problem": "?", "solution": "1"}])
    rows = opened(folder, tmp_path)
    assert rows[0]["image"] == "a.png"
    assert rows.base == folder


def test_media_root_replaces_the_data_files_folder(tmp_path):
    (tmp_path / "media").mkdir()
    rows = opened(write_jsonl(tmp_path / "rows.jsonl", ROWS), tmp_path, media_root="media")
    assert rows.base == tmp_path / "media"
    assert rows.confined
    with pytest.raises(DatasetError, match="media folder"):
        opened(tmp_path / "rows.jsonl", tmp_path, media_root="nowhere")


def test_scenes_open_from_their_section(tmp_path):
    rows = open_rows(Scenes(synthetic="counting", rows=5, seed=4, min_objects=2, max_objects=2), base=tmp_path)
    assert rows.generated
    assert [row["count"] for row in rows] == [2] * 5


def test_easy_vqa_opens_from_its_package(tmp_path):
    rows = open_rows(Package(package="easy_vqa", split="test", limit=50), base=tmp_path)
    assert len(rows) == 50
    assert rows.base is not None
    for row in rows:
        assert (rows.base / row["image"]).is_file()
        assert row["problem"].endswith("?")
        assert row["solution"].isalpha()


def test_jsonl_holds_offsets_not_rows(tmp_path):
    import tracemalloc

    big = {"problem": "x" * 2000}
    path = write_jsonl(tmp_path / "rows.jsonl", [big] * 2000)  # 4 MB
    tracemalloc.start()
    rows = opened(path, tmp_path)
    assert sum(len(row["problem"]) for row in rows) == 4_000_000
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 500_000


def test_the_three_kinds_of_source_are_told_apart_by_their_keys():
    data = Data.model_validate({"train": {"package": "easy_vqa"}, "eval": {"synthetic": "counting", "rows": 2}})
    assert isinstance(data.train, Package)
    assert isinstance(data.eval, Scenes)
    assert isinstance(Data.model_validate({"train": {"path": "x.jsonl"}}).train, Files)


def test_keys_that_mean_nothing_for_one_file_are_refused(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    for keys in ({"split": "test"}, {"config": "main"}, {"revision": "v1"}):
        with pytest.raises(DatasetError, match="One file has no splits"):
            opened(path, tmp_path, **keys)
