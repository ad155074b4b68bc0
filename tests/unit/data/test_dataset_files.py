"""The dataset files that ship: each opens its rows, or rows of its form, and fills its template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import mmgrpo
from mmgrpo.config.load import load_config
from mmgrpo.data.rows import open_rows
from mmgrpo.data.samples import Samples

FILES = Path(mmgrpo.__file__).resolve().parent.parent / "datasets_configs"
TINY = {"model": {"name": "tiny:qwen2_5_vl"}}


def data_of(name: str, **overrides: str):
    values = {"data.config": str(FILES / name)} | {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(None, values, base=TINY).data


@pytest.mark.parametrize("name", ["scenes_counting.yaml", "easy_vqa.yaml"])
def test_rows_without_a_download_open_in_both_splits(name: str, tmp_path: Path):
    data = data_of(name)
    for source in (data.train, data.eval):
        samples = Samples(open_rows(source, base=tmp_path), columns=data.columns, template=data.template)
        sample = samples[0]
        assert len(sample.media) == 1
        assert sample.answer


def test_training_and_held_out_scenes_are_other_scenes(tmp_path: Path):
    data = data_of("scenes_counting.yaml")
    train, held_out = (open_rows(source, base=tmp_path) for source in (data.train, data.eval))
    seen = {train[i]["image"].tobytes() for i in range(300)}
    assert all(held_out[i]["image"].tobytes() not in seen for i in range(300))


def test_clevr_rows_from_a_file_take_the_place_of_the_hub(tmp_path: Path):
    Image.new("RGBA", (48, 32)).save(tmp_path / "a.png")
    row = {"image": "a.png", "problem": "How many items are there in the image?", "solution": "<answer> 3 </answer>"}
    (tmp_path / "local.jsonl").write_text(json.dumps(row), encoding="utf-8")
    data = data_of("clevr_70k_counting.yaml", data__train__path=str(tmp_path / "local.jsonl"))
    samples = Samples(open_rows(data.train, base=tmp_path), columns=data.columns, template=data.template)
    text = samples[0].messages[-1]["content"][-1]["text"]
    assert text.startswith("How many items are there in the image? First")
    assert "<think>" in text
    assert "\n" not in text
    assert samples[0].answer == "<answer> 3 </answer>"
