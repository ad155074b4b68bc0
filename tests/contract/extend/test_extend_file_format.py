"""A file format of a user's own: one file beside the YAML, named by ``format:``, and no edit elsewhere."""

import json

import pytest
from PIL import Image

from mmgrpo.config.load import resolve_config
from mmgrpo.data.opening import open_samples
from mmgrpo.data.sources import open_rows
from mmgrpo.errors import ConfigError, DatasetError

MODEL = {"model": {"name": "tiny:qwen2_5_vl"}}
QUIZ = '''
"""Quiz files: a block of lines for each question."""
import json


class Quiz:
    """Opens .quiz files, and says what their columns are."""

    def open(self, path):
        for block in path.read_text().split("---"):
            yield dict(line.split(": ", 1) for line in block.strip().splitlines())

    def read(self, row):
        return {"prompt": row["ask"], "images": [row["photo"]], "answer": row["right"], "topic": row["topic"]}


def renamed(row):
    """The same for rows of a known container."""
    return {"problem": row["q"], "answer": row["a"], "images": row["pics"]}


def broken(row):
    raise GeneratorExit("no")


def nothing(row):
    return None


number = 3
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "quiz.py").write_text(QUIZ)
    first = "ask: How many?\nphoto: a.png\nright: 3\ntopic: x\n"
    (tmp_path / "a.quiz").write_text(first + "---\nask: And?\nphoto: a.png\nright: 4\ntopic: y\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"q": "How <image>?", "a": 5, "pics": ["a.png"]}) + "\n")
    return tmp_path


def samples(folder, path, form):
    config = resolve_config(
        None, base={**MODEL, "data": {"train": {"path": str(folder / path), "format": form}}}
    ).config
    return open_samples(config.data, config.data.train, base=folder, needed="data.train")


def test_a_class_opens_files_of_its_own_kind_and_names_their_columns(folder):
    read = samples(folder, "a.quiz", "quiz.py:Quiz")
    assert [sample.answer for sample in read] == ["3", "4"]
    assert read[1].media[0].source == folder / "a.png"
    assert read[0].extras["topic"] == "x" and read[0].extras["answer"] == "3"
    assert read.forms() == {str(folder / "a.quiz"): "quiz.py:Quiz"}


def test_a_function_translates_rows_of_any_container(folder):
    (sample,) = samples(folder, "rows.jsonl", "quiz.py:renamed")
    assert [block["type"] for block in sample.messages[0]["content"]] == ["text", "image", "text"]
    assert sample.answer == 5


@pytest.mark.parametrize(("name", "said"), [("broken", "GeneratorExit: no"), ("nothing", "NoneType")])
def test_what_a_plug_in_raises_or_returns_is_told_with_its_row(folder, name, said):
    read = samples(folder, "rows.jsonl", f"quiz.py:{name}")
    with pytest.raises(DatasetError, match=said) as error:
        read[0]
    assert f"quiz.py:{name}" in str(error.value) and "rows.jsonl:1" in str(error.value)


def test_what_is_no_format_is_refused(folder):
    with pytest.raises(ConfigError, match="This is no format"):
        samples(folder, "rows.jsonl", "quiz.py:number")
    with pytest.raises(ConfigError, match="did you mean swift"):
        samples(folder, "rows.jsonl", "swfit")


def test_it_is_found_among_parts_of_a_mixture_too(folder):
    part = {"source": {"path": "a.quiz", "format": "quiz.py:Quiz"}}
    config = resolve_config(None, base={**MODEL, "data": {"train": {"mixture": [part, part]}}}).config
    assert len(open_rows(config.data.train.mixture[0].source, base=folder)) == 2
