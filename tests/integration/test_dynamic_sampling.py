"""A run with dynamic sampling learns from full steps, says what it replaced, and goes on where it stood."""

from __future__ import annotations

import pytest
import torch


def odd_is_easy(completions, answer):
    """Rows with an odd answer are always right; the others earn by the letters of the text."""
    letters = [sum(c.isalpha() for c in text) / max(len(text), 1) for text in completions]
    return [1.0 if a % 2 else share for share, a in zip(letters, answer, strict=True)]


ROWS = [{"problem": f"Write {i}.", "solution": i} for i in range(12)]


@pytest.fixture
def sampled(train):
    """Train on rows of which every other one teaches nothing."""

    def run(name, *, dynamic=True, **changes):
        return train(
            name, train_rows=ROWS, rewards=[odd_is_easy], data={"eval": None, "shuffle": False},
            rollout={"dynamic_sampling": dynamic}, checks={"picture_swap": False}, **changes,
        )  # fmt: skip

    return run


def test_steps_are_full_of_groups_that_teach_and_say_what_was_replaced(sampled):
    assert [row["frac_reward_zero_std"] for row in sampled("plain", dynamic=False).metrics()] == [0.5] * 3
    rows = sampled("full").metrics()
    assert [row["frac_reward_zero_std"] for row in rows] == [0.0] * 3
    # each step draws two rows, of which one teaches, and then one at a time until another does
    assert [row["dynamic_sampling/replaced_groups"] for row in rows] == [1.0, 2.0, 2.0]
    assert [row["dynamic_sampling/rollouts"] for row in rows] == [2.0, 3.0, 3.0]
    assert all(row["reward"] < row["dynamic_sampling/reward_all"] for row in rows), "what was replaced earned 1"


def test_what_is_missing_after_the_last_time_is_filled_up(train):
    with pytest.warns(UserWarning, match="not one optimizer step was taken"):
        run = train(
            "equal", rewards=[lambda completions: [1.0] * len(completions)], data={"eval": None},
            rollout={"dynamic_sampling": True, "max_resample_times": 2}, train={"num_steps": 1},
        )  # fmt: skip
    (row,) = run.metrics()
    assert (row["dynamic_sampling/rollouts"], row["dynamic_sampling/replaced_groups"]) == (3, 4)
    assert (row["frac_reward_zero_std"], row["optimizer_steps"]) == (1, 0)


def test_a_resumed_run_draws_the_rows_of_the_straight_one(sampled):
    steady = {"lr_scheduler_type": "constant", "save_steps": 1}
    straight = sampled("straight", train={"num_steps": 4, **steady})
    stopped = sampled("stopped", train={"num_steps": 4, **steady}, on_step=lambda step, metrics: step < 2)
    resumed = sampled("stopped", resume=stopped.path)
    for (_, one), (_, two) in zip(straight.policy.trainable(), resumed.policy.trainable(), strict=True):
        assert torch.equal(one, two)
    names = ("reward", "dynamic_sampling/replaced_groups", "dynamic_sampling/reward_all")
    assert [[row[n] for n in names] for row in straight.metrics()] == [
        [row[n] for n in names] for row in resumed.metrics()
    ]
