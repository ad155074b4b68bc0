"""The figures of a step, against numbers worked by hand."""

import math

import pytest

from mmgrpo.running.step_metrics import completion_metrics, peak_memory_bytes, reward_metrics, step_metrics
from mmgrpo.types import UpdateStats


def test_l04_a_batch_that_spreads_while_no_group_does_shows_both(make_scored):
    figures = reward_metrics([make_scored("a", [1.0, 1.0]), make_scored("b", [4.0, 4.0])])
    assert figures["reward"] == 2.5
    assert figures["reward_std"] == 0.0
    assert figures["reward_batch_std"] == pytest.approx(math.sqrt(3))  # unbiased: sqrt(4 * 1.5^2 / 3)
    assert figures["frac_reward_zero_std"] == 1.0


def test_reward_std_is_the_mean_of_the_groups_standard_deviations(make_scored):
    figures = reward_metrics(
        [make_scored("a", [0.0, 2.0]), make_scored("b", [5.0, 5.0]), make_scored("c", [1.0, 4.0])]
    )
    assert figures["reward_std"] == pytest.approx((math.sqrt(2) + 0 + 3 / math.sqrt(2)) / 3)
    assert figures["frac_reward_zero_std"] == pytest.approx(1 / 3)


def test_each_reward_has_its_own_mean_and_spread_where_it_applies(make_scored):
    nan = math.nan
    rewards = {"x": [1.0, 3.0], "never": [nan, nan], "once": [nan, 2.0]}
    figures = reward_metrics([make_scored("a", [0.0, 1.0], rewards=rewards)])
    assert figures["rewards/x/mean"] == 2.0
    assert figures["rewards/x/std"] == pytest.approx(math.sqrt(2))
    assert figures["rewards/once/mean"] == 2.0
    assert figures["rewards/once/std"] == 0.0
    assert {name: value for name, value in figures.items() if "never" in name} == {"rewards/never/none_share": 1.0}
    assert figures["rewards/once/none_share"] == 0.5


def test_r13_the_share_of_truncated_completions_is_logged(make_scored):
    scored = [
        make_scored("a", [0.0] * 2, lengths=[2, 8], finish=["stop", "length"]),
        make_scored("b", [0.0] * 2, lengths=[8, 4], finish=["length", "stop"]),
    ]
    assert completion_metrics(scored) == {
        "completions/mean_length": 5.5,
        "completions/min_length": 2.0,
        "completions/max_length": 8.0,
        "completions/mean_terminated_length": 3.0,
        "completions/clipped_ratio": 0.5,
    }


def test_no_completion_that_ended_gives_no_terminated_length(make_scored):
    figures = completion_metrics([make_scored("a", [0.0], lengths=[8], finish=["length"])])
    assert figures["completions/mean_terminated_length"] == 0.0
    assert figures["completions/clipped_ratio"] == 1.0


def test_a_step_has_seconds_per_phase_and_their_sum_and_the_updates_metrics(make_scored):
    stats = UpdateStats(
        metrics={"loss": 0.25}, optimizer_steps=2, skipped_optimizer_steps=1, num_tokens=99, seconds=1.0
    )
    figures = step_metrics([make_scored("a", [0.0, 1.0])], stats, {"data": 0.5, "update": 1.5})
    assert figures["loss"] == 0.25
    assert (figures["seconds/data"], figures["seconds/update"], figures["step_time"]) == (0.5, 1.5, 2.0)
    assert (figures["optimizer_steps"], figures["skipped_optimizer_steps"], figures["num_tokens"]) == (2, 1, 99)


def test_peak_memory_is_in_bytes():
    assert 10 * 2**20 < peak_memory_bytes() < 2**40
