"""Loss numerics: faults that people hit in GRPO losses, in their pure part (no model)."""

import math

import pytest
import torch
from packed_loss import loss_of, metrics_of

from mmgrpo.grpo.advantages import group_advantages, reward_statistics
from mmgrpo.grpo.inputs import Counts

LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo"]
TOKEN_GLOBAL = ["dr_grpo", "dapo", "bnpo"]
LENGTHS = [3, 1, 6, 2, 5, 4, 1, 2]


def completions(lengths, dtype=torch.float32):
    """Log-probs of completions of these lengths, the policy a little away from where the step began."""
    random = torch.Generator().manual_seed(0)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    old = -torch.rand(len(sequence), generator=random, dtype=dtype) * 4
    return old + 0.2 * torch.randn(len(sequence), generator=random, dtype=dtype), old, sequence


def step(now, old, sequence, advantages, *, mask=None, max_length=16, ref=None, **setting):
    """Loss, gradient and metrics of a step that is one micro-batch."""
    mask = torch.ones_like(sequence, dtype=torch.bool) if mask is None else mask
    counts = Counts(
        num_tokens=int(mask.sum()), num_sequences=len(sequence[mask].unique()), max_completion_length=max_length
    )
    now = now.clone().requires_grad_()
    found = loss_of(now, old, advantages, sequence, mask, counts=counts, ref=ref, **setting)
    found.loss.backward()
    return found.loss.item(), now.grad, metrics_of([found.sums], counts)


def test_l01_advantages_are_worked_out_in_each_prompts_group():
    found = group_advantages(torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 1]), torch.tensor([0] * 4 + [1] * 4))
    # First group: mean 3/4, squared deviations 3/16 + 9/16 = 3/4, over 3; std 1/2. The second mirrors it.
    high, low = 0.25 / 0.5001, 0.75 / 0.5001
    assert found.tolist() == pytest.approx([high, high, high, -low, -high, -high, -high, low], rel=1e-5)
    # Over the whole batch the mean would be 1/2, and all correct answers would be worth the same.
    assert found[0] != found[7]
    assert found[:4].sum().item() == pytest.approx(0, abs=1e-6) and found[4:].sum().item() == pytest.approx(
        0, abs=1e-6
    )


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_l03_equal_rewards_give_no_policy_gradient_and_only_kl_pulls(loss_type):
    now, old, sequence = completions([2, 3, 1, 4])
    advantages = group_advantages(torch.ones(4), torch.zeros(4, dtype=torch.int64))
    loss, grad, _ = step(now, old, sequence, advantages, loss_type=loss_type)
    assert loss == 0 and not grad.any()
    loss, grad, metrics = step(now, old, sequence, advantages, loss_type=loss_type, beta=0.04, ref=old)
    assert metrics["policy_loss"] == 0 and loss > 0
    assert grad.isfinite().all() and grad.any()
    # KL draws each token back to the reference: the gradient has the sign of now - ref.
    assert torch.equal(grad.sign(), (now - old).sign())


def test_l04_batch_spread_and_group_spread_are_logged_apart():
    found = reward_statistics(torch.tensor([1.0, 1, 4, 4]), torch.tensor([0, 0, 1, 1])).metrics()
    assert found["reward_batch_std"] == pytest.approx(math.sqrt(3))
    assert found["reward_std"] == 0
    assert found["frac_reward_zero_std"] == 1


@pytest.mark.parametrize(
    "loss_type, expected",
    [
        ("grpo", 0),  # (-1 + 1) / 2
        ("dapo", (10 - 2) / 12),  # (-1 * 2 + 1 * 10) / 12 tokens
        ("bnpo", (10 - 2) / 12),
        ("dr_grpo", (10 - 2) / (2 * 16)),  # over 2 completions times the constant length 16
    ],
)
def test_l05_first_loss_of_a_short_good_and_a_long_bad_completion(loss_type, expected):
    now, _, sequence = completions([2, 10])
    loss, _, _ = step(now, now, sequence, torch.tensor([1.0, -1.0]), loss_type=loss_type)
    assert loss == pytest.approx(expected, abs=1e-6)


def accumulated(loss_type, splits, dtype=torch.float32):
    """Gradient of 8 completions, summed over the micro-batches of one optimizer step."""
    now, old, sequence = completions(LENGTHS, dtype)
    advantages = torch.linspace(-1, 2, 8, dtype=dtype)
    counts = Counts(num_tokens=sum(LENGTHS), num_sequences=8, max_completion_length=16)
    now.requires_grad_()
    for part in splits:
        keep = torch.isin(sequence, torch.tensor(part))
        loss_of(
            now[keep], old[keep], advantages[part], sequence[keep] - part[0], keep[keep],
            loss_type=loss_type, beta=0.1, counts=counts, ref=old[keep],
        ).loss.backward()  # fmt: skip
    return now.grad


SPLITS = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[i] for i in range(8)]]


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_l06_gradient_accumulation_changes_nothing(loss_type):
    whole = accumulated(loss_type, [list(range(8))])
    for splits in SPLITS:
        torch.testing.assert_close(accumulated(loss_type, splits), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss_type", TOKEN_GLOBAL)
def test_l07_the_gradient_is_not_divided_by_the_number_of_micro_batches(loss_type):
    whole = accumulated(loss_type, [list(range(8))], torch.float64)
    for splits in SPLITS:
        ratio = accumulated(loss_type, splits, torch.float64).norm() / whole.norm()
        assert ratio.item() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_l08_a_masked_completion_leaves_numerator_and_denominator(loss_type, level):
    now, old, sequence = completions([3, 16])
    advantages = torch.tensor([1.5, -2.0])
    setting = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1}
    both, grad, metrics = step(now, old, sequence, advantages, mask=sequence == 0, ref=old, **setting)
    one, alone, expected = step(now[:3], old[:3], sequence[:3], advantages[:1], ref=old[:3], **setting)
    assert both == pytest.approx(one, rel=1e-6)
    torch.testing.assert_close(grad[:3], alone)
    assert not grad[3:].any()
    assert metrics == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_l09_a_step_whose_completions_are_all_cut_off_is_zero_not_nan(loss_type, level):
    now, old, sequence = completions([16, 16])
    loss, grad, metrics = step(
        now, old, sequence, torch.tensor([1.0, -1.0]), mask=torch.zeros_like(sequence, dtype=torch.bool), ref=old,
        loss_type=loss_type, importance_sampling_level=level, beta=0.1,
    )  # fmt: skip
    assert loss == 0 and not grad.any()
    assert metrics["kl"] == 0
    assert all(math.isfinite(value) for value in metrics.values())
