"""The length of a run, and how completions are drawn, from the configuration."""

import pytest

from mmgrpo.config.rollout import Rollout
from mmgrpo.config.train import Train
from mmgrpo.errors import ConfigError
from mmgrpo.running.settings import num_steps, sampling_of


@pytest.mark.parametrize(
    ("epochs", "rows", "per_step", "steps"), [(1, 16, 8, 2), (1, 17, 8, 3), (0.5, 16, 8, 1), (3, 10, 8, 4)]
)
def test_epochs_are_turned_into_steps(epochs, rows, per_step, steps):
    assert num_steps(Train(num_epochs=epochs, prompts_per_step=per_step), rows) == steps


def test_steps_that_are_said_count_whatever_the_rows():
    assert num_steps(Train(num_steps=0), 99) == 0
    assert num_steps(Train(num_steps=7), 1) == 7


def test_a_run_without_a_length_is_refused():
    with pytest.raises(ConfigError, match=r"train\.num_steps or train\.num_epochs"):
        num_steps(Train(), 10)


def test_every_key_of_the_rollout_that_shapes_sampling_arrives():
    rollout = Rollout(
        max_completion_length=9, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, repetition_penalty=1.2, stop=("x",),
        seed=4,
    )  # fmt: skip
    found = sampling_of(rollout)
    for name in ("max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop"):
        assert getattr(found, name) == getattr(rollout, name)
    assert (found.seed, found.stream) == (4, "train")
