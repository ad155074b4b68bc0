"""Metrics of training in use: what is joined is weighted by what it was counted over."""

from __future__ import annotations

import math

import pytest
import torch
from packed_loss import loss_of
from small_policy import FakePolicy, scored_group

import mmgrpo
from mmgrpo.config.loss import Loss
from mmgrpo.config.train import Train
from mmgrpo.grpo.inputs import Counts
from mmgrpo.metrics import Mean
from mmgrpo.reward.score import RewardSum
from mmgrpo.running.step_metrics import joined_metrics
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.update import UpdateSettings, update


def test_w12_rooms_and_files_are_imported_by_their_dotted_names():
    import mmgrpo.evaluation.results as results
    import mmgrpo.training.update as file

    assert file.__name__ == "mmgrpo.training.update" and results.__name__ == "mmgrpo.evaluation.results"
    assert mmgrpo.training.update is file
    assert callable(mmgrpo.train) and callable(mmgrpo.evaluate), "the functions keep their names"


def test_w13_what_ranks_measured_is_weighted_by_what_they_counted():
    assert joined_metrics([{"x": Mean(0.5, 1)}, {"x": Mean(0.0, 99)}]) == {"x": pytest.approx(0.005)}
    assert joined_metrics([{"x": Mean(0.5, 1)}, {}]) == {"x": 0.5}
    parts = [{"a/errors": 1.0, "a/seconds": 2.0, "b/max": 1.0}, {"a/errors": 2.0, "a/seconds": 1.0, "b/max": 3.0}]
    assert joined_metrics(parts) == {"a/errors": 3.0, "a/seconds": 2.0, "b/max": 3.0}


def entropies(policy, groups, settings):
    """Entropy of the policy at each token of groups."""
    (step,) = pack(groups, [one.totals for one in groups], optimizer_steps=1, max_batch_tokens=1000, keep_zero=True)
    with torch.no_grad():
        return torch.cat([policy.logprobs(b, temperature=1.0, entropy=True).entropy for b in step.batches])


def test_w13_entropy_kl_and_ratios_of_uneven_optimizer_steps_are_those_of_all_tokens():
    groups = [scored_group("short", [1, 1]), scored_group("long", [30, 40])]
    policy = FakePolicy()
    with torch.no_grad():
        policy.head.weight.mul_(3.0)  # away from the reference, so that there is a KL
    advantages = [one.totals - one.totals.mean() for one in groups]
    batches = pack(groups, advantages, optimizer_steps=2, max_batch_tokens=1000)
    still = Train(optim="sgd", max_grad_norm=0)
    optimizer = Optimizer(policy.trainable(), settings=still, schedule=Schedule(peak=0.0))
    settings = UpdateSettings(loss=Loss(beta=0.1), temperature=1.0, max_completion_length=64)
    metrics = update(policy, batches, settings=settings, optimizer=optimizer).metrics
    expected = entropies(policy, groups, settings)
    assert metrics["entropy"] == pytest.approx(float(expected.mean()), rel=1e-9)
    steps = [entropies(policy, [one], settings).mean() for one in groups]
    assert abs(float(sum(steps)) / 2 - float(expected.mean())) > 1e-3, "the steps must differ, or the test is too easy"
    whole = pack(groups, advantages, optimizer_steps=1, max_batch_tokens=1000)
    together = update(policy, whole, settings=settings, optimizer=optimizer).metrics
    for name in ("kl", "entropy", "ratio/mean", "clip_ratio/region_mean"):
        assert metrics[name] == pytest.approx(together[name], rel=1e-9), name


def test_w13_what_a_reward_logs_is_weighted_by_the_completions_of_each_call(tmp_path):
    (tmp_path / "own.py").write_text(
        "def own(completions, log_metric):\n"
        "    log_metric('share', 1.0 if len(completions) > 2 else 0.0)\n"
        "    return [0.0] * len(completions)\n"
    )
    from mmgrpo.config.rewards import Reward

    groups = [scored_group("a", [1] * 6).group, scored_group("b", [1, 1]).group]
    rewards = RewardSum.from_config([Reward(fn="own.py:own", workers=1)], tmp_path)  # workers score group by group
    try:
        rewards.score(groups)
        assert rewards.metrics()["share"] == Mean(0.75, 8)
    finally:
        rewards.close()


def test_m03_reward_std_and_the_kl_term_are_told_beside_those_of_trl():
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "coming_from_trl.md").read_text(encoding="utf-8")
    assert "use_bias_correction_kl" in text and "TRL's `reward_std` (1.16)" in text.replace("\n ", "")
    assert "`reward_std` is TRL's" not in text


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_m03_the_kl_term_is_multiplied_by_the_ratio_where_asked(level):
    now, old, ref = (torch.tensor(v, dtype=torch.float64) for v in ([-1.0, -2.5, -3], [-1.5, -2, -3], [-2, -2, -3]))
    sequence, mask = torch.tensor([0, 0, 0]), torch.tensor([True, True, False])
    now.requires_grad_()
    counts = Counts(num_tokens=2, num_sequences=1, max_completion_length=3)
    setting = {"beta": 0.5, "use_bias_correction_kl": True, "importance_sampling_level": level}
    found = loss_of(now, old, torch.zeros(1), sequence, mask, counts=counts, ref=ref, **setting)
    found.loss.backward()

    def by_hand(a, b):
        steps = (a + 1.5, b + 2.0)  # now - old
        ratios = [math.exp(s) for s in steps] if level == "token" else [math.exp(sum(steps) / 2)] * 2
        kls = [math.exp(r - n) - (r - n) - 1 for r, n in ((-2, a), (-2, b))]
        return 0.5 * sum(k * w for k, w in zip(kls, ratios, strict=True)) / 2

    assert found.loss.item() == pytest.approx(by_hand(-1.0, -2.5), rel=1e-12)
    slope = (by_hand(-1.0 + 1e-6, -2.5) - by_hand(-1.0 - 1e-6, -2.5)) / 2e-6
    assert now.grad[0].item() == pytest.approx(slope, rel=1e-6), "the ratio is differentiated, too"
