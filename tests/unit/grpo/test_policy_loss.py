import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_loss import loss_of, metrics_of

from mmgrpo.config.loss import Loss
from mmgrpo.grpo.inputs import Counts, TokenInputs

SEQUENCE = torch.tensor([0, 0, 1, 1, 1, 2])
MASK = torch.tensor([True, True, True, False, True, False])
COUNTS = Counts(num_tokens=4, num_sequences=2, max_completion_length=5)
LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo"]
LEVELS = ["token", "sequence"]
steady = settings(deadline=None, derandomize=True)
every_type = pytest.mark.parametrize("loss_type", LOSS_TYPES)
every_level = pytest.mark.parametrize("level", LEVELS)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def run(now, old, adv, *, mask=MASK, counts=COUNTS, ref=None, **setting):
    now = now.clone().requires_grad_()
    found = loss_of(now, old, adv, SEQUENCE, mask, counts=counts, ref=ref, **setting)
    found.loss.backward()
    return found, now.grad


NOW, OLD, REF = f64(-1, -2, -3, -4, -5, -6), f64(-1.2, -1.9, -3.3, -4, -4.6, -6), f64(-1, -2.5, -3, -4, -5.5, -6)
ADV = f64(1, -0.5, 2)


@every_level
@every_type
@pytest.mark.parametrize("garbage", [-1e30, 1e30, math.inf, -math.inf, math.nan])
def test_masked_tokens_give_exactly_nothing_whatever_they_hold(garbage, loss_type, level):
    clean, clean_grad = run(NOW, OLD, ADV, ref=REF, loss_type=loss_type, importance_sampling_level=level, beta=0.1)
    for spoilt in ("now", "old", "ref"):
        parts = {"now": NOW, "old": OLD, "ref": REF}
        parts[spoilt] = parts[spoilt].masked_fill(~MASK, garbage)
        found, grad = run(
            parts["now"], parts["old"], ADV, ref=parts["ref"],
            loss_type=loss_type, importance_sampling_level=level, beta=0.1,
        )  # fmt: skip
        assert torch.equal(found.loss, clean.loss) and torch.equal(grad, clean_grad)
        assert not grad[~MASK].any()
        assert metrics_of([found.sums], COUNTS) == metrics_of([clean.sums], COUNTS)


@every_level
@every_type
def test_a_step_without_loss_tokens_is_exactly_zero(loss_type, level):
    none = Counts(num_tokens=0, num_sequences=0, max_completion_length=5)
    found, grad = run(
        NOW, OLD, ADV, mask=torch.zeros_like(MASK), counts=none, ref=REF,
        loss_type=loss_type, importance_sampling_level=level, beta=0.1,
    )  # fmt: skip
    assert found.loss.item() == 0 and not grad.any()
    metrics = metrics_of([found.sums], none)
    assert set(metrics.values()) == {0.0}
    assert "kl" in metrics and "ratio/mean" not in metrics


@every_level
@every_type
def test_a_micro_batch_without_loss_tokens_adds_nothing_to_its_step(loss_type, level):
    setting = {"loss_type": loss_type, "importance_sampling_level": level}
    found, _ = run(NOW, OLD, ADV, **setting)
    empty, grad = run(NOW, OLD, ADV, mask=torch.zeros_like(MASK), **setting)
    assert empty.loss.item() == 0 and not grad.any()
    assert metrics_of([found.sums, empty.sums], COUNTS) == metrics_of([found.sums], COUNTS)


def test_a_micro_batch_of_no_tokens_at_all_works():
    nothing = torch.zeros(0)
    found = loss_of(nothing, nothing, nothing, nothing.long(), nothing.bool(), counts=COUNTS)
    assert found.loss.item() == 0


