"""Field cases R06 and R13 on whole runs."""

import numpy as np
import pytest
import torch

from mmgrpo import assemble


def test_r06_without_learning_engine_and_trainer_do_not_drift_apart(train, monkeypatch):
    policies = []
    honest = assemble.load_policy
    monkeypatch.setattr(
        assemble, "load_policy", lambda *a, **more: policies.append(honest(*a, **more)) or policies[-1]
    )
    run = train(
        train={"learning_rate": 0.0, "num_steps": 20},
        rollout={"temperature": 0.7},
        checks={"constant_reward_steps": 0},
    )
    gaps = [row["sampling/sampling_logp_difference/mean"] for row in run.metrics()]
    assert len(gaps) == 20
    assert max(gaps) < 1e-5
    assert abs(np.polyfit(range(20), gaps, 1)[0]) < 1e-7
    fresh = assemble.load_policy(policies[0].settings)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(policies[0].trainable(), fresh.trainable(), strict=True))


def test_r06_past_its_bound_the_drift_is_warned_of(train):
    with pytest.warns(UserWarning, match="drift away"):
        train(train={"num_steps": 1}, checks={"drift_logprobs": 1e-12})


def test_r13_the_share_of_truncated_completions_is_logged_and_warned_of_above_a_half(train):
    with pytest.warns(UserWarning, match="hit the length limit"):
        run = train(rollout={"max_completion_length": 3}, checks={"truncated_share": 0.5})
    assert all(0.5 < row["completions/clipped_ratio"] <= 1 for row in run.metrics())
