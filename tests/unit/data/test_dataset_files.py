"""The dataset files that ship: each opens its rows, or rows of its form, and fills its template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import mmgrpo
from mmgrpo.config.data import Data
from mmgrpo.config.load import load_config
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.opening import open_samples
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows
from mmgrpo.types import Sample

FILES = Path(mmgrpo.__file__).resolve().parent.parent / "datasets_configs"
SHIPPED = Path(__file__).parents[2] / "data_samples"
MADE = ["scenes_counting", "easy_vqa", "beeps_counting", "clips_counting"]
SAMPLED = sorted(path.stem for path in (SHIPPED / "datasets").glob("*.jsonl"))
TINY = {"model": {"name": "tiny:qwen2_5_vl"}}


def data_of(name: str, **overrides: str) -> Data:
    values = {"data.config": str(FILES / f"{name}.yaml")}
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(None, values, base=TINY).data


def opened(data: Data, source: object, base: Path) -> AnySamples:
    samples = open_samples(data, source, base=base, needed="data.train")  # type: ignore[arg-type]
    assert samples is not None
    return samples


def with_sample_rows(name: str) -> AnySamples:
    """Read the shipped rows of a set in place of those of the hub, with the columns and words of its file."""
    data = data_of(name)
    assert data.train is not None
    form = getattr(data.train, "format", "auto")
    train = {"path": str(SHIPPED / "datasets" / f"{name}.jsonl"), "media_root": str(SHIPPED), "format": form}
    return opened(data, Data.model_validate({"train": train}).train, SHIPPED)


def text_of(sample: Sample) -> str:
    content = sample.messages[-1]["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def test_every_dataset_file_makes_its_rows_or_has_sample_rows():
    assert sorted(path.stem for path in FILES.glob("*.yaml")) == sorted([*MADE, *SAMPLED])


@pytest.mark.parametrize("name", MADE)
def test_rows_without_a_download_open_in_both_splits(name: str, tmp_path: Path):
    data = data_of(name)
    for source in (data.train, data.eval):
        sample = opened(data, source, tmp_path)[0]
        assert len(sample.media) == 1
        assert sample.answer


@pytest.mark.parametrize("name", SAMPLED)
def test_sample_rows_of_every_set_load_and_fill_its_template(name: str):
    for sample in with_sample_rows(name):
        text = text_of(sample)
        assert "{{" not in text
        assert "\n\n" not in text
        assert all(m.source.is_file() for m in sample.media if isinstance(m.source, Path))
        assert sample.answer is not None or name == "countdown"


def test_training_and_held_out_scenes_are_other_scenes(tmp_path: Path):
    data = data_of("scenes_counting")
    train, held_out = (open_rows(source, base=tmp_path) for source in (data.train, data.eval))
    seen = {train[i]["image"].tobytes() for i in range(300)}
    assert all(held_out[i]["image"].tobytes() not in seen for i in range(300))


def test_clevr_rows_from_a_file_take_the_place_of_the_hub(tmp_path: Path):
    Image.new("RGBA", (48, 32)).save(tmp_path / "a.png")
    row = {"image": "a.png", "problem": "How many items are there in the image?", "solution": "<answer> 3 </answer>"}
    (tmp_path / "local.jsonl").write_text(json.dumps(row), encoding="utf-8")
    data = data_of("clevr_70k_counting", data__train__path=str(tmp_path / "local.jsonl"))
    sample = opened(data, data.train, tmp_path)[0]
    text = text_of(sample)
    assert text.startswith("How many items are there in the image? First")
    assert "<think>" in text
    assert "\n" not in text
    assert sample.answer == "<answer> 3 </answer>"


def test_the_four_part_prompts_name_the_parts_that_the_graded_reward_looks_for():
    english, chinese = (with_sample_rows(name)[0].messages[0]["content"] for name in ("math12k", "math12k_zh"))
    assert all(part in english for part in ("Understanding", "Idea", "Calculation steps", "Final answer", r"\boxed{}"))
    assert all(part in chinese for part in ("理解题意", "解题思路", "计算步骤", "最终答案", r"\boxed{}"))


def test_the_truth_of_gsm8k_is_what_stands_behind_its_mark():
    assert with_sample_rows("gsm8k")[0].answer == "7"


def test_countdown_gives_the_rewards_their_numbers_and_asks_for_the_target():
    sample = with_sample_rows("countdown")[0]
    assert text_of(sample).startswith("Use the numbers 3, 7, 2, each exactly once")
    assert "make 13" in text_of(sample)
    assert (sample.extras["nums"], sample.extras["target"]) == ([3, 7, 2], 13)


def test_drawings_stand_where_geometry3k_places_them():
    content = with_sample_rows("geometry3k")[0].messages[-1]["content"]
    assert [block["type"] for block in content] == ["image", "text"]
    assert content[1]["text"].endswith(r"\boxed{}.")


def test_sounds_clips_and_boxes_are_what_they_are():
    assert with_sample_rows("avqa")[0].media[0].kind == "audio"
    assert "a beep; rain; a dog; a car" in text_of(with_sample_rows("avqa")[0])
    clip, frames = with_sample_rows("video_counting")
    assert (clip.media[0].kind, len(frames.media[0].source)) == ("video", 2)
    assert with_sample_rows("grounding")[0].answer == [23, 6, 35, 18]
    assert isinstance(with_sample_rows("grounding"), Samples)