@every_level
def test_clipped_and_unweighted_ratios_that_overflow_give_zero_gradient_not_nan(level):
    # exp(5000) is inf: clipped high for A > 0, multiplied by 0 for A = 0, bounded by delta for A < 0.
    now = OLD + f64(5000, 5000, 5000, 0, 5000, 0)
    cases = [(f64(1, 0, 0), {}), (f64(0, 0, 0), {})]
    if level == "token":
        cases.append((f64(-1, -1, 0), {"delta": 2.0}))
    for adv, setting in cases:
        found, grad = run(now, OLD, adv, importance_sampling_level=level, **setting)
        assert found.loss.isfinite() and not grad.any()


def test_an_unbounded_overflow_is_not_hidden():
    found, _ = run(OLD + 5000, OLD, f64(-1, -1, -1))
    assert found.loss.item() == math.inf


@every_level
@every_type
def test_zero_advantages_without_kl_give_exactly_zero_gradient(loss_type, level):
    found, grad = run(NOW, OLD, f64(0, 0, 0), loss_type=loss_type, importance_sampling_level=level)
    assert found.loss.item() == 0 and not grad.any()


@every_type
def test_sequence_and_token_level_agree_when_the_policy_has_not_moved(loss_type):
    token, token_grad = run(NOW, NOW, ADV, loss_type=loss_type)
    whole, whole_grad = run(NOW, NOW, ADV, loss_type=loss_type, importance_sampling_level="sequence")
    torch.testing.assert_close(whole.loss, token.loss)
    torch.testing.assert_close(whole_grad, token_grad)


def test_bnpo_equals_dapo():
    dapo, bnpo = (run(NOW, OLD, ADV, loss_type=kind) for kind in ("dapo", "bnpo"))
    assert torch.equal(dapo[0].loss, bnpo[0].loss) and torch.equal(dapo[1], bnpo[1])


def test_the_loss_keeps_the_dtype_of_the_log_probs():
    found, _ = run(NOW.float(), OLD.float(), ADV)
    assert found.loss.dtype == torch.float32


def test_sums_are_detached():
    found, _ = run(NOW, OLD, ADV, ref=REF, beta=0.1)
    kept = [found.found.policy_loss, found.found.ratios.log_ratio, *found.found.terms.values()]
    assert len(kept) == 3 and not any(tensor.requires_grad for tensor in kept)


def test_clip_shares_count_the_tokens_of_groups_that_were_left_out():
    # ratio e^1 with A > 0: one token clipped, of the 4 of the step; the 3 others were not computed (advantage 0).
    found = loss_of(f64(1), f64(0), f64(1), torch.tensor([0]), torch.tensor([True]), counts=COUNTS)
    metrics = metrics_of([found.sums], COUNTS)
    assert metrics["clip_ratio/high_mean"] == 0.25
    assert metrics["ratio/mean"] == pytest.approx(math.e)


def test_a_ratio_that_stands_on_its_bound_is_not_counted_as_clipped():
    bound = f64(math.log1p(0.25), 0, math.log1p(-0.25), 0, 0, 0)  # A > 0 above, A < 0 below
    found, _ = run(bound, 0 * bound, f64(1, -1, 0), epsilon=0.25)
    assert metrics_of([found.sums], COUNTS)["clip_ratio/region_mean"] == 0


def test_kl_without_a_reference_is_refused():
    with pytest.raises(ValueError, match="no log-probs of a reference"):
        run(NOW, OLD, ADV, beta=0.1)


@pytest.mark.parametrize(
    "name", ["old_logprobs", "sequence", "loss_mask", "ref_logprobs", "rollout_logprobs", "advantages", "entropy"]
)
def test_a_shape_that_would_broadcast_is_refused_by_name(name):
    parts = {"old_logprobs": OLD, "sequence": SEQUENCE, "loss_mask": MASK, "ref_logprobs": REF}
    parts |= {"rollout_logprobs": OLD, "advantages": ADV[SEQUENCE], "entropy": -OLD}
    parts[name] = parts[name][:1]
    with pytest.raises(ValueError, match=f"{name} does not fit logprobs"):
        TokenInputs(logprobs=NOW, num_sequences=3, **parts)


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"loss_type": "ppo"}, "loss_type"),
        ({"importance_sampling_level": "turn"}, "importance_sampling_level"),
        ({"epsilon": -0.1}, "greater than 0"),
        ({"epsilon_high": -0.1}, "greater than 0"),
        ({"beta": math.nan}, "greater than or equal to 0"),
        ({"delta": 1.2}, "undo the clipping"),
        ({"epsilon_high": 0.5, "delta": 1.4}, "larger than 1 . loss.epsilon_high .1.5"),
    ],
)
def test_an_impossible_objective_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Loss(**setting)


