from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from mmgrpo.config.train import Train
from mmgrpo.errors import CheckpointError, TrainingError
from mmgrpo.training.optimizer import Optimizer, Schedule, learning_rate_at


def weights(dtype=torch.float32, **shapes):
    generator = torch.Generator().manual_seed(0)
    return [(n, nn.Parameter(torch.randn(s, generator=generator).to(dtype))) for n, s in shapes.items()]


def built(named, *, rate=0.1, **settings):
    return Optimizer(named, settings=Train(**settings), schedule=Schedule(peak=rate))


def give_gradients(named, value=1.0):
    for _, parameter in named:
        parameter.grad = torch.full_like(parameter, value)


def test_warm_up_rises_from_above_zero_to_the_peak():
    rates = [learning_rate_at(s, peak=4.0, warmup_steps=3, total_steps=9, kind="constant") for s in range(6)]
    assert rates == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_falling_schedules_end_one_step_after_the_last_and_stay_at_zero(kind):
    rates = [learning_rate_at(s, peak=1.0, warmup_steps=2, total_steps=10, kind=kind) for s in range(12)]
    assert rates[2] == 1.0 and all(a > b for a, b in pairwise(rates[2:11]))
    assert rates[9] > 0 and rates[10] == pytest.approx(0, abs=1e-12) and rates[11] == pytest.approx(0, abs=1e-12)


def test_cosine_is_at_half_the_peak_half_way():
    assert learning_rate_at(5, peak=2.0, warmup_steps=0, total_steps=10, kind="cosine") == pytest.approx(1.0)


def test_sgd_takes_the_step_worked_by_hand():
    named = [("w", nn.Parameter(torch.tensor([[1.0, 2.0]])))]
    optimizer = built(named, rate=0.5, optim="sgd", max_grad_norm=0)
    named[0][1].grad = torch.tensor([[3.0, 4.0]])
    assert optimizer.step() == pytest.approx(5.0)
    assert named[0][1].tolist() == [[-0.5, 0.0]]


def test_clipping_scales_the_global_norm_and_reports_it_unclipped():
    named = [("a", nn.Parameter(torch.zeros(1, 1))), ("b", nn.Parameter(torch.zeros(1, 1)))]
    optimizer = built(named, rate=1.0, optim="sgd", max_grad_norm=1.0)
    named[0][1].grad, named[1][1].grad = torch.tensor([[3.0]]), torch.tensor([[4.0]])
    assert optimizer.step() == pytest.approx(5.0)
    moved = [-float(p.detach()) for _, p in named]
    assert moved == pytest.approx([0.6, 0.8], rel=1e-5)


def test_norms_and_biases_do_not_decay_and_matrices_do():
    named = weights(weight=(3, 3), bias=(3,), gain=(3,))
    named += [("vision.norm.proj", nn.Parameter(torch.ones(2, 2)))]
    before = {n: p.detach().clone() for n, p in named}
    optimizer = built(named, rate=0.1, weight_decay=0.5)
    give_gradients(named, 0.0)
    optimizer.step()
    assert torch.allclose(named[0][1], before["weight"] * 0.95)
    assert all(torch.equal(p, before[n]) for n, p in named[1:])


def test_adamw_equals_torch_over_ten_steps():
    ours, theirs = weights(w=(4, 3)), weights(w=(4, 3))
    optimizer = built(ours, rate=0.03, weight_decay=0.1, adam_beta2=0.95, max_grad_norm=0)
    reference = torch.optim.AdamW([theirs[0][1]], lr=0.03, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(10):
        for named in (ours, theirs):
            give_gradients(named, math.sin(step))
        optimizer.step()
        reference.step()
    assert torch.allclose(ours[0][1], theirs[0][1], rtol=1e-6, atol=1e-8)  # torch's loop rounds at other places


def test_small_updates_of_bfloat16_weights_add_up_in_the_master_copy():
    named = [("w", nn.Parameter(torch.ones(1, 1, dtype=torch.bfloat16)))]
    optimizer = built(named, rate=1e-4, optim="sgd", max_grad_norm=0)
    for _ in range(200):
        give_gradients(named, -1.0)
        optimizer.collect()
        optimizer.step()
    # 1e-4 is far below half a unit in the last place of 1.0 (2^-8): plain bfloat16 would not have moved at all.
    assert float(named[0][1].detach()) == pytest.approx(1.02, abs=2**-8)
    assert named[0][1].dtype == torch.bfloat16


def test_gradients_of_bfloat16_weights_are_summed_in_float32():
    named = [("w", nn.Parameter(torch.zeros(1, 1, dtype=torch.bfloat16)))]
    optimizer = built(named)
    for value in [1.0, *([2.0**-9] * 64)]:
        give_gradients(named, value)
        optimizer.collect()
    ((_, gradient),) = optimizer.gradients()
    assert gradient.item() == 1.0 + 64 * 2.0**-9
    assert named[0][1].grad is None


def test_skipping_advances_the_schedule_and_moves_nothing():
    named = weights(w=(2, 2))
    before = named[0][1].detach().clone()
    schedule = Schedule(peak=1.0, total_steps=4, kind="linear")
    optimizer = Optimizer(named, settings=Train(), schedule=schedule)
    give_gradients(named)
    optimizer.skip()
    assert optimizer.learning_rate == 0.75
    assert torch.equal(named[0][1], before) and named[0][1].grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_optimizer_continues_bit_for_bit(dtype):
    straight, stopped = weights(dtype, w=(5, 4), b=(4,)), weights(dtype, w=(5, 4), b=(4,))
    one, two = built(straight, rate=0.01), built(stopped, rate=0.01)
    for step in range(6):
        give_gradients(straight, math.sin(step + 1))
        one.collect()
        one.step()
    for step in range(6):
        if step == 3:
            saved = [(n, nn.Parameter(p.detach().clone())) for n, p in stopped]
            resumed = built(saved, rate=0.01)
            resumed.load_state_dict(two.state_dict())
            stopped, two = saved, resumed
        give_gradients(stopped, math.sin(step + 1))
        two.collect()
        two.step()
    assert two.steps_taken == 6
    masters = [o.state_dict()["masters"] for o in (one, two)]
    assert all(torch.equal(masters[0][n], masters[1][n]) for n in masters[0])
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(straight, stopped, strict=True))


def test_resuming_keeps_the_settings_of_now():
    named = weights(w=(2, 2))
    resumed = built(named, weight_decay=0.5)
    resumed.load_state_dict(built(weights(w=(2, 2))).state_dict())
    give_gradients(named, 0.0)
    before = named[0][1].detach().clone()
    resumed.step()
    assert torch.allclose(named[0][1], before * 0.95)


def test_a_state_of_other_weights_is_refused_by_name():
    with pytest.raises(CheckpointError, match="lora_b"):
        built(weights(w=(2, 2))).load_state_dict(built(weights(w=(2, 2), lora_b=(2, 2))).state_dict())


def test_a_state_of_another_optimizer_is_refused():
    with pytest.raises(CheckpointError, match="sgd"):
        built(weights(w=(2, 2))).load_state_dict(built(weights(w=(2, 2)), optim="sgd").state_dict())


def test_nothing_to_train_is_an_error():
    with pytest.raises(TrainingError, match="Nothing can be trained"):
        built([])
