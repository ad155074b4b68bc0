"""What holds rows beyond single files: tar shards, streams, folders of media, limits in the path."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.json_file import JsonRows
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows
from mmgrpo.data.tables import streamed_rows
from mmgrpo.errors import DatasetError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def png(red: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (red, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def shards(folder: Path, *, with_json: bool = True) -> Path:
    folder.mkdir()
    for shard in range(2):
        files: dict[str, bytes] = {}
        for i in range(3):
            key, number = f"{i:04d}", shard * 3 + i
            files[f"{key}.png"] = png(number * 10)
            row = {"problem": f"question {number}", "solution": str(number)}
            if with_json:
                files[f"{key}.json"] = json.dumps(row).encode()
            else:
                files[f"{key}.txt"] = row["problem"].encode()
                files[f"{key}.cls"] = row["solution"].encode()
        write_tar(folder / f"shard-{shard}.tar", files)
    return folder


@pytest.mark.parametrize("with_json", [True, False], ids=["json", "txt and cls"])
@pytest.mark.parametrize("written", ["shards", "shards/*.tar"])
def test_tar_shards_are_rows(with_json: bool, written: str, tmp_path: Path):
    shards(tmp_path / "shards", with_json=with_json)
    rows = open_rows(Files(path=written), base=tmp_path)
    samples = Samples(rows, columns=Columns(), template=Template())
    assert samples.form.name == "r1v"
    assert [str(s.answer) for s in samples] == [str(i) for i in range(6)]
    assert [s.messages[-1]["content"][-1]["text"] for s in samples][4] == "question 4"
    for number, sample in enumerate(samples):
        picture = Image.open(io.BytesIO(sample.media[0].source))
        assert picture.getpixel((0, 0)) == (number * 10, 0, 0)
    assert "shard-1.tar, key 0001" in samples.where(4)
    assert len({s.id for s in samples}) == 6


def test_a_tar_that_is_no_shard_is_one_clear_error(tmp_path: Path):
    (tmp_path / "x.tar").write_bytes(b"junk" * 200)
    with pytest.raises(DatasetError, match="A tar shard cannot be loaded"):
        open_rows(Files(path="x.tar"), base=tmp_path)


def test_rows_of_a_shard_need_not_hold_the_same_files(tmp_path: Path):
    turns = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    files = {
        "a/1.json": json.dumps({"problem": "text alone?", "solution": 1}).encode(),
        "a/2.png": png(),
        "a/2.json": json.dumps({"problem": "one?", "solution": "2", "note": [1, "x"]}).encode(),
        "a/3.left.png": png(),
        "a/3.RIGHT.PNG": png(),
        "a/3.txt": b"two?\n",
        "a/3.cls": b"3",
        "b/3.npy": b"lidar",
        "b/3.txt": b"other sensors?",
        "a/4.json": json.dumps({"problem": turns, "solution": {"x": 1}}).encode(),
        "a/.hidden": b"",
        "README": b"",
    }
    write_tar(tmp_path / "x.tar", files)
    rows = open_rows(Files(path="x.tar"), base=tmp_path)
    samples = Samples(rows, columns=Columns(), template=Template())
    assert [len(s.media) for s in samples] == [0, 1, 2, 0, 0]
    assert [s.answer for s in samples] == [1, "2", "3", None, {"x": 1}]
    assert rows.column("solution") == [1, "2", "3", None, {"x": 1}]
    assert rows[3]["npy"] == b"lidar"
    assert "x.tar, key a/2" in rows.where(1)


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"{not json", "not valid JSON"), (b"[1]", "is not a row"), (b"\xff", "not valid JSON")],
)
def test_a_malformed_row_of_a_shard_is_found_at_opening_with_its_key(content: bytes, fault: str, tmp_path: Path):
    write_tar(tmp_path / "x.tar", {"0001.json": content})
    with pytest.raises(DatasetError, match=fault) as caught:
        open_rows(Files(path="x.tar"), base=tmp_path)
    assert "key 0001" in str(caught.value)


def test_a_shard_that_is_cut_off_is_refused(tmp_path: Path):
    write_tar(tmp_path / "x.tar", {"0001.png": png(), "0001.txt": b"?", "0002.png": png(), "0002.txt": b"?"})
    whole = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(whole[: 512 * 5 + 20])
    with pytest.raises(DatasetError, match="A tar shard cannot be loaded"):
        open_rows(Files(path="x.tar"), base=tmp_path)


@pytest.mark.parametrize("limit", ["#0", "#-3", "#00"])
def test_a_limit_in_the_path_below_one_says_so(limit: str, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"problem": "?", "solution": "1"}')
    with pytest.raises(DatasetError, match="The limit of rows is below 1") as caught:
        open_rows(Files(path=f"rows.jsonl{limit}"), base=tmp_path)
    assert "1 or more" in str(caught.value)


def test_opening_files_of_ones_own_draws_no_bars(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    rows = datasets.Dataset.from_list([{"problem": "?", "solution": "1"}])
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.save_to_disk(tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    rows.to_parquet(tmp_path / "folder/train.parquet")
    datasets.enable_progress_bars()
    capfd.readouterr()
    for name in ("rows.parquet", "saved", "folder"):
        open_rows(Files(path=name), base=tmp_path)
    assert capfd.readouterr().err == ""
    assert not datasets.are_progress_bars_disabled()


def test_a_limit_may_stand_in_the_path(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"problem": "{i}"}}\n' for i in range(50)), encoding="utf-8")
    base = {"base": tmp_path, "seed": 3}
    said = open_rows(Files(path="rows.jsonl", limit=5), **base)
    short = open_rows(Files(path="rows.jsonl#5"), **base)
    assert [dict(r) for r in short] == [dict(r) for r in said]
    assert len(short) == 5
    other = open_rows(Files(path="rows.jsonl#5", seed=4), **base)
    assert [dict(r) for r in other] != [dict(r) for r in short]
    with pytest.raises(DatasetError, match="given twice"):
        open_rows(Files(path="rows.jsonl#5", limit=6), **base)


def test_a_file_whose_name_ends_in_a_number_sign_and_digits_is_that_file(tmp_path: Path):
    (tmp_path / "a.jsonl#2").mkdir()
    (tmp_path / "a.jsonl#2" / "metadata.jsonl").write_text('{"problem": "?"}\n' * 3, encoding="utf-8")
    assert len(open_rows(Files(path="a.jsonl#2"), base=tmp_path)) == 3


def test_a_stream_takes_the_first_rows_undecoded(tmp_path: Path):
    features = datasets.Features({"image": datasets.Image(), "problem": datasets.Value("string")})
    many = [{"image": {"bytes": png(i), "path": None}, "problem": str(i)} for i in range(20)]
    (tmp_path / "many").mkdir()
    datasets.Dataset.from_list(many, features=features).to_parquet(str(tmp_path / "many/train.parquet"))
    rows = streamed_rows(str(tmp_path / "many"), split="train", config=None, revision=None, limit=7)
    assert [row["problem"] for row in rows] == [str(i) for i in range(7)]
    assert rows[3]["image"]["bytes"] == png(3)


def test_a_stream_without_a_limit_and_a_streamed_file_are_refused(tmp_path: Path):
    with pytest.raises(DatasetError, match="how many rows"):
        open_rows(Files(path="owner/name", streaming=True), base=tmp_path)
    (tmp_path / "a.jsonl").write_text('{"problem": "?"}\n', encoding="utf-8")
    with pytest.raises(DatasetError, match="no stream"):
        open_rows(Files(path="a.jsonl", streaming=True), base=tmp_path)
    with pytest.raises(DatasetError, match="no stream"):
        open_rows(Files(path=".", streaming=True), base=tmp_path)


@pytest.mark.parametrize(("file", "column"), [("a.mp4", "video"), ("a.WAV", "audio"), ("a.jpeg", "image")])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_folder_of_media_with_a_metadata_file(file: str, column: str, kind: str, tmp_path: Path):
    row = {"file_name": file, "problem": "?", "solution": "1"}
    if kind == "jsonl":
        (tmp_path / "metadata.jsonl").write_text(json.dumps(row), encoding="utf-8")
    elif kind == "csv":
        (tmp_path / "metadata.csv").write_text("\n".join([",".join(row), ",".join(row.values())]), encoding="utf-8")
    else:
        datasets.Dataset.from_list([row]).to_parquet(str(tmp_path / "metadata.parquet"))
    rows = open_rows(Files(path=str(tmp_path)), base=tmp_path)
    medium = Samples(rows, columns=Columns(), template=Template())[0].media[0]
    assert (medium.kind, medium.source) == (column, tmp_path / file)


def test_a_pattern_names_the_rows_of_several_files_as_one_source(tmp_path: Path):
    (tmp_path / "a-2.jsonl").write_text('{"problem": "third?", "solution": "3", "note": 1}')
    (tmp_path / "a-1.jsonl").write_text(
        '{"problem": "first?", "solution": "1"}\n{"problem": "second?", "solution": "2"}'
    )
    rows = open_rows(Files(path="a-*.jsonl"), base=tmp_path)
    assert [row["problem"] for row in rows] == ["first?", "second?", "third?"]
    assert [row["note"] for row in rows] == [None, None, 1]
    assert [rows.where(i).rpartition("/")[2] for i in range(3)] == ["a-1.jsonl:1", "a-1.jsonl:2", "a-2.jsonl:1"]
    assert len({rows.id(i) for i in range(3)}) == 3
    assert len(open_rows(Files(path="a-*.jsonl#2"), base=tmp_path)) == 2


def test_one_folder_may_hold_media_of_several_kinds(tmp_path: Path):
    (tmp_path / "metadata.csv").write_text("file_name,problem,solution\na.wav,heard?,1\nb.png,seen?,2\nc.mp4,?,3\n")
    samples = Samples(open_rows(Files(path="."), base=tmp_path), columns=Columns(), template=Template())
    assert [[m.kind for m in s.media] for s in samples] == [["audio"], ["image"], ["video"]]


def test_a_json_file_may_hold_one_row_per_line(tmp_path: Path):
    (tmp_path / "rows.json").write_bytes(b'\xef\xbb\xbf{"problem": "a", "solution": "1"}\n{"problem": "b"}\n')
    rows = open_rows(Files(path="rows.json"), base=tmp_path)
    assert [row["problem"] for row in rows] == ["a", "b"]
    (tmp_path / "rows.json").write_text('{"problem": "a", "solution": "1"}\n{"problem": \n')
    with pytest.raises(DatasetError, match=r"rows\.json:2"):
        open_rows(Files(path="rows.json"), base=tmp_path)


ODD_ROWS = [
    {"problem": "a", "solution": "1"},
    {"problem": 'brackets ]}[{ and "quotes" \\\\ \\" in text', "solution": {"deep": [1, [2, {"x": "]"}]]}},
    {"problem": "ü\u2028\n", "images": ["a.png", "b.png"], "note": None},
    {},
]


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"version": "1[", "data": rows, "more": {"n": 1}}])
@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"ensure_ascii": False, "separators": (",", ":")}])
def test_large_json_files_give_the_rows_that_small_ones_give(wrap: Any, layout: dict[str, Any], tmp_path: Path):
    (tmp_path / "rows.json").write_text(json.dumps(wrap(ODD_ROWS), **layout), encoding="utf-8")
    small = open_rows(Files(path="rows.json"), base=tmp_path)
    large = JsonRows(tmp_path / "rows.json")
    assert list(large) == list(small)
    assert (large.columns, large.base, large.where(1)) == (small.columns, small.base, small.where(1))


@pytest.mark.parametrize(
    "content",
    ['[{"a": 1} {"a": 2}]', '[{"a": 1},, {"a": 2}]', '[{"a": 1}, 3]', "[[1]]", '{"a": {"b": [{"c": 1}]}}', '[{"a": 1}',
     '{"a": [{"b": 1}], "c": [{"d": 1}]}', '[{"a": 1}]]', '[{"a": 1}] x', "3", '"[{}]"', '[{"a": }]', '[{"a": 1},]',
     '[1{"a": 1}]', '[{"a": 1}1]', '[{"a": 1}}'],
)  # fmt: skip
def test_what_is_no_list_of_rows_is_refused_at_any_size(content: str, tmp_path: Path):
    (tmp_path / "rows.json").write_text(content)
    with pytest.raises(DatasetError):
        open_rows(Files(path="rows.json"), base=tmp_path)
    with pytest.raises(DatasetError):
        JsonRows(tmp_path / "rows.json")


def test_a_large_file_is_read_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "rows.json").write_text(json.dumps(ODD_ROWS))
    monkeypatch.setattr("mmgrpo.data.json_file.LARGE_BYTES", 10)
    assert isinstance(open_rows(Files(path="rows.json"), base=tmp_path), JsonRows)
    (tmp_path / "lines.json").write_text('{"problem": "a", "solution": "1"}\n{"problem": "b"}\n')
    assert len(open_rows(Files(path="lines.json"), base=tmp_path)) == 2
    (tmp_path / "one.json").write_text(json.dumps({"data": ODD_ROWS}) + "\n")
    assert len(open_rows(Files(path="one.json"), base=tmp_path)) == len(ODD_ROWS)


@pytest.mark.parametrize(
    ("content", "fix"),
    [(b'[{"problem": "a"}]', "name the file .json"), (b'[\n{"problem": "a"}\n]', "name it .json"),
     ('{"problem": "a"}\n{}'.encode("utf-16"), "UTF-8"), (b'{"problem": "\xe9"}', "UTF-8")],
)  # fmt: skip
def test_a_file_by_the_wrong_name_or_in_the_wrong_letters_says_what_to_do(content: bytes, fix: str, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DatasetError, match="not") as caught:
        open_rows(Files(path="rows.jsonl"), base=tmp_path)
    assert fix in str(caught.value)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_cells_of_a_csv_file_are_separated_as_its_header_is(mark: str, tmp_path: Path):
    (tmp_path / "rows.csv").write_text(f'problem{mark}solution\n"a{mark} b"{mark}1\n')
    assert dict(open_rows(Files(path="rows.csv"), base=tmp_path)[0]) == {"problem": f"a{mark} b", "solution": "1"}


def test_arrow_files_of_both_forms_are_rows(tmp_path: Path):
    import pyarrow as pa

    table = pa.table({"problem": ["a", "b"], "solution": ["1", "2"]})
    for name, new in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        with pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)
        rows = open_rows(Files(path=f"{name}.arrow"), base=tmp_path)
        assert [row["problem"] for row in rows] == ["a", "b"]


def test_a_folder_that_does_not_load_says_what_stopped_it(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.jsonl").write_text('{"problem": "a", "solution": "1"}')
    (tmp_path / "folder/b.jsonl").write_text('{"problem": "a", "solution": "1", "more": {"y": 1}}')
    with pytest.raises(DatasetError, match="cannot be loaded") as caught:
        open_rows(Files(path="folder"), base=tmp_path)
    assert "column names don't match" in str(caught.value)
