"""Check, head and convert, on rows of every form that ships with the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmgrpo.api.data import check, convert, head
from mmgrpo.cli import main
from mmgrpo.config.data import Columns, Data, Files, Template
from mmgrpo.config.load import resolve_config
from mmgrpo.data.opening import open_samples
from mmgrpo.data.report import Findings, RowStats, page
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import ConfigError, DataError, DatasetError, MediaError
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.serialize import serialize_media
from mmgrpo.types import Sample

SHIPPED = Path(__file__).parents[2] / "data_samples"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.jsonl"))
ADAPTERS = Adapters(built_in())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def config(path: Path, **data: Any) -> dict[str, Any]:
    return {"model": {"name": "tiny:qwen2_5_vl"}, "data": {"train": {"path": str(path)}, **data}}


def write_yaml(folder: Path, rows: Path, **data: Any) -> Path:
    (folder / "my.yaml").write_text(json.dumps(config(rows, **data)), encoding="utf-8")
    return folder / "my.yaml"


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "rows.jsonl"


# check


@pytest.mark.parametrize("name", NAMES)
def test_check_reads_every_form(name: str, tmp_path: Path):
    report = check(write_yaml(tmp_path, SHIPPED / f"{name}.jsonl"), threads=2)
    found = report.findings["data.train"]
    lines = (SHIPPED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    sounds = sum("audios" in json.loads(line) for line in lines)  # the tiny twin does not hear
    assert (found.usable, len(found.refused)) == (found.rows - sounds, sounds), found.refused
    assert report.needs is not None
    assert report.needs.peak_bytes > 1e6


def test_check_groups_what_it_refuses_and_strict_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Image.new("RGB", (56, 56)).save(tmp_path / "a.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    rows: list[dict[str, Any]] = [{"image": "a.png", "problem": "How many?", "solution": str(i % 3)} for i in range(9)]
    rows[2]["image"] = rows[5]["image"] = "cut.png"
    rows[4]["image"] = "gone.png"
    rows[7]["problem"] = None
    rows[8]["problem"] = "word " * 200
    path = write_yaml(tmp_path, write_rows(tmp_path, rows), max_prompt_tokens=60)
    found = check(path).findings["data.train"]
    assert set(found.refused) == {2, 4, 5, 7, 8}
    assert found.over == [8]
    assert found.answers == {"0": 3, "1": 1, "2": 1}
    assert main(["check", str(path), "--strict"]) == 1
    out = capsys.readouterr().out
    assert "9 read, 4 usable, 0 skipped, 5 refused" in out
    assert "2 rows (rows.jsonl:3, rows.jsonl:6)" in out
    assert "1 row (rows.jsonl:5): A media file does not exist" in out
    assert "1 prompts over data.max_prompt_tokens 60" in out
    assert main(["check", str(path), "data.on_bad_media=skip"]) == 0
    assert "3 skipped, 2 refused" in capsys.readouterr().out
    assert main(["check", str(path), "data.on_long_prompt=skip"]) == 0
    assert "1 skipped, 4 refused" in capsys.readouterr().out
    assert main(["check", str(path), "--json", "--rows", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"]["data.train"]["rows"] == 2


def test_rows_of_several_sources_are_named_by_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in "ab":
        rows = [{"problem": "How many?" if i else None, "solution": "1"} for i in range(2)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    train = {"mixture": [{"source": {"path": f"{name}.jsonl"}, "weight": 1.0} for name in "ab"]}
    path = tmp_path / "mixed.yaml"
    path.write_text(yaml.safe_dump({"model": {"name": "tiny:qwen2_5_vl"}, "data": {"train": train}}))
    main(["check", str(path)])
    assert "2 rows (a.jsonl:1, b.jsonl:1)" in capsys.readouterr().out


def test_check_without_refusals_is_strictly_fine(tmp_path: Path):
    assert main(["check", str(write_yaml(tmp_path, SHIPPED / "r1v.jsonl")), "--strict"]) == 0


def test_check_looks_at_every_source(tmp_path: Path):
    path = write_yaml(tmp_path, SHIPPED / "r1v.jsonl", eval={"synthetic": "counting", "rows": 3})
    assert {key: found.rows for key, found in check(path).findings.items()} == {"data.train": 2, "data.eval": 3}


def test_check_needs_rows(tmp_path: Path):
    (tmp_path / "no.yaml").write_text("model: {name: tiny:qwen2_5_vl}", encoding="utf-8")
    with pytest.raises(ConfigError, match="no rows"):
        check(tmp_path / "no.yaml")


def test_the_page_counts_media_tokens_and_answers():
    found = Findings(name="rows", forms={"rows": "r1v"}, limit=10)
    for row in range(20):
        kinds = {"image": 2, "audio": 1} if row % 2 else {}
        found.add(
            RowStats(row=row, media=kinds, tokens=row, media_tokens=row // 2, answer=f"<answer> {row % 4} </answer>")
        )
    text = page(found)
    assert "2 images + 1 audio: 10 rows" in text
    assert "none: 10 rows" in text
    assert "min 0  median 9  p95 18  max 19 per prompt" in text
    assert "9 prompts over" in text
    assert [line.split()[-1] for line in text.splitlines() if "█" in line] == ["5", "5", "5", "5"]
    assert found.usable == 11


def test_control_characters_of_answers_do_not_reach_the_terminal():
    found = Findings(name="rows", forms={"rows": "r1v"})
    found.add(RowStats(row=0, tokens=1, answer="\x1b[31mred"))
    assert "\x1b" not in page(found)


# head


def test_head_shows_prompts_media_tokens_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_yaml(tmp_path, SHIPPED / "vlm_r1.jsonl", template={"user": "{{ prompt }} Use digits."})
    assert main(["data", "head", str(path), "-n", "5"]) == 0
    out = capsys.readouterr().out
    assert out.count("56 x 56 pixels") == 3
    assert "How many items are there in the image? Use digits." in out
    assert "answer   3" in out
    assert "4 for images" in out
    assert len(head(path, count=1)) == 1


@pytest.mark.parametrize("row", [{"image": "gone.png"}, {"problem": None}], ids=["medium", "row"])
def test_head_names_the_row_that_cannot_be_shown(row: dict[str, Any], tmp_path: Path):
    good = {"problem": "?", "solution": "1"}
    with pytest.raises(DataError, match=r"rows\.jsonl:2"):
        head(write_yaml(tmp_path, write_rows(tmp_path, [good, good | row])))


# convert


def convertible() -> list[str]:
    return NAMES


def same(a: Sample, b: Sample) -> None:
    assert (a.id, a.answer) == (b.id, b.answer)
    assert json.dumps(a.messages) == json.dumps(b.messages)
    for name in a.extras.keys() | b.extras.keys():
        assert a.extras.get(name) == b.extras.get(name), name
    assert [m.kind for m in a.media] == [m.kind for m in b.media]
    for one, two in zip(a.media, b.media, strict=True):
        x, y = ADAPTERS.decode(one), ADAPTERS.decode(two)
        assert np.array_equal(np.asarray(x.data), np.asarray(y.data))


@pytest.mark.parametrize("name", convertible())
def test_converted_rows_read_back_are_the_same_samples_without_their_files(name: str, tmp_path: Path):
    assert main(["data", "convert", str(SHIPPED / f"{name}.jsonl"), str(tmp_path / "out.parquet")]) == 0
    before = open_samples(Data(), Files(path=str(SHIPPED / f"{name}.jsonl")), base=tmp_path, needed="x")
    after = open_samples(Data(), Files(path="out.parquet"), base=tmp_path, needed="x")
    assert before is not None
    assert after is not None
    assert len(after) == len(before)
    assert set(after.forms().values()) == {"mmgrpo"}
    for one, two in zip(before, after, strict=True):
        same(one, two)
        assert all(not isinstance(m.source, Path) for m in two.media)


def test_a_converted_file_takes_the_place_of_its_source_in_a_yaml_with_named_columns(tmp_path: Path):
    rows = write_rows(tmp_path, [{"q": "Why?", "pic": str(SHIPPED / "media/three.png"), "truth": "x", "unit": "cm"}])
    columns = {"prompt": "q", "image": "pic", "answer": "truth"}
    path = write_yaml(tmp_path, rows, columns=columns, template={"user": "{{ prompt }} in {{ unit }}"})
    assert convert(path, tmp_path / "out.parquet") == 1
    before = head(path)[0].splitlines()
    after = head(path, overrides=[f"data.train.path={tmp_path / 'out.parquet'}"])[0].splitlines()
    assert before[1:] == after[1:]
    assert any("Why? in cm" in line for line in after)


def test_convert_reads_a_bare_file_by_the_columns_given_behind_it(tmp_path: Path):
    rows, out = write_rows(tmp_path, [{"q": "Why?", "truth": "x"}]), tmp_path / "out.parquet"
    words = ["data.columns.prompt=q", "data.columns.answer=truth"]
    assert main(["data", "convert", str(rows), str(out), *words]) == 0
    samples = open_samples(Data(), Files(path=str(out)), base=tmp_path, needed="x")
    assert samples is not None
    assert samples[0].answer == "x"


def test_convert_says_which_forms_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = write_rows(tmp_path, [{"problem": "Why?"}])
    assert main(["data", "convert", str(rows), str(tmp_path / "out.parquet"), "--format", "nope"]) == 2
    assert "r1v" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["check", "--rows", "0"], ["check", "--threads", "-1"], ["data", "head", "-n", "0"]]
)
def test_a_count_below_one_is_a_mistake(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_yaml(tmp_path, write_rows(tmp_path, [{"problem": "Why?"}]))
    assert main([*words, str(path)]) == 2
    assert "1 or more" in capsys.readouterr().err


def test_a_row_that_cannot_be_read_leaves_no_file(tmp_path: Path):
    good = {"problem": "?", "solution": "1"}
    rows = write_rows(tmp_path, [good, good | {"image": "gone.png"}])
    with pytest.raises(MediaError, match=r"gone\.png") as caught:
        convert(rows, tmp_path / "out.parquet")
    assert "rows.jsonl:2" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir() if "parquet" in p.name or "part" in p.name] == []


@pytest.mark.parametrize("words", [["rows.jsonl"], ["rows.jsonl", "out.csv"], ["rows.jsonl", "data.seed=1"]])
def test_convert_needs_a_parquet_file_to_write(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["data", "convert", *words]) == 2
    assert "parquet" in capsys.readouterr().err


JSONABLE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ab"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip

ASKED = st.text("ab<image> ", max_size=12).map("a{}".format)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries({"problem": ASKED, "solution": JSONABLE, "note": JSONABLE}), min_size=1,
                     max_size=4))  # fmt: skip
def test_any_columns_survive_conversion(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("convert")
    data = Data(columns=Columns(image=None), template=Template())
    before = open_samples(data, None, rows, base=folder, needed="x")
    assert isinstance(before, Samples)
    from mmgrpo.data.convert import write_parquet

    write_parquet(before, folder / "out.parquet", encoded=lambda medium: [])
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "out.parquet").to_pylist()
    after = Samples(rows_from_python(table), columns=Columns(), template=Template())
    for one, two in zip(before, after, strict=True):
        same(one, two)
        assert json.dumps(one.extras["note"]) == json.dumps(two.extras["note"])


def test_tuples_and_arrays_of_other_columns_become_lists(tmp_path: Path):
    rows = [{"problem": "?", "solution": (1, 2), "box": np.arange(4), "scene": {"at": (1, [2.5, (3,)])}}] * 2
    before = Samples(rows_from_python(rows), columns=Columns(), template=Template())
    from mmgrpo.data.convert import write_parquet

    write_parquet(before, tmp_path / "out.parquet", encoded=serialize_media)
    (one, _) = Samples(open_rows(Files(path="out.parquet"), base=tmp_path), columns=Columns(), template=Template())
    assert (one.answer, one.extras["box"], one.extras["scene"]) == ([1, 2], [0, 1, 2, 3], {"at": [1, [2.5, [3]]]})


def test_scenes_and_clips_drawn_in_code_can_be_written(tmp_path: Path):
    for made in ("counting", "clips", "beeps"):
        yaml = tmp_path / f"{made}.yaml"
        yaml.write_text(f"model: {{name: tiny:qwen2_5_omni}}\ndata: {{train: {{synthetic: {made}, rows: 2}}}}\n")
        assert convert(yaml, tmp_path / f"{made}.parquet") == 2
        before = open_samples(Data(), resolve_config(yaml).config.data.train, base=tmp_path, needed="x")
        after = open_samples(Data(), Files(path=f"{made}.parquet"), base=tmp_path, needed="x")
        assert before is not None and after is not None
        for one, two in zip(before, after, strict=True):
            assert (one.answer, one.messages) == (two.answer, two.messages)
            for x, y in zip(one.media, two.media, strict=True):
                x, y = ADAPTERS.decode(x), ADAPTERS.decode(y)
                assert np.array_equal(np.asarray(x.data), np.asarray(y.data))
                assert (x.rate, x.times) == (y.rate, y.times)


ADAPTER = """
import numpy as np
from PIL import Image
from mmgrpo import Decoded


