from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.config.loss import Loss
from mmgrpo.config.train import Train
from mmgrpo.errors import TrainingError
from mmgrpo.training.baseline_logprobs import FirstPass, prepare
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.update import UpdateSettings, update


@pytest.fixture
def sgd(policy):
    settings = Train(optim="sgd", max_grad_norm=0)
    schedule = Schedule(peak=0.5, total_steps=10, kind="linear")
    return Optimizer(policy.trainable(), settings=settings, schedule=schedule)


def how(num_iterations=1, **objective):
    return UpdateSettings(
        loss=Loss(num_iterations=num_iterations, **objective), temperature=1.0, max_completion_length=16
    )


def weights_of(policy):
    return {k: v.clone() for k, v in policy.state_dict().items()}


def same(policy, before):
    return all(torch.equal(v, before[k]) for k, v in policy.state_dict().items())


@pytest.fixture
def packed(scored, centred):
    def make(groups=None, *, optimizer_steps=1, budget=1000, keep_zero=False):
        groups = groups or [scored("a", [3, 5, 2]), scored("b", [4, 4]), scored("c", [6, 1]), scored("d", [2, 2])]
        return pack(
            groups,
            centred(groups),
            optimizer_steps=optimizer_steps,
            max_batch_tokens=budget,
            keep_zero=keep_zero,
        )

    return make


def test_one_optimizer_step_needs_one_forward_per_micro_batch(policy, sgd, packed):
    batches = packed()
    update(policy, batches, settings=how(), optimizer=sgd)
    assert policy.forwards == len(batches[0].batches)


def test_several_optimizer_steps_read_old_logprobs_once_for_all_but_the_first(policy, sgd, packed):
    stats = update(policy, packed(optimizer_steps=2), settings=how(num_iterations=3), optimizer=sgd)
    assert policy.forwards == 1 + 3 * 2  # the second step's old log-probs, then three iterations over both
    assert stats.optimizer_steps == 6


def test_old_logprobs_are_those_before_the_first_optimizer_step(policy, sgd, packed):
    batches = packed(optimizer_steps=2)
    with torch.no_grad():
        before = torch.cat([policy.logprobs(s.batches[0], temperature=1.0).logprobs for s in batches])
    stats = update(policy, batches, settings=how(), optimizer=sgd)
    # The rollout said -1 everywhere, so this mean tells which log-probs were taken as the old ones.
    assert stats.metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(float((before + 1).abs().mean()))
    assert stats.metrics["ratio/max"] > 1.0 + 1e-6


def test_the_first_iteration_has_ratio_one_and_the_second_has_not(policy, sgd, packed):
    one = update(policy, packed(), settings=how(), optimizer=sgd)
    assert one.metrics["ratio/min"] == one.metrics["ratio/max"] == 1.0
    two = update(policy, packed(), settings=how(num_iterations=2), optimizer=sgd)
    assert two.metrics["ratio/min"] < 1.0 < two.metrics["ratio/max"]


def test_the_update_raises_what_was_better_and_lowers_what_was_worse(policy, sgd, packed, scored):
    batches = packed([scored("a", [4, 4], [0.0, 1.0])])
    read = lambda: policy.logprobs(batches[0].batches[0], temperature=1.0).logprobs.detach()  # noqa: E731
    before = read()
    update(policy, batches, settings=how(), optimizer=sgd)
    change = read() - before
    assert change[:4].sum() < 0 < change[4:].sum()


def test_equal_reward_groups_change_nothing_but_time(make_policy, packed, scored):
    dull = scored("dull", [7, 3], [1.0, 1.0])
    moved = []
    for keep in (True, False):
        policy = make_policy()
        optimizer = Optimizer(policy.trainable(), settings=Train(optim="sgd"), schedule=Schedule(peak=0.5))
        update(policy, packed([scored("a", [3, 5]), dull], keep_zero=keep), settings=how(), optimizer=optimizer)
        moved.append(weights_of(policy))
    assert all(torch.allclose(moved[0][k], moved[1][k], rtol=1e-12, atol=1e-14) for k in moved[0])


def test_an_optimizer_step_without_gradient_is_skipped_counted_and_advances_the_schedule(policy, sgd, packed, scored):
    before, rate = weights_of(policy), sgd.learning_rate
    stats = update(policy, packed([scored("a", [3, 5], [1.0, 1.0])]), settings=how(), optimizer=sgd)
    assert (stats.optimizer_steps, stats.skipped_optimizer_steps, policy.forwards) == (0, 1, 0)
    assert same(policy, before) and sgd.learning_rate < rate
    assert stats.metrics["loss"] == 0.0 and stats.metrics["grad_norm"] == 0.0


def test_groups_that_are_left_out_are_counted(policy, sgd, packed, scored):
    groups = [scored("a", [3, 5], [1.0, 1.0]), scored("b", [3, 5]), scored("c", [2, 2], [0.5, 0.5])]
    assert update(policy, packed(groups), settings=how(), optimizer=sgd).metrics["skipped_groups"] == 2.0
    assert update(policy, packed([scored("b", [3, 5])]), settings=how(), optimizer=sgd).metrics["skipped_groups"] == 0


def test_a_skipped_first_step_leaves_the_second_without_an_extra_pass(policy, sgd, packed, scored):
    batches = packed([scored("a", [3, 5], [1.0, 1.0]), scored("b", [3, 5])], optimizer_steps=2)
    stats = update(policy, batches, settings=how(), optimizer=sgd)
    assert policy.forwards == 1 and (stats.optimizer_steps, stats.skipped_optimizer_steps) == (1, 1)


