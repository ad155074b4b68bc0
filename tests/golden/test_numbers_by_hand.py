"""Numbers small enough to work out on paper; the working stands beside each."""

import math

import pytest
import torch
from packed_loss import entropy, loss_of, metrics_of, token_logprobs

from mmgrpo.grpo.advantages import group_advantages, reward_statistics
from mmgrpo.grpo.inputs import Counts
from mmgrpo.grpo.logprobs import kl_estimate, mismatch

LN2 = math.log(2)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_advantages_of_one_hot_rewards():
    # mean of [1, 0, 0, 0] = 1/4; squared deviations 9/16 + 3/16 = 12/16; over n - 1 = 3: 1/4; std = 1/2
    # A = 3/4 / (1/2 + 1e-4) and -1/4 / (1/2 + 1e-4)
    found = group_advantages(numbers(1, 0, 0, 0), torch.zeros(4, dtype=torch.int64))
    assert found.tolist() == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3], rel=1e-14)


def test_advantages_over_the_batch_std_keep_the_group_mean():
    # groups [3, 1] and [2, 2]: means 2 and 2, deviations 1, -1, 0, 0.
    # batch: mean 2, squared deviations 1 + 1 + 0 + 0 = 2, over 3; std = sqrt(2/3)
    found = group_advantages(numbers(3, 1, 2, 2), torch.tensor([0, 0, 1, 1]), scale="batch")
    divisor = math.sqrt(2 / 3) + 1e-4
    assert found.tolist() == pytest.approx([1 / divisor, -1 / divisor, 0, 0], rel=1e-14)


def test_advantages_leave_a_missing_reward_out():
    # [2, nan, 0, 4]: mean of the three = 2, squared deviations 0 + 4 + 4 = 8, over 2; std = 2
    found = group_advantages(numbers(2, math.nan, 0, 4), torch.zeros(4, dtype=torch.int64), eps=0.0)
    assert found.tolist() == pytest.approx([0, 0, -1, 1], rel=1e-14)


def test_reward_statistics_of_two_groups():
    # groups [0, 2] and [5, 5]: mean 3; group stds sqrt(2) and 0, mean sqrt(2)/2; half of the groups have std 0
    # batch: squared deviations 9 + 1 + 4 + 4 = 18, over 3; std = sqrt(6)
    found = reward_statistics(numbers(0, 2, 5, 5), torch.tensor([0, 0, 1, 1]))
    assert found.mean == 3
    assert found.batch_std == pytest.approx(math.sqrt(6), rel=1e-14)
    assert found.group_std == pytest.approx(math.sqrt(2) / 2, rel=1e-14)
    assert found.frac_reward_zero_std == 0.5


def test_kl_estimates():
    # p_ref = 2 p, so d = ln 2: k1 = -ln 2, k2 = ln(2)^2 / 2, k3 = 2 - ln 2 - 1
    now, ref = numbers(-2.0), numbers(-2.0 + LN2)
    assert kl_estimate(now, ref, kind="k1").item() == pytest.approx(-LN2, rel=1e-14)
    assert kl_estimate(now, ref, kind="k2").item() == pytest.approx(LN2**2 / 2, rel=1e-14)
    assert kl_estimate(now, ref).item() == pytest.approx(1 - LN2, rel=1e-14)


def test_logprobs_and_entropy_of_a_biased_coin():
    # logits [ln 3, 0] at temperature 1: p = 3/4, 1/4. H = 3/4 ln(4/3) + 1/4 ln 4
    # at temperature 1/2 the logits double, p ~ 9 : 1
    logits = numbers(math.log(3), 0).unsqueeze(0)
    token = torch.tensor([1])
    assert token_logprobs(logits, token, temperature=1.0).item() == pytest.approx(math.log(1 / 4), rel=1e-14)
    assert token_logprobs(logits, token, temperature=0.5).item() == pytest.approx(math.log(1 / 10), rel=1e-14)
    assert entropy(logits).item() == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4), rel=1e-14)
    expected = 0.9 * math.log(10 / 9) + 0.1 * math.log(10)
    assert entropy(logits, temperature=0.5).item() == pytest.approx(expected, rel=1e-14)


def test_mismatch_of_three_tokens_one_of_them_masked():
    # differences ln 2, -ln 4 (and 100, masked): mean abs 3/2 ln 2, max abs 2 ln 2; ratios 2 and 1/4
    found = mismatch(numbers(LN2, 0, 100), numbers(0, 2 * LN2, 0), torch.tensor([True, True, False]))
    assert found.num_tokens == 2
    assert found.mean_abs == pytest.approx(1.5 * LN2, rel=1e-14)
    assert found.max_abs == pytest.approx(2 * LN2, rel=1e-14)
    assert (found.min_ratio, found.mean_ratio, found.max_ratio) == pytest.approx((0.25, 1.125, 2), rel=1e-14)