def test_an_epsilon_of_one_or_more_never_clips_below():
    found, grad = run(OLD - 9, OLD, f64(-1, -1, -1), epsilon=1.0)
    assert metrics_of([found.sums], COUNTS)["clip_ratio/low_mean"] == 0
    assert (grad[MASK] > 0).all()


@st.composite
def steps(draw):
    """A packed micro-batch: completions of 1 to 4 tokens, some of them masked."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    size = sum(lengths)
    sequence = torch.tensor([s for s, n in enumerate(lengths) for _ in range(n)])
    column = st.lists(st.floats(-3, 0), min_size=size, max_size=size)
    mask = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    adv = draw(st.lists(st.floats(-3, 3), min_size=len(lengths), max_size=len(lengths)))
    return f64(*draw(column)), f64(*draw(column)), f64(*adv), sequence, torch.tensor(mask)


def loss_and_grad(now, old, adv, sequence, mask, *, loss_type, level):
    now = now.clone().requires_grad_()
    counts = Counts(num_tokens=int(mask.sum()), num_sequences=len(sequence[mask].unique()), max_completion_length=4)
    setting = {"loss_type": loss_type, "importance_sampling_level": level}
    found = loss_of(now, old, adv, sequence, mask, counts=counts, **setting)
    found.loss.backward()
    return found.loss.item(), now.grad


any_type, any_level = st.sampled_from(LOSS_TYPES), st.sampled_from(LEVELS)


@steady
@given(steps(), st.randoms(use_true_random=False), any_type, any_level)
def test_the_order_of_tokens_and_the_numbering_of_completions_do_not_matter(step, random, loss_type, level):
    now, old, adv, sequence, mask = step
    order = torch.tensor(random.sample(range(len(now)), len(now)))
    number = torch.tensor(random.sample(range(len(adv)), len(adv)))
    renumbered = torch.empty_like(adv)
    renumbered[number] = adv
    setting = {"loss_type": loss_type, "level": level}
    loss, grad = loss_and_grad(now, old, adv, sequence, mask, **setting)
    other, other_grad = loss_and_grad(
        now[order], old[order], renumbered, number[sequence][order], mask[order], **setting
    )
    assert other == pytest.approx(loss, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(other_grad, grad[order], rtol=1e-9, atol=1e-9)


@steady
@given(steps(), any_type, any_level)
def test_the_policy_loss_scales_with_the_advantages(step, loss_type, level):
    now, old, adv, sequence, mask = step
    setting = {"loss_type": loss_type, "level": level}
    loss, grad = loss_and_grad(now, old, adv, sequence, mask, **setting)
    twice, twice_grad = loss_and_grad(now, old, 2 * adv, sequence, mask, **setting)
    assert twice == pytest.approx(2 * loss, rel=1e-12, abs=1e-300)
    torch.testing.assert_close(twice_grad, 2 * grad, rtol=1e-12, atol=1e-300)


@steady
@given(steps(), any_type, any_level)
def test_a_step_towards_the_gradient_never_rewards_a_worse_completion(step, loss_type, level):
    # d loss / d logprob is 0 or has the sign of -A: likelier tokens lower the loss exactly where A > 0.
    now, old, adv, sequence, mask = step
    _, grad = loss_and_grad(now, old, adv, sequence, mask, loss_type=loss_type, level=level)
    assert (grad * adv[sequence] <= 0).all()
