"""Learning to count from reward alone: one object or eight, on held-out scenes.

The same run with a fault planted must not learn: the sign of the advantage, the pictures, or the completions. A short
warm start is shared; it teaches the form of the answer and very little counting.
"""

from __future__ import annotations

import copy
import io
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import mmgrpo
from mmgrpo.grpo import advantages
from mmgrpo.training import learner

pytestmark = pytest.mark.slow

GREEDY, SAMPLED = 0.9, 0.62
"""What accuracy must exceed. Without seeing, one answer for all scenes is right in half of them."""
STEPS = 45
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vision_hidden_size": 48,
    "vision_intermediate_size": 96,
    "vision_depth": 2,
    "vision_num_heads": 4,
}


def scenes(rows, seed):
    """Scenes of one object and of eight, half and half."""
    parts = [
        {"synthetic": "counting", "min_objects": n, "max_objects": n, "rows": rows, "seed": 10 * seed + n}
        for n in (1, 8)
    ]
    return {"mixture": [{"source": part} for part in parts]}


SECTIONS = {
    "model": {
        "name": "tiny:qwen2_5_vl",
        "device": "cpu",
        "sizes": SIZES,
        "freeze": {"vision": False, "projector": False},
    },
    "data": {"train": scenes(30_000, 1), "eval": scenes(60, 2)},
    "warm_start": {
        "data": scenes(30_000, 3),
        "target": "<answer>{{ count }}</answer>",
        "num_steps": 60,
        "batch_size": 32,
        "learning_rate": 3e-3,
        "warmup_steps": 10,
    },
    "rollout": {"num_generations": 8, "max_completion_length": 10},
    "rewards": [{"fn": "rewards/clevr_counting.py:count_accuracy"}],
    "train": {
        "num_steps": 0,
        "prompts_per_step": 32,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 3,
        "save_steps": 1000,
    },
    "eval": {},
    "checks": {"truncated_share": 1.0, "constant_reward_steps": 0},
    "observe": {"progress": False},
}
BLIND_TO_FAULTS = {
    "checks.engine_logprobs": False,
    "checks.packed_equals_plain": False,
    "checks.picture_swap": False,
    "checks.drift_logprobs": 1e9,
}
"""The run would find two of the three faults itself."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A run folder that holds the checkpoint behind the warm start."""
    sections = copy.deepcopy(SECTIONS)
    sections["train"]["output_dir"] = str(tmp_path_factory.mktemp("runs") / "warm")
    return mmgrpo.train(console=Console(file=io.StringIO()), **sections)


@pytest.fixture
def learn(warm, tmp_path):
    """Go on from the warm start with GRPO; give the evaluation at the end."""

    def run(**overrides):
        folder = tmp_path / "run"
        shutil.copytree(warm.path, folder)
        more = {"train.num_steps": STEPS, **overrides}
        return mmgrpo.train(resume=folder, overrides=more, console=Console(file=io.StringIO()))

    return run


def learned(run):
    """Whether the run has learned to count."""
    print(f"greedy {run.after.greedy.accuracy:.3f}, sampled {run.after.sampled.accuracy:.3f}")
    return run.after.greedy.accuracy > GREEDY and run.after.sampled.accuracy > SAMPLED


def test_the_warm_start_alone_has_not_learned(warm):
    assert warm.before.greedy.accuracy < GREEDY
    assert warm.before.sampled.accuracy < SAMPLED
    assert warm.before.greedy.format_rate > 0.9


def test_counting_is_learned_from_reward_alone(learn):
    run = learn()
    assert learned(run)
    assert run.improved()
    assert run.after.sampled.format_rate > 0.8


def test_with_the_advantage_upside_down_nothing_is_learned(learn, monkeypatch):
    honest = advantages.group_advantages
    monkeypatch.setattr(advantages, "group_advantages", lambda *arguments, **more: -honest(*arguments, **more))
    assert not learned(learn(**BLIND_TO_FAULTS))


def test_with_blank_pictures_nothing_is_learned(learn, monkeypatch):
    from transformers import Qwen2_5_VLProcessor

    honest = Qwen2_5_VLProcessor.__call__

    def blank(self, **arguments):
        output = honest(self, **arguments)
        return {**output, "pixel_values": torch.zeros_like(output["pixel_values"])}

    monkeypatch.setattr(Qwen2_5_VLProcessor, "__call__", blank)
    assert not learned(learn(**BLIND_TO_FAULTS))


def test_with_completions_moved_to_other_prompts_nothing_is_learned(learn, monkeypatch):
    honest = learner.pack

    def moved(scored, advantages, **settings):
        """Leave each prompt its advantages, and give it completions of another prompt."""
        completions = [s.group.completions for s in scored]
        others = completions[1:] + completions[:1]
        groups = [replace(s.group, completions=other) for s, other in zip(scored, others, strict=True)]
        scored = [replace(s, group=group) for s, group in zip(scored, groups, strict=True)]
        return honest(scored, advantages, **settings)

    monkeypatch.setattr(learner, "pack", moved)
    assert not learned(learn(**BLIND_TO_FAULTS))
