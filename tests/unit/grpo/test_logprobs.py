import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_loss import entropy, token_logprobs

from mmgrpo.grpo.logprobs import kl_estimate, mismatch

steady = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize(
    "given_dtype, returned",
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_log_probs_are_float32_unless_the_logits_are_float64(given_dtype, returned):
    logits = torch.zeros(2, 3, dtype=given_dtype)
    assert token_logprobs(logits, torch.tensor([0, 1]), temperature=1.0).dtype == returned
    assert entropy(logits).dtype == returned


def test_half_precision_logits_are_widened_before_they_are_scaled():
    logits = torch.tensor([[8.0, 1.0, -3.0]], dtype=torch.bfloat16)
    expected = token_logprobs(logits.double(), torch.tensor([1]), temperature=0.7)
    torch.testing.assert_close(
        token_logprobs(logits, torch.tensor([1]), temperature=0.7).double(), expected, rtol=1e-6, atol=0
    )


def test_a_large_common_offset_loses_no_digits():
    # 4096 is a power of two: adding it to these logits is exact in float32.
    logits = torch.tensor([[0.5, -1.25, 2.0]])
    tokens = torch.tensor([1])
    exact = token_logprobs(logits, tokens, temperature=1.0)
    torch.testing.assert_close(token_logprobs(logits + 4096, tokens, temperature=1.0), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(entropy(logits + 4096), entropy(logits), rtol=1e-6, atol=0)


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    assert token_logprobs(logits, torch.tensor([1]), temperature=1.0).item() == -2e4
    assert entropy(logits).item() == 0


def test_a_banned_token_leaves_entropy_and_its_gradient_finite():
    logits = torch.tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    value = entropy(logits)
    value.sum().backward()
    assert value.item() == pytest.approx(math.log(2))
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_above_zero_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature above 0"):
        token_logprobs(torch.zeros(1, 2), torch.tensor([0]), temperature=temperature)
    with pytest.raises(ValueError, match="temperature above 0"):
        entropy(torch.zeros(1, 2), temperature=temperature)


def test_an_unknown_kl_is_refused():
    with pytest.raises(ValueError, match="k1, k2, k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), kind="k4")


@pytest.mark.parametrize("d", [3e-4, -3e-4, 7e-4])
def test_k3_keeps_small_differences_in_float32(d):
    # exp(d) - d - 1 = d^2/2 + d^3/6 + ...; exp(d) - 1 taken in float32 is off by up to 6e-8, more than d^2/2 itself.
    found = kl_estimate(torch.tensor([0.0]), torch.tensor([d])).item()
    assert found == pytest.approx(d**2 / 2 + d**3 / 6, rel=3e-3)


@steady
@given(st.lists(st.floats(-20, 0), min_size=1, max_size=8), st.data())
def test_k2_and_k3_are_never_negative_and_zero_only_where_both_agree(values, data):
    now = torch.tensor(values, dtype=torch.float64)
    shift = data.draw(st.sampled_from([-3.0, -0.1, 0.0, 0.1, 3.0]))
    for kind in ("k2", "k3"):
        found = kl_estimate(now, now + shift, kind=kind)
        assert (found > 0).all() if shift else not found.any()


def test_k1_k2_k3_have_their_expectations_under_the_policy():
    # Exact expectation over a vocabulary of 3: k1 and k3 give the KL; k2 only comes near it.
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    true = (p * (p / q).log()).sum().item()
    means = {k: (p * kl_estimate(p.log(), q.log(), kind=k)).sum().item() for k in ("k1", "k2", "k3")}
    assert means["k1"] == pytest.approx(true, rel=1e-12)
    assert means["k3"] == pytest.approx(true, rel=1e-12)
    assert means["k2"] == pytest.approx(true, rel=0.2) and abs(means["k2"] - true) > 1e-6


def test_mismatch_of_no_tokens_is_nothing_and_logs_nothing():
    found = mismatch(torch.tensor([1.0]), torch.tensor([5.0]), torch.tensor([False]))
    assert (found.num_tokens, found.mean_abs, found.max_abs, found.mean_ratio) == (0, 0, 0, 1)
    assert found.metrics() == {}


def test_mismatch_under_its_logged_names():
    found = mismatch(torch.tensor([0.0, -1.0]), torch.tensor([0.0, -1.0]), torch.tensor([True, True])).metrics()
    assert found == {
        "sampling/sampling_logp_difference/mean": 0,
        "sampling/sampling_logp_difference/max": 0,
        "sampling/importance_sampling_ratio/min": 1,
        "sampling/importance_sampling_ratio/mean": 1,
        "sampling/importance_sampling_ratio/max": 1,
    }