def test_the_reference_is_read_only_when_beta_is_above_zero(policy, sgd, packed):
    update(policy, packed(), settings=how(), optimizer=sgd)
    stats = update(policy, packed(), settings=how(beta=0.1), optimizer=sgd)
    assert policy.forwards == 1 + 2
    assert stats.metrics["kl"] > 0


def test_kl_is_zero_before_the_policy_has_moved(policy, sgd, packed):
    assert update(policy, packed(), settings=how(beta=0.1), optimizer=sgd).metrics["kl"] == pytest.approx(0, abs=1e-12)


def test_kl_draws_the_policy_back_to_the_reference(policy, sgd, packed, scored):
    for _ in range(3):
        update(policy, packed(), settings=how(), optimizer=sgd)
    dull = packed([scored("a", [6, 7], [1.0, 1.0])], keep_zero=True)
    kls = [update(policy, dull, settings=how(beta=1.0), optimizer=sgd).metrics["kl"] for _ in range(5)]
    assert kls[-1] < kls[0]


@pytest.mark.parametrize("kind", ["value", "grad"])
@pytest.mark.parametrize("budget", [16, 1000])
def test_a_number_that_is_not_finite_stops_before_the_step_and_names_the_samples(policy, sgd, packed, kind, budget):
    before = weights_of(policy)
    policy.spoil = (kind, "c")
    with pytest.raises(TrainingError) as caught:
        update(policy, packed(budget=budget), settings=how(), optimizer=sgd)
    assert same(policy, before)
    assert all(p.grad is None for p in policy.parameters())
    named = str(caught.value).split("samples ")[1].splitlines()[0].split(", ")
    assert "c" in named and (budget == 1000 or len(named) < 4)
    assert sgd.steps_taken == 0


def test_training_goes_on_after_an_error_was_caught(policy, sgd, packed, make_policy):
    policy.spoil = ("grad", "c")
    with pytest.raises(TrainingError):
        update(policy, packed(budget=16), settings=how(), optimizer=sgd)
    policy.spoil = None
    update(policy, packed(), settings=how(), optimizer=sgd)
    fresh = make_policy()
    other = Optimizer(fresh.trainable(), settings=sgd.settings, schedule=sgd.schedule)
    update(fresh, packed(), settings=how(), optimizer=other)
    assert same(policy, fresh.state_dict())


def test_an_interrupt_leaves_no_half_summed_gradient(policy, sgd, packed, monkeypatch):
    real, calls = policy.logprobs, []

    def interrupted(batch, **options):
        calls.append(batch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(batch, **options)

    monkeypatch.setattr(policy, "logprobs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        update(policy, packed(budget=16), settings=how(), optimizer=sgd)
    assert all(p.grad is None for p in policy.parameters())


def test_sampling_metrics_compare_engine_and_trainer_by_hand(policy, sgd, packed, scored):
    batches = packed([scored("a", [2, 3])])
    with torch.no_grad():
        gap = policy.logprobs(batches[0].batches[0], temperature=1.0).logprobs + 1.0  # the rollout said -1 everywhere
    metrics = update(policy, batches, settings=how(), optimizer=sgd).metrics
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(float(gap.abs().mean()))
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(float(gap.abs().max()))
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(float(gap.exp().mean()))


def test_metrics_do_not_depend_on_the_cut_into_micro_batches(make_policy, packed):
    found = []
    for budget in (14, 1000):
        policy = make_policy()
        optimizer = Optimizer(policy.trainable(), settings=Train(optim="sgd"), schedule=Schedule(peak=0.5))
        settings = how(num_iterations=2, beta=0.1)
        found.append(update(policy, packed(budget=budget), settings=settings, optimizer=optimizer).metrics)
    skipped = {k for k in found[0] if k.endswith("seconds")}
    assert {k: found[0][k] for k in found[0].keys() - skipped} == pytest.approx(
        {k: found[1][k] for k in found[1].keys() - skipped}, rel=1e-9, abs=1e-12
    )


def test_tokens_counts_and_rate_are_reported(policy, sgd, packed):
    batches = packed()
    stats = update(policy, batches, settings=how(num_iterations=2), optimizer=sgd)
    assert stats.num_tokens == 2 * batches[0].batches[0].num_tokens
    assert stats.metrics["learning_rate"] == pytest.approx(0.5 * 0.9)
    assert stats.metrics["grad_norm"] > 0 and stats.seconds > 0
    assert 0 < stats.metrics["entropy"] < 2.4  # log 11


def test_finite_check_can_be_switched_off(policy, sgd, packed):
    policy.spoil = ("value", "c")
    settings = UpdateSettings(loss=Loss(), temperature=1.0, max_completion_length=16, check_finite=False)
    assert update(policy, packed(), settings=settings, optimizer=sgd).optimizer_steps == 1


def test_old_logprobs_are_read_before_a_step_that_another_process_alone_learns_from(policy, packed, scored):
    batches = packed(optimizer_steps=2)
    first = replace(batches[0], batches=())  # of another process: the policy moves, and nothing of it is read here
    micros, _ = prepare(policy, [first, batches[1]], temperature=1.0, with_reference=False)
    assert all(not isinstance(micro.old_logprobs, FirstPass) for micro in micros[1])
