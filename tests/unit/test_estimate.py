"""The estimate's formulas, worked by hand, and that sizes are those of the model."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.load import load_config
from mmgrpo.config.model import Lora, Model
from mmgrpo.estimate import ModelSizes, Speed, estimate, measure, sizes_of
from mmgrpo.policy.model.loading import load_outline

SIZES = ModelSizes(parameters=1000, trainable=400, layers=2, width=10, vocabulary=50, cache_values=8)
SPEED = Speed(device="cpu", flops=1e6, bytes=1e5, measured=False)


def needs(**overrides: object):
    keys = {
        "model.name": "tiny:x", "model.logprob_chunk_tokens": 1, "train.prompts_per_step": 2,
        "rollout.num_generations": 3, "rollout.max_completion_length": 5, "rollout.max_rows": 6,
    }  # fmt: skip
    config = load_config(None, {**keys, **{key.replace("__", "."): value for key, value in overrides.items()}})
    return estimate(config, SIZES, prompt_tokens=7.0, longest_prompt=9, speed=SPEED, bytes_each=4)


def test_memory_by_hand():
    memory = needs().memory
    assert memory["weights"] == 4000
    assert memory["optimizer and gradients"] == 400 * (4 + 8)
    assert memory["key-value cache"] == 6 * (9 + 5) * 8 * 4
    assert memory["activations"] == 2 * (7 + 3 * 5) * 10 * 2 * 34 * 4 + 1 * 50 * 12
    assert needs().peak_bytes == 4000 + 4800 + memory["activations"]


def test_seconds_by_hand():
    seconds = needs().seconds
    assert seconds["prefill"] == pytest.approx(2 * 1000 * 2 * 7 / 1e6)
    assert seconds["decode"] == pytest.approx(5 * max(4000 / 1e5, 2 * 1000 * 6 / 1e6))
    assert seconds["update"] == pytest.approx(3 * 2 * 1000 * 2 * (7 + 15) / 1e6)
    assert needs().step_seconds == pytest.approx(sum(seconds.values()))


def test_what_saves_memory_or_time_shows():
    assert needs(model__gradient_checkpointing=True).memory["activations"] < needs().memory["activations"]
    assert needs(model__gradient_checkpointing=True).seconds["update"] > needs().seconds["update"]
    assert needs(rollout__max_rows=3).memory["key-value cache"] < needs().memory["key-value cache"]
    assert needs(train__optim="sgd").memory["optimizer and gradients"] == 400 * 4
    many = {"rollout__num_generations": 30}
    assert needs(train__max_batch_tokens=64, **many).memory["activations"] < needs(**many).memory["activations"]


def test_sizes_are_those_of_the_model():
    settings = Model(name="tiny:qwen2_5_vl")
    outline = load_outline(settings)
    sizes = sizes_of(outline.model, outline.family, settings)
    assert sizes.parameters == sum(p.numel() for p in outline.model.parameters())
    assert 0 < sizes.trainable < sizes.parameters, "the encoder is frozen unless said otherwise"
    lora = Model(name="tiny:qwen2_5_vl", tune="lora", lora=Lora(r=2))
    assert sizes_of(outline.model, outline.family, lora).trainable < sizes.trainable / 4


def test_a_device_that_is_here_is_measured_and_another_guessed():
    here = measure("cpu", torch.float32)
    assert here.measured
    assert here.flops > 1e8
    if not torch.cuda.is_available():
        assert not measure("cuda", torch.bfloat16).measured
