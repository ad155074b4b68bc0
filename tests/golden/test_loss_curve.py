"""Twenty steps of the tiny model on the CPU, against a curve that is committed.

A change of the mathematics, of the sampling or of the tiny model moves the curve. Plain gradient descent with a small
step keeps it smooth: AdamW's first steps are signs of gradients and differ between machines. Where the curve moves on
purpose, write it again and say why in the commit:

    OMP_NUM_THREADS=1 .venv/bin/python tests/golden/test_loss_curve.py
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

import mmgrpo

CURVE = Path(__file__).with_name("loss_curve.json")
NAMES = ("loss", "reward", "grad_norm", "kl", "entropy", "completions/mean_length")
SECTIONS = {
    "model": {"name": "tiny:qwen2_5_vl", "device": "cpu", "freeze": {"vision": False, "projector": False}},
    "data": {"train": {"synthetic": "counting", "rows": 1000, "seed": 1}, "prefetch": 0},
    # completions of unequal lengths, so that the loss of a fresh rollout is not zero
    "rollout": {"num_generations": 4, "max_completion_length": 8, "stop": ["e"]},
    "loss": {"beta": 0.1, "num_iterations": 2},
    "train": {
        "num_steps": 20,
        "prompts_per_step": 4,
        "optimizer_steps": 2,
        "optim": "sgd",
        "learning_rate": 0.5,
        "warmup_steps": 3,
        "max_batch_tokens": 400,
        "threads": 1,
    },
    "checks": {"truncated_share": 1.0, "drift_logprobs": 1e9, "constant_reward_steps": 0},
    "observe": {"progress": False},
}


def letters(completions):
    return [sum(c.isalpha() for c in text) / max(len(text), 1) for text in completions]


def curve(folder):
    run = mmgrpo.train(
        None,
        rewards=[letters],
        overrides={"train.output_dir": str(folder)},
        console=Console(file=io.StringIO()),
        **SECTIONS,
    )
    return {name: [row[name] for row in run.metrics()] for name in NAMES}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return curve(tmp_path_factory.mktemp("runs") / "curve")


@pytest.mark.parametrize("name", NAMES)
def test_the_curve_is_the_one_that_is_committed(name, measured):
    committed = json.loads(CURVE.read_text())[name]
    assert len(committed) == 20
    assert measured[name] == pytest.approx(committed, rel=1e-3, abs=1e-6)


def test_the_curve_moves_enough_to_show_a_change(measured):
    assert all(abs(value) > 1e-4 for value in measured["loss"])
    assert max(measured["kl"]) > 1e-3
    assert sum(measured["reward"][-5:]) > sum(measured["reward"][:5]) * 1.02
    assert len(set(measured["completions/mean_length"])) > 5


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        CURVE.write_text(json.dumps(curve(Path(place) / "curve"), indent=1) + "\n", encoding="utf-8")
    print(f"written: {CURVE}")