# Two completions: tokens a, b of the first (A = 2), tokens c, d, e of the second (A = -1); e is masked.
# Ratios: a 2, b 1, c 1/2, d 4.  epsilon 1/4, epsilon_high 1/2, so the clip range is 3/4 to 3/2.
RATIOS = numbers(2, 1, 0.5, 4, 123)
ADVANTAGES = numbers(2, -1)
SEQUENCE = torch.tensor([0, 0, 1, 1, 1])
MASK = torch.tensor([True, True, True, True, False])
COUNTS = Counts(num_tokens=4, num_sequences=2, max_completion_length=8)
# Token losses without delta:
#   a: min(2 * 2, 1.5 * 2) = 3    -> -3    clipped high
#   b: min(1 * 2, 1 * 2)   = 2    -> -2
#   c: min(-0.5, -0.75)    = -3/4 -> 3/4   clipped low
#   d: min(-4, -1.5)       = -4   -> 4     (with delta 2: min(-2, -1.5) = -2 -> 2)
FREE = {"grpo": (-5 / 2 + 4.75 / 2) / 2, "dapo": -0.25 / 4, "bnpo": -0.25 / 4, "dr_grpo": -0.25 / 16}
BOUND = {"grpo": (-5 / 2 + 2.75 / 2) / 2, "dapo": -2.25 / 4, "bnpo": -2.25 / 4, "dr_grpo": -2.25 / 16}


def by_hand(**setting):
    old = numbers(-1, -2, -3, -4, -5)
    logprobs = (old + RATIOS.log()).requires_grad_()
    ref = logprobs.detach() + numbers(LN2, 0, -LN2, 0, 50)
    setting = {"epsilon": 0.25, "epsilon_high": 0.5} | setting
    found = loss_of(logprobs, old, ADVANTAGES, SEQUENCE, MASK, counts=COUNTS, ref=ref, **setting)
    found.loss.backward()
    return found, logprobs.grad


@pytest.mark.parametrize("loss_type", FREE)
def test_clipped_loss_of_each_type(loss_type):
    assert by_hand(loss_type=loss_type)[0].loss.item() == pytest.approx(FREE[loss_type], rel=1e-12)
    assert by_hand(loss_type=loss_type, delta=2.0)[0].loss.item() == pytest.approx(BOUND[loss_type], rel=1e-12)


def test_gradient_stops_at_each_clip():
    # dapo, d loss / d logprob = -A w / 4 where not clipped: b -2 * 1 / 4, d 1 * 4 / 4; a, c clipped; e masked
    assert by_hand()[1].tolist() == pytest.approx([0, -0.5, 0, 1, 0], rel=1e-12)
    # delta 2 stops d as well
    assert by_hand(delta=2.0)[1].tolist() == pytest.approx([0, -0.5, 0, 0, 0], rel=1e-12)


def test_kl_term_is_added_per_token():
    # k3 with d = ln 2, 0, -ln 2, 0: (1 - ln 2) + 0 + (ln 2 - 1/2) + 0 = 1/2; dapo: 1/2 / 4 = 1/8
    # its gradient is (1 - exp d) / 4: a -1/4, b 0, c 1/8, d 0
    found, grad = by_hand(beta=0.1)
    assert found.loss.item() == pytest.approx(-0.25 / 4 + 0.1 / 8, rel=1e-12)
    assert grad.tolist() == pytest.approx([-0.025, -0.5, 0.0125, 1, 0], rel=1e-12)
    metrics = metrics_of([found.sums], COUNTS)
    assert metrics["kl"] == pytest.approx(1 / 8, rel=1e-12)
    assert metrics["policy_loss"] == pytest.approx(-0.25 / 4, rel=1e-12)


def test_metrics_count_tokens():
    assert metrics_of([by_hand()[0].sums], COUNTS) == pytest.approx(
        {
            "loss": -0.25 / 4,
            "policy_loss": -0.25 / 4,
            "ratio/mean": 7.5 / 4,
            "ratio/min": 0.5,
            "ratio/max": 4,
            "clip_ratio/low_mean": 1 / 4,
            "clip_ratio/high_mean": 1 / 4,
            "clip_ratio/region_mean": 1 / 2,
        },
        rel=1e-12,
    )


def test_sequence_ratio_is_the_geometric_mean_of_its_loss_tokens():
    # first: sqrt(2 * 1) = 1.414 < 1.5, not clipped, loss -2 * 1.414; second: sqrt(0.5 * 4) = 1.414, A = -1: loss 1.414
    # grpo: mean over completions (-2 + 1) * 1.414 / 2.  d loss / d logprob: each token has half of its completion's
    # -A w / 2: first -2 * 1.414 / 2 / 2, second 1.414 / 2 / 2
    root = math.sqrt(2)
    found, grad = by_hand(loss_type="grpo", importance_sampling_level="sequence")
    assert found.loss.item() == pytest.approx(-root / 2, rel=1e-12)
    assert grad.tolist() == pytest.approx([-root / 2, -root / 2, root / 4, root / 4, 0], rel=1e-12)
    metrics = metrics_of([found.sums], COUNTS)
    assert metrics["ratio/mean"] == pytest.approx(root, rel=1e-12)
    assert metrics["clip_ratio/region_mean"] == 0


def test_sequence_clip_shares_count_completions():
    # epsilon_high 0.4 clips the first completion (1.414 > 1.4): one of two
    setting = {"epsilon": 0.25, "epsilon_high": 0.4, "importance_sampling_level": "sequence"}
    found = loss_of(RATIOS.log(), torch.zeros_like(RATIOS), ADVANTAGES, SEQUENCE, MASK, counts=COUNTS, **setting)
    metrics = metrics_of([found.sums], COUNTS)
    assert (metrics["clip_ratio/high_mean"], metrics["clip_ratio/low_mean"]) == (0.5, 0)
