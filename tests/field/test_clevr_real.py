"""Real input through the shipped examples: CLEVR pictures in R1-V's columns, and the questions of easy-VQA."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

import mmgrpo
from mmgrpo.cli import main

ROOT = Path(mmgrpo.__file__).resolve().parent.parent
DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")).absolute()
QUESTION = "How many items are there in the image?"
SMALL = [
    "rollout.num_generations=4",
    "rollout.max_completion_length=8",
    "train.num_steps=3",
    "train.prompts_per_step=2",
    "checks.truncated_share=1.0",
    "observe.log_steps=1",
]
needs_clevr = pytest.mark.skipif(not (DATA / "clevr").is_dir(), reason=f"{DATA}/clevr is not here")


@pytest.fixture
def local(tmp_path):
    """R1-V's rows beside copies of CLEVR pictures: image, problem, solution."""
    labels = [json.loads(line) for line in (DATA / "clevr" / "labels.jsonl").read_text().splitlines()]
    chosen = [row for row in labels if row["image"].startswith("train/")][:12]
    (tmp_path / "pictures").mkdir()
    rows = []
    for row in chosen:
        shutil.copy(DATA / "clevr" / row["image"], tmp_path / "pictures")
        name = f"pictures/{Path(row['image']).name}"
        rows.append({"image": name, "problem": QUESTION, "solution": f"<answer> {row['count']} </answer>"})
    path = tmp_path / "clevr.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@needs_clevr
def test_the_rehearsal_of_clevr_70k_trains_three_steps_on_the_cpu(local, tmp_path):
    folder = tmp_path / "runs" / "clevr"
    words = [
        "model.name=tiny:qwen2_5_vl",
        f"data.train.path={local}",
        "model.device=cpu",
        f"train.output_dir={folder}",
    ]
    assert main(["train", str(ROOT / "examples" / "clevr_70k_counting.yaml"), *words, *SMALL]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["checks/picture_swap/max"] > 0
    assert {"rewards/count_accuracy/mean", "rewards/think_answer/mean", "kl"} <= set(rows[0])
    assert all(math.isfinite(row["grad_norm"]) for row in rows)
    completions = [
        json.loads(line) for line in (folder / "completions" / "step_000001.jsonl").read_text().splitlines()
    ]
    assert Path(completions[0]["media"][0]).parent == local.parent / "pictures"
    assert completions[0]["answer"].startswith("<answer> ")


@needs_clevr
def test_a_picture_of_480_by_320_costs_187_tokens_as_the_example_says(local, tmp_path):
    with Image.open(local.parent / json.loads(local.read_text().splitlines()[0])["image"]) as picture:
        assert (picture.size, picture.mode) == ((480, 320), "RGBA")
    config = ROOT / "examples" / "clevr_70k_counting.yaml"
    overrides = [*SMALL, "model.name=tiny:qwen2_5_vl", f"data.train.path={local}", "train.num_steps=0"]
    run = mmgrpo.train(config, overrides=[*overrides, f"train.output_dir={tmp_path / 'runs' / 'x'}", "loss.beta=0"])
    prompt = run.assembly.build_prompt(run.samples()[0])
    assert run.policy.family_info.count_media_tokens(prompt.token_ids)["image"] == 187
    assert prompt.media[0].data.mode == "RGB"
    assert QUESTION in prompt.text


@pytest.mark.filterwarnings("ignore:The policy is as it was")  # three steps of a policy that answers nothing yet
def test_easy_vqa_trains_three_steps(tmp_path):
    pytest.importorskip("easy_vqa", reason="the package easy-vqa is not installed")
    words = [
        "warm_start.num_steps=2",
        "warm_start.batch_size=8",
        "eval.limit=6",
        "eval.sampled=false",
        f"train.output_dir={tmp_path / 'runs' / 'vqa'}",
    ]
    run = mmgrpo.train(ROOT / "examples" / "easy_vqa.yaml", overrides=[*SMALL, *words])
    assert run.steps == 3
    assert run.after.greedy.rows == 6
    assert {row.answer for row in run.after.greedy_rows} <= {
        "circle", "rectangle", "triangle", "yes", "no", "red", "green", "blue", "black", "gray", "teal", "brown",
        "yellow",
    }  # fmt: skip
