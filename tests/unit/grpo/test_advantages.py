import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgrpo.grpo.advantages import group_advantages, reward_statistics

SCALES = ["group", "batch", "none"]
steady = settings(deadline=None, derandomize=True)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def scored(draw):
    """Rewards and groups of 2 to 5 completions, in any order."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    group = draw(st.permutations([7 * g for g, size in enumerate(sizes) for _ in range(size)]))
    values = st.floats(-8, 8, width=32) | st.just(math.nan)
    rewards = draw(st.lists(values, min_size=len(group), max_size=len(group)))
    return f64(rewards), torch.tensor(group)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.7, -1e6, 1e-30, 3.3333333])
def test_equal_rewards_give_exact_zeros(value, dtype, scale):
    for size in (2, 3, 7, 8):
        group = torch.zeros(size, dtype=torch.int64)
        rewards = torch.full((size,), value, dtype=dtype)
        found = group_advantages(rewards, group, scale=scale)
        assert found.dtype == dtype
        assert not found.any()
        assert reward_statistics(rewards, group).frac_reward_zero_std == 1.0


def test_equal_groups_give_exact_zeros_beside_unequal_ones():
    rewards, group = f64([0.1, 0.1, 0.1, 0.3, 0.4, 0.9]), torch.tensor([0, 0, 0, 1, 1, 1])
    for scale in SCALES:
        found = group_advantages(rewards, group, scale=scale)
        assert not found[:3].any() and found[3:].abs().min() > 0.01


def test_a_group_of_one_completion_is_refused_by_name():
    with pytest.raises(ValueError, match="fewer than two completions has nothing to compare") as error:
        group_advantages(f64([1, 2, 3]), torch.tensor([4, 17, 4]))
    assert "group 17" in str(error.value)


@pytest.mark.parametrize("scale", SCALES)
def test_a_single_known_reward_has_nothing_to_compare(scale):
    rewards, group = f64([math.nan, 5, math.nan, 1, 2]), torch.tensor([0, 0, 0, 1, 1])
    found = group_advantages(rewards, group, scale=scale)
    assert not found[:3].any()
    assert found[3] < 0 < found[4]


@pytest.mark.parametrize("scale", SCALES)
def test_rewards_that_are_all_missing_give_zeros(scale):
    found = group_advantages(f64([math.nan] * 4), torch.tensor([0, 0, 1, 1]), scale=scale)
    assert found.tolist() == [0, 0, 0, 0]


def test_no_completions_give_no_advantages():
    assert group_advantages(f64([]), torch.tensor([], dtype=torch.int64)).shape == (0,)


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="group or batch or none"):
        group_advantages(f64([1, 2]), torch.tensor([0, 0]), scale="std")


def test_eps_is_added_to_the_deviation():
    found = group_advantages(f64([0, 2]), torch.tensor([0, 0]), eps=1.0)
    assert found.tolist() == pytest.approx([-1 / (math.sqrt(2) + 1), 1 / (math.sqrt(2) + 1)])


@steady
@given(scored(), st.sampled_from(SCALES))
def test_advantages_are_finite_and_sum_to_zero_in_each_group(case, scale):
    rewards, group = case
    found = group_advantages(rewards, group, scale=scale)
    assert found.isfinite().all()
    assert not found[rewards.isnan()].any()
    for g in group.unique():
        assert found[group == g].sum().item() == pytest.approx(0, abs=1e-8)


@steady
@given(scored(), st.sampled_from(SCALES), st.randoms(use_true_random=False))
def test_permuting_completions_permutes_advantages(case, scale, random):
    rewards, group = case
    order = torch.tensor(random.sample(range(len(group)), len(group)))
    straight = group_advantages(rewards, group, scale=scale)
    permuted = group_advantages(rewards[order], group[order], scale=scale)
    torch.testing.assert_close(permuted, straight[order], rtol=1e-9, atol=1e-9)


@steady
@given(scored(), st.sampled_from(SCALES), st.integers(-1000, 1000))
def test_adding_a_constant_to_all_rewards_changes_nothing(case, scale, shift):
    rewards, group = case
    moved = group_advantages(rewards + shift, group, scale=scale)
    # The shift itself rounds rewards by up to 1e-13, and a std near 0 divides that by eps.
    torch.testing.assert_close(moved, group_advantages(rewards, group, scale=scale), rtol=1e-6, atol=1e-8)


@steady
@given(scored(), st.sampled_from([0.25, 2.0, 64.0]))
def test_scaling_rewards_scales_only_the_undivided_advantages(case, factor):
    rewards, group = case
    plain = group_advantages(rewards, group, scale="none")
    torch.testing.assert_close(group_advantages(rewards * factor, group, scale="none"), plain * factor)
    for scale in ("group", "batch"):
        found = group_advantages(rewards * factor, group, scale=scale, eps=1e-4 * factor)
        torch.testing.assert_close(found, group_advantages(rewards, group, scale=scale, eps=1e-4))


@steady
@given(scored())
def test_other_groups_do_not_matter_unless_the_batch_std_is_taken(case):
    rewards, group = case
    own = group == group[0]
    for scale in ("group", "none"):
        alone = group_advantages(rewards[own], group[own], scale=scale)
        torch.testing.assert_close(group_advantages(rewards, group, scale=scale)[own], alone)


@steady
@given(scored())
def test_zero_std_share_counts_the_groups_that_teach_nothing(case):
    rewards, group = case
    advantages = group_advantages(rewards, group)
    silent = [not advantages[group == g].any() for g in group.unique()]
    assert reward_statistics(rewards, group).frac_reward_zero_std == pytest.approx(sum(silent) / len(silent))


def test_statistics_of_missing_rewards():
    found = reward_statistics(f64([math.nan, 3, 1, math.nan]), torch.tensor([0, 0, 1, 1]))
    assert (found.mean, found.group_std, found.frac_reward_zero_std) == (2, 0, 1)
    assert found.batch_std == pytest.approx(math.sqrt(2))


def test_statistics_under_their_logged_names():
    found = reward_statistics(f64([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1])).metrics()
    assert found == pytest.approx(
        {"reward": 0.75, "reward_std": math.sqrt(0.5) / 2, "reward_batch_std": 0.5, "frac_reward_zero_std": 0.5}
    )
