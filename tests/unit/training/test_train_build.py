from __future__ import annotations

import pytest

from mmgrpo.config.loss import Loss
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.train import Train
from mmgrpo.config.warm_start import WarmStart
from mmgrpo.training.build import (
    build_optimizer,
    build_warm_start_optimizer,
    optimizer_settings,
    update_settings,
    warm_start_settings,
)


def test_the_schedule_spans_all_optimizer_steps_of_the_run(policy):
    train = Train(learning_rate=1.0, lr_scheduler_type="linear", warmup_steps=2, optimizer_steps=4)
    optimizer = build_optimizer(policy.trainable(), train, num_steps=10, num_iterations=3)
    assert (optimizer.schedule.warmup_steps, optimizer.schedule.total_steps) == (24, 120)
    for _ in range(119):
        optimizer.skip()
    assert 0 < optimizer.learning_rate < 0.02
    optimizer.skip()
    assert optimizer.learning_rate == 0


def test_every_optimizer_key_of_the_yaml_arrives():
    train = Train(optim="sgd", weight_decay=0.1, adam_beta1=0.8, adam_beta2=0.7, adam_epsilon=1e-6, max_grad_norm=0.5)
    found = optimizer_settings(train)
    assert all(getattr(found, name) == getattr(train, name) for name in found.__dataclass_fields__)
    assert len(found.__dataclass_fields__) == 6


def test_every_loss_key_of_the_yaml_arrives():
    loss = Loss(loss_type="dr_grpo", epsilon=0.1, epsilon_high=0.3, delta=2.0, beta=0.5, num_iterations=3)
    found = update_settings(loss, Rollout(temperature=0.6, max_completion_length=7), check_finite=False)
    assert all(getattr(found.objective, name) == getattr(loss, name) for name in found.objective.__dataclass_fields__)
    assert (found.temperature, found.max_completion_length, found.num_iterations) == (0.6, 7, 3)
    assert not found.check_finite


def test_the_warm_start_has_its_own_rate_decay_and_length(policy):
    warm = WarmStart(
        data={"synthetic": "counting", "rows": 4}, num_steps=5, learning_rate=0.3, warmup_steps=2, weight_decay=0.2
    )
    optimizer = build_warm_start_optimizer(policy.trainable(), warm, Train(max_grad_norm=0.7, weight_decay=0.9))
    assert optimizer.learning_rate == pytest.approx(0.1)
    assert (optimizer.settings.weight_decay, optimizer.settings.max_grad_norm) == (0.2, 0.7)
    assert optimizer.schedule.total_steps == 5 and optimizer.schedule.kind == "cosine"
    assert (warm_start_settings(warm).num_steps, warm_start_settings(warm).max_batch_tokens) == (5, 16384)