class Depth:
    kind = "image"

    def reads(self, media):
        return str(media.source).endswith(".depth.npy")

    def decode(self, media):
        grey = Image.fromarray(np.load(media.source).astype(np.uint8)).convert("RGB")
        return Decoded(kind="image", data=grey, name=media.name)
"""


def test_what_an_adapter_reads_is_written_as_what_it_made(tmp_path: Path):
    (tmp_path / "depth.py").write_text(ADAPTER)
    np.save(tmp_path / "1.depth.npy", np.full((56, 56), 7.0))
    write_rows(
        tmp_path, [{"image": ["1.depth.npy", str(SHIPPED / "media/three.png")], "problem": "?", "solution": "1"}]
    )
    yaml = write_yaml(tmp_path, tmp_path / "rows.jsonl", adapters=["depth.py:Depth"])
    assert convert(yaml, tmp_path / "out.parquet") == 1
    after = open_samples(Data(), Files(path="out.parquet"), base=tmp_path, needed="x")
    assert after is not None
    one, two = (ADAPTERS.decode(medium).data for medium in after[0].media)
    assert np.asarray(one).max() == np.asarray(one).min() == 7
    assert two.size == (56, 56)


def test_a_template_that_is_the_whole_question_is_written_and_read_back_the_same(tmp_path: Path):
    words = {"user": "Reach {{ target }} with {{ nums | join(', ') }}.", "system": "Be brief."}
    columns = {"answer": None}
    yaml = write_yaml(tmp_path, write_rows(tmp_path, [{"nums": [1, 2], "target": 3}]), template=words, columns=columns)
    assert convert(yaml, tmp_path / "out.parquet") == 1
    (tmp_path / "again").mkdir()
    again = write_yaml(tmp_path / "again", tmp_path / "out.parquet", template=words, columns=columns)
    assert head(yaml)[0].splitlines()[1:] == head(again)[0].splitlines()[1:]
    assert "Reach 3 with 1, 2." in head(again)[0]


def test_a_column_that_no_file_can_hold_is_named(tmp_path: Path):
    rows = rows_from_python([{"problem": "?", "solution": "1", "thing": {1, 2}}])
    from mmgrpo.data.convert import write_parquet

    samples = Samples(rows, columns=Columns(), template=Template())
    with pytest.raises(DatasetError, match="column thing"):
        write_parquet(samples, tmp_path / "out.parquet", encoded=lambda medium: [])


def test_a_foreign_parquet_with_the_names_of_ours_is_refused_with_its_row(tmp_path: Path):
    row = {"mmgrpo_messages": "not json", "mmgrpo_media": [], "mmgrpo_answer": "1"}
    datasets.Dataset.from_list([row]).to_parquet(str(tmp_path / "x.parquet"))
    samples = Samples(open_rows(Files(path="x.parquet"), base=tmp_path), columns=Columns(), template=Template())
    with pytest.raises(DatasetError, match="not as mmgrpo wrote it"):
        samples[0]
