from __future__ import annotations

import pytest
import torch

from mmgrpo.config.train import Train
from mmgrpo.errors import TrainingError
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack_segments
from mmgrpo.training.supervised import imitate, target_segment, warm_start


@pytest.fixture
def rows(scored):
    """Three prompts, each with the tokens to write after it."""
    targets = [torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([6, 7, 8, 9, 10])]
    return [(scored(name, [1, 1]).group.prompt, t) for name, t in zip("abc", targets, strict=True)]


def adamw(policy, rate=0.05):
    return Optimizer(policy.trainable(), settings=Train(), schedule=Schedule(peak=rate))


def test_the_policy_learns_to_write_the_targets(policy, rows):
    seen = []
    report = warm_start(
        policy,
        lambda: rows,
        num_steps=60,
        max_batch_tokens=1000,
        optimizer=adamw(policy),
        on_step=lambda s, m: seen.append((s, m["loss"])),
    )
    assert report["loss/first"] > 1.5 and report["loss/last"] < 0.5
    assert report["steps"] == 60 and report["tokens"] == 600
    assert [s for s, _ in seen] == list(range(60)) and seen[-1][1] == report["loss/last"]


def test_the_loss_is_the_mean_over_target_tokens_of_all_rows(policy, rows):
    batch = pack_segments([target_segment(*row) for row in rows], max_batch_tokens=1000)[0]
    with torch.no_grad():
        expected = -float(policy.logprobs(batch, temperature=1.0).logprobs.mean())
    assert imitate(policy, rows, max_batch_tokens=1000, optimizer=adamw(policy))["loss"] == pytest.approx(expected)


def test_micro_batches_of_any_size_take_the_same_step(make_policy, rows):
    moved = []
    for budget in (9, 12, 1000):
        policy = make_policy()
        warm_start(policy, lambda: rows, num_steps=1, max_batch_tokens=budget, optimizer=adamw(policy))
        moved.append(policy.state_dict())
    assert all(torch.allclose(moved[0][k], other[k], rtol=1e-9) for other in moved[1:] for k in other)


def test_the_source_is_asked_once_per_step(policy, rows):
    calls = []
    source = lambda: calls.append(0) or rows  # noqa: E731
    warm_start(policy, source, num_steps=4, max_batch_tokens=100, optimizer=adamw(policy))
    assert len(calls) == 4


def test_a_loss_that_is_not_finite_names_the_row_and_changes_nothing(policy, rows):
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    policy.spoil = ("value", "b")
    with pytest.raises(TrainingError, match=r"samples .*b"):
        imitate(policy, rows, max_batch_tokens=1000, optimizer=adamw(policy))
    assert all(torch.equal(v, before[k]) for k, v in policy.state_dict().items())
