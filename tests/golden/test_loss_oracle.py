"""Loss, gradient and metrics against the numpy oracle, over random padded batches turned into packed ones."""

import numpy as np
import pytest
import torch
from packed_loss import loss_of, metrics_of

from mmgrpo.grpo.advantages import group_advantages
from mmgrpo.grpo.inputs import Counts

LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo"]
ROWS, COLUMNS, MAX_LENGTH = 8, 7, 9


def random_step(seed):
    """Eight completions of 1 to 7 tokens, some of them masked inside, one masked whole, one with advantage 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, COLUMNS + 1, ROWS)
    present = np.arange(COLUMNS) < lengths[:, None]
    mask = present & (rng.random((ROWS, COLUMNS)) < 0.8)
    mask[3] = False
    mask[5, 0] = True
    old = -rng.exponential(2.0, (ROWS, COLUMNS))
    # A shift per completion keeps sequence ratios away from 1 too, and both signs of the advantage get clipped.
    now = old + rng.normal(0, 0.4, (ROWS, 1)) + rng.normal(0, 0.4, (ROWS, COLUMNS))
    ref = old + rng.normal(0, 0.5, (ROWS, COLUMNS))
    adv = rng.normal(0, 1.5, ROWS)
    adv[5] = 0.0
    return now, old, ref, adv, mask, present


def packed(array, present, dtype=torch.float64):
    return torch.tensor(array[present], dtype=dtype)


def run(step, setting, dtype=torch.float64, splits=(range(ROWS),)):
    """Loss, gradient [B, C] and metrics of a step cut into micro-batches of these completions."""
    now, old, ref, adv, mask, present = step
    counts = Counts(num_tokens=int(mask.sum()), num_sequences=int(mask.any(1).sum()), max_completion_length=MAX_LENGTH)
    grad, sums = np.zeros_like(now), []
    for rows in map(list, splits):
        keep = present[rows]
        logprobs = packed(now[rows], keep, dtype).requires_grad_()
        found = loss_of(
            logprobs,
            packed(old[rows], keep, dtype),
            torch.tensor(adv[rows], dtype=dtype),
            torch.tensor(np.nonzero(keep)[0]),
            torch.tensor(mask[rows][keep]),
            counts=counts,
            ref=packed(ref[rows], keep, dtype) if setting.get("beta") else None,
            **setting,
        )
        found.loss.backward()
        part = np.zeros((len(rows), COLUMNS))
        part[keep] = logprobs.grad.double().numpy()
        grad[rows] = part
        sums.append(found.sums)
    return grad, metrics_of(sums, counts)


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("level, delta", [("token", None), ("token", 1.5), ("sequence", None)])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_gradient_and_metrics_equal_the_oracle(oracle, loss_type, level, delta, beta):
    setting = {"loss_type": loss_type, "epsilon": 0.2, "epsilon_high": 0.28, "delta": delta, "beta": beta}
    objective = setting | {"importance_sampling_level": level}
    setting |= {"level": level, "max_completion_length": MAX_LENGTH}
    low = high = 0.0
    for seed in range(12):
        step = random_step(seed)
        grad, metrics = run(step, objective)
        expected = oracle.policy_loss(*step[:5], setting)
        np.testing.assert_allclose(grad, expected.pop("grad"), rtol=1e-12, atol=1e-12)
        if beta == 0:
            del expected["kl"]
        assert metrics.keys() == expected.keys()
        for name, value in expected.items():
            assert metrics[name] == pytest.approx(value, rel=1e-12, abs=1e-12), name
        low, high = low + metrics["clip_ratio/low_mean"], high + metrics["clip_ratio/high_mean"]
    assert low > 0.2 and high > 0.2, "the random batches must be clipped at both ends, or the test is too easy"


def test_delta_binds_in_the_random_batches():
    differ = 0
    for seed in range(12):
        free = run(random_step(seed), {})[1]["loss"]
        bound = run(random_step(seed), {"delta": 1.5})[1]["loss"]
        assert bound <= free
        differ += bound != free
    assert differ >= 6


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_micro_batches_1x8_2x4_8x1_give_one_gradient(loss_type, level, dtype, tolerance):
    objective = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.04}
    step = random_step(7)
    whole_grad, whole = run(step, objective, dtype)
    scale = np.abs(whole_grad).max()
    assert scale > 0
    for splits in ([range(4), range(4, 8)], [[i] for i in range(8)], [[6, 0, 3], [1, 2, 7, 5, 4]]):
        grad, metrics = run(step, objective, dtype, splits)
        assert np.abs(grad - whole_grad).max() <= tolerance * scale
        assert metrics == pytest.approx(whole, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_equal_the_oracle(oracle, scale):
    rng = np.random.default_rng(0)
    for _ in range(50):
        # Groups of 2 to 5 completions, their names far apart and their rows mixed, a fifth of the rewards missing.
        group = np.repeat(rng.choice(1000, 4, replace=False), rng.integers(2, 6, 4))
        rewards = rng.choice([0.0, 0.1, 0.5, 1.0], len(group)) * rng.choice([1.0, 10.0])
        rewards[rng.random(len(group)) < 0.2] = np.nan
        order = rng.permutation(len(group))
        group, rewards = group[order], rewards[order]
        found = group_advantages(torch.tensor(rewards), torch.tensor(group), scale=scale)
        np.testing.assert_allclose(found.numpy(), oracle.advantages(rewards, group, scale), rtol=1e-12, atol=1e-12)
