from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.config.loss import Loss
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.train import Train
from mmgrpo.grpo.advantages import GroupAdvantages
from mmgrpo.parallel.strategy import Single
from mmgrpo.training.learner import Learner


def learner_of(policy, *, loss=None, train=None, rollout=None, **options):
    settings = {"loss": loss or Loss(), "rollout": rollout or Rollout(), "train": train or Train()}
    return Learner(policy, **settings, **{"check_finite": True, "dist": Single(), **options})


def learn(learner, groups):
    return learner.learn(groups, GroupAdvantages().compute(groups))


def test_the_schedule_spans_all_optimizer_steps_of_the_run(policy):
    train = Train(learning_rate=1.0, lr_scheduler_type="linear", warmup_steps=2, optimizer_steps=4, prompts_per_step=4)
    learner = learner_of(policy, train=train, loss=Loss(num_iterations=3))
    learner.start(10)
    optimizer = learner.optimizer
    assert (optimizer.schedule.warmup_steps, optimizer.schedule.total_steps) == (24, 120)
    for _ in range(119):
        optimizer.skip()
    assert 0 < optimizer.learning_rate < 0.02
    optimizer.skip()
    assert optimizer.learning_rate == 0


def test_the_optimizer_reads_the_train_section_itself(policy):
    train = Train(optim="sgd", weight_decay=0.1, max_grad_norm=0.5)
    learner = learner_of(policy, train=train)
    learner.start(1)
    assert learner.optimizer.settings is train


def test_temperature_and_longest_completion_are_those_of_the_rollout(policy, scored, monkeypatch):
    seen = []
    real = policy.logprobs
    monkeypatch.setattr(policy, "logprobs", lambda batch, **options: seen.append(options) or real(batch, **options))
    losses = []
    for longest in (7, 14):
        loss = Loss(loss_type="dr_grpo", scale_rewards="none")
        learner = learner_of(policy, loss=loss, rollout=Rollout(temperature=0.6, max_completion_length=longest))
        learner.start(1)
        learner.optimizer.schedule = replace(learner.optimizer.schedule, peak=0.0)
        losses.append(learn(learner, [scored("a", [3, 4])]).metrics["loss"])
    assert {options["temperature"] for options in seen} == {0.6}
    assert losses[0] == pytest.approx(2 * losses[1])


def test_several_optimizer_steps_and_iterations_are_taken(policy, scored):
    train = Train(optimizer_steps=2, prompts_per_step=2)
    learner = learner_of(policy, train=train, loss=Loss(num_iterations=3))
    learner.start(1)
    assert learn(learner, [scored("a", [3, 4]), scored("b", [2, 2])]).optimizer_steps == 6
    assert learner.has_learned


def test_a_loss_that_reads_the_entropy_gets_it_with_its_gradient(policy, scored):
    def bonus(inputs, settings):
        assert inputs.entropy.requires_grad
        return -inputs.entropy

    bonus.needs_entropy = True
    learner = learner_of(policy, surrogate=bonus, train=Train(optim="sgd", learning_rate=0.5, max_grad_norm=0))
    learner.start(1)
    groups = [scored("a", [3, 4], [1.0, 1.0])]  # no advantage: only the entropy moves the weights
    before, after = (learn(learner, groups).metrics["entropy"] for _ in range(2))
    assert after > before


def test_a_device_without_memory_is_one_sentence_with_the_key(policy, scored, monkeypatch):
    def broken(batch, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(policy, "logprobs", broken)
    learner = learner_of(policy)
    learner.start(1)
    with pytest.raises(RuntimeError, match=r"(?s)ran out of memory.*Lower train\.max_batch_tokens"):
        learn(learner, [scored("a", [3, 4])])
