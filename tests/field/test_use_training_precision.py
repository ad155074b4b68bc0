"""Half precision in use: gradients of steps of many tokens reach the weights as they do in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_policy import FakePolicy, scored_group
from thread_ranks import in_ranks

from mmgrpo.config.loss import Loss
from mmgrpo.config.train import Train
from mmgrpo.errors import TrainingError
from mmgrpo.training import optimizer as optimizer_file
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.supervised import imitate
from mmgrpo.training.update import UpdateSettings, update
from mmgrpo.types import Batch, OptimizerBatch, Segment

MANY = (100_000, 1_000_000)
"""Tokens of an optimizer step that a loss is divided by."""
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
SGD = Train(optim="sgd", learning_rate=1e-6, max_grad_norm=0)


class Recording(Optimizer):
    """Keeps the gradient that the latest optimizer step took."""

    def step(self):
        self.seen = torch.cat([g.double().reshape(-1) / self.loss_scale for _, g in self.gradients()])
        return super().step()


def optimizer_of(policy, dist=None):
    return Recording(
        policy.trainable(), settings=SGD, schedule=Schedule(peak=1e-6), compute_dtype=policy.dtype, dist=dist
    )


def settings_of(**loss):
    return UpdateSettings(loss=Loss(**loss), temperature=1.0, max_completion_length=16)


def step_of(groups, num_tokens):
    advantages = [one.totals - one.totals.mean() for one in groups]
    (step,) = pack(groups, advantages, optimizer_steps=1, max_batch_tokens=1000)
    return replace(step, num_tokens=num_tokens)


def gradient_of(policy, step):
    optimizer = optimizer_of(policy)
    metrics = update(policy, [step], settings=settings_of(), optimizer=optimizer).metrics
    return optimizer.seen, metrics["grad_norm"]


def assert_alike(half, exact):
    cosine = torch.nn.functional.cosine_similarity(half, exact, dim=0)
    lost = ((half == 0) & (exact != 0)).double().mean()
    assert cosine > 0.999 and lost < 0.002, f"cosine {float(cosine):.4f}, {float(lost):.1%} of the gradient is zero"


@HALF
@pytest.mark.parametrize("num_tokens", MANY)
def test_w31_a_step_of_many_tokens_loses_no_gradient_in_half_precision(dtype, num_tokens):
    groups = [scored_group("a", [5, 7, 6, 9], [0.0, 1.0, 0.0, 3.0]), scored_group("b", [8, 5, 9, 6])]
    exact, norm = gradient_of(FakePolicy(torch.float32), step_of(groups, num_tokens))
    half, half_norm = gradient_of(FakePolicy(torch.float32).to(dtype), step_of(groups, num_tokens))
    assert_alike(half, exact)
    assert half_norm == pytest.approx(norm, rel=0.02), "norms are those of the loss, not of the scaled loss"


@HALF
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_w08_w31_a_real_tiny_model_and_its_adapters_too(tiny_policy, make_prompt, make_batch, dtype, tune):
    gradients, adapters = [], {}
    for name in (str(dtype).removeprefix("torch."), "float32"):
        policy = tiny_policy("qwen3", dtype=name, tune=tune, sharp=False)
        with torch.no_grad():  # adapters are drawn anew, in the dtype of the base
            for key, parameter in policy.trainable() if tune == "lora" else ():
                parameter.copy_(adapters.setdefault(key, parameter.clone()))
        (segment,) = make_batch([make_prompt(policy)], [[4, 6]]).segments
        signed = Segment(prompt=segment.prompt, completions=segment.completions, advantages=(1.0, -1.0))
        step = OptimizerBatch(batches=(Batch(segments=(signed,)),), num_tokens=1_000_000, num_sequences=2, learns=True)
        gradients.append(gradient_of(policy, step)[0])
    cosine = torch.nn.functional.cosine_similarity(*gradients, dim=0)
    assert cosine > 0.99, f"cosine {float(cosine):.4f}"


@HALF
def test_w31_the_warm_start_loses_none_either(dtype):
    prompts = [scored_group(name, [1, 1]).group.prompt for name in "ab"]
    rows = [(prompt, torch.tensor([1, 2, 3])) for prompt in prompts]
    seen = []
    for policy in (FakePolicy(torch.float32), FakePolicy(torch.float32).to(dtype)):
        optimizer = optimizer_of(policy)
        # as if other ranks had a million targets more
        optimizer.dist = type("Ranks", (), {"world_size": 1, "any_rank": bool, "all_gather": lambda self, v: [v]})()
        optimizer.dist.all_gather = lambda value: [value, 1_000_000 - 6] if value == 6 else [value]
        optimizer.dist.any_rank = bool
        imitate(policy, rows, max_batch_tokens=1000, optimizer=optimizer)
        seen.append(optimizer.seen)
    assert_alike(seen[1], seen[0])


def test_w08_the_scale_falls_where_a_gradient_overflows_and_the_step_is_taken_all_the_same():
    groups = [scored_group("a", [3, 4])]
    policy = FakePolicy(torch.float32).half()
    optimizer = optimizer_of(policy)
    optimizer.loss_scale = 2.0**30
    before = {name: p.detach().clone() for name, p in policy.trainable()}
    stats = update(policy, [step_of(groups, 7)], settings=settings_of(), optimizer=optimizer)
    exact, _ = gradient_of(FakePolicy(torch.float32), step_of(groups, 7))
    assert 1 < optimizer.loss_scale < 2.0**30 and stats.optimizer_steps == 1
    assert_alike(optimizer.seen, exact)
    masters = optimizer.state_dict()["masters"]
    assert any(not torch.equal(masters[name], value.float()) for name, value in before.items())


def test_w08_the_scale_grows_again_and_is_kept_in_the_checkpoint(monkeypatch):
    monkeypatch.setattr(optimizer_file, "_STEPS_BEFORE_GROWTH", 3)
    policy = FakePolicy(torch.float32).half()
    optimizer = optimizer_of(policy)
    for _ in range(3):
        update(policy, [step_of([scored_group("a", [3, 4])], 7)], settings=settings_of(), optimizer=optimizer)
    assert optimizer.loss_scale == 2.0**17
    resumed = optimizer_of(policy)
    state = optimizer.state_dict()
    resumed.load_state_dict(state)
    assert resumed.loss_scale == 2.0**17
    del state["loss_scale"]  # a checkpoint of an earlier version
    optimizer_of(policy).load_state_dict(state)


def test_w08_a_gradient_that_is_not_finite_at_any_scale_stops_the_run():
    policy = FakePolicy(torch.float32).half()
    policy.spoil = ("grad", "a")
    optimizer = optimizer_of(policy)
    with pytest.raises(TrainingError, match="gradient norm is not finite"):
        update(policy, [step_of([scored_group("a", [3, 4])], 7)], settings=settings_of(), optimizer=optimizer)


def test_w08_all_ranks_lower_the_scale_where_one_overflows():
    groups = [scored_group("a", [3, 4]), scored_group("b", [6, 2])]

    policies = [FakePolicy(torch.float32).half() for _ in range(2)]

    def learn(dist):
        policy = policies[dist.rank]
        optimizer = optimizer_of(policy, dist)
        if dist.rank == 1:
            real = policy.logprobs

            def once(batch, **options):
                policy.logprobs = real
                stats = real(batch, **options)
                stats.logprobs.register_hook(lambda gradient: gradient * float("inf"))
                return stats

            policy.logprobs = once
        local = [replace(one, is_local=place == dist.rank) for place, one in enumerate(groups)]
        update(policy, [step_of(local, 15)], settings=settings_of(), optimizer=optimizer)
        return optimizer.loss_scale, optimizer.seen

    (first_scale, first), (second_scale, second) = in_ranks(learn)
    assert first_scale == second_scale == 2.0**15
    assert first.isfinite().all() and second.isfinite().all()


def test_float32_and_bfloat16_are_not_scaled():
    assert optimizer_of(FakePolicy(torch.float32)).loss_scale == 1
    assert optimizer_of(FakePolicy(torch.float32).bfloat16()).loss_scale == 1
