"""Drawing one token per row, against numpy and numbers worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mmgrpo.rollout.sampling import draw, stream_keys, truncate, uniforms
from mmgrpo.types import Sampling

NONE = torch.zeros(0, dtype=torch.long)


def sampling(**settings):
    return Sampling(max_completion_length=8, **settings)


def numbers(count):
    return torch.from_numpy(uniforms(stream_keys(5, "test", 0, count), 0))


def kept_by_numpy(logits, top_k, top_p, min_p):
    """Indices that survive the three cuts, one after the other, by their definitions."""
    kept = list(range(len(logits)))
    weight = np.exp(logits - logits.max())
    if top_k:
        least = sorted(weight, reverse=True)[min(top_k, len(weight)) - 1]
        kept = [i for i in kept if weight[i] >= least]
    if top_p < 1:
        total, nucleus, mass = sum(weight[i] for i in kept), [], 0.0
        for i in sorted(kept, key=lambda i: -weight[i]):
            nucleus.append(i)
            mass += weight[i] / total
            if mass >= top_p:
                break
        kept = nucleus
    if min_p:
        largest = max(weight[i] for i in kept)
        kept = [i for i in kept if weight[i] >= min_p * largest]
    return set(kept)


@given(
    st.lists(st.integers(-60, 60), min_size=2, max_size=24, unique=True),
    st.integers(0, 12),
    st.sampled_from([0.05, 0.3, 0.77, 0.9, 1.0]),
    st.sampled_from([0.0, 0.03, 0.2, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_top_k_top_p_and_min_p_keep_what_numpy_keeps(tenths, top_k, top_p, min_p):
    logits = np.array(tenths) / 10.0
    cut = truncate(torch.tensor(logits)[None], sampling(top_k=top_k, top_p=top_p, min_p=min_p))[0]
    kept = {int(i) for i in torch.isfinite(cut).nonzero()[:, 0]}
    assert kept == kept_by_numpy(logits, top_k, top_p, min_p)
    assert torch.equal(cut[list(kept)], torch.tensor(logits)[list(kept)])


def test_the_likeliest_token_stays_even_when_nothing_else_may():
    cut = truncate(torch.tensor([[0.0, 2.0, 1.0]]), sampling(top_p=1e-9, top_k=1, min_p=1.0))
    assert torch.isfinite(cut).tolist() == [[False, True, False]]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_tokens_come_as_often_as_softmax_says(temperature):
    logits = torch.tensor([1.0, -0.5, 0.3, 2.0, -1.0, 0.0])
    count = 20_000
    drawn = draw(logits.expand(count, -1), numbers(count), sampling(temperature=temperature), banned=NONE)
    expected = torch.softmax(logits.double() / temperature, 0) * count
    found = torch.bincount(drawn.token_ids, minlength=6)
    assert stats.chisquare(found.numpy(), expected.numpy()).pvalue > 1e-3


def test_the_recorded_logprob_is_of_the_whole_distribution_at_the_temperature():
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    cuts = {"top_p": 0.5, "top_k": 2, "min_p": 0.4, "repetition_penalty": 1.5}
    seen = torch.tensor([[False, False, True, False]])
    drawn = draw(logits, torch.tensor([0.2]), sampling(temperature=0.5, **cuts), banned=NONE, seen=seen)
    assert drawn.token_ids.tolist() == [3]
    assert drawn.logprobs.item() == pytest.approx(torch.log_softmax(logits[0] / 0.5, 0)[3].item(), abs=1e-6)


def test_removed_probability_is_that_worked_by_hand():
    # p = 0.5, 0.3, 0.2; top_k 2 keeps 0.5 and 0.3, that is 0.625 and 0.375: half of |difference| is 0.2
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    uniform = torch.tensor([0.1], dtype=torch.float64)
    assert draw(logits, uniform, sampling(top_k=2), banned=NONE).removed.item() == pytest.approx(0.2)
    assert draw(logits, uniform, sampling(), banned=torch.tensor([0])).removed.item() == pytest.approx(0.5)
    # a penalty of 2 on token 0: log 0.5 becomes 2 log 0.5, weight 0.25; p = 1/3, 0.4, 4/15
    seen = torch.tensor([[True, False, False]])
    removed = draw(logits, uniform, sampling(repetition_penalty=2.0), banned=NONE, seen=seen).removed.item()
    assert removed == pytest.approx(0.5 - 1 / 3)
    assert draw(logits, uniform, sampling(), banned=NONE).removed.item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9}, {"temperature": 0.5}, {"min_p": 0.01, "temperature": 2.0}])
def test_removed_probability_is_the_total_variation_with_and_without_cuts(cuts):
    logits = 3 * torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    banned = torch.tensor([4, 17])
    scaled = (logits / cuts.get("temperature", 1.0)).double()
    after = truncate(scaled.index_fill(-1, banned, -torch.inf), sampling(**cuts)).softmax(-1)
    expected = (scaled.softmax(-1) - after).abs().sum(-1) / 2
    found = draw(logits, numbers(20), sampling(**cuts), banned=banned).removed
    assert torch.allclose(found, expected, atol=1e-6) and expected.mean() > 1e-2


def test_a_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    seen = torch.tensor([[True, True, False]])
    many = 20_000
    drawn = draw(
        logits.expand(many, -1),
        numbers(many),
        sampling(repetition_penalty=2.0),
        banned=NONE,
        seen=seen.expand(many, -1),
    )
    expected = torch.softmax(torch.tensor([1.0, -4.0, 1.0]).double(), 0) * many
    assert stats.chisquare(torch.bincount(drawn.token_ids, minlength=3).numpy(), expected.numpy()).pvalue > 1e-3


def test_banned_tokens_are_never_drawn_however_likely():
    logits = torch.zeros(5000, 8)
    logits[:, 3] = 1e4
    logits[:, 7] = 1e4
    drawn = draw(logits, numbers(5000), sampling(), banned=torch.tensor([3, 7]))
    assert set(drawn.token_ids.tolist()) == {0, 1, 2, 4, 5, 6}
    assert drawn.removed.min() > 0.99
    greedy = draw(logits, numbers(5000), sampling(temperature=0.0), banned=torch.tensor([3, 7]))
    assert not {3, 7} & set(greedy.token_ids.tolist())


def test_the_ends_of_the_unit_interval_give_tokens_that_can_be_drawn():
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]])
    ends = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    drawn = draw(logits.expand(2, -1), ends, sampling(), banned=NONE)
    assert drawn.token_ids.tolist() == [1, 2]


def test_greedy_takes_the_largest_logit_and_records_its_logprob_at_temperature_one():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    drawn = draw(logits, torch.tensor([0.99]), sampling(temperature=0.0), banned=NONE)
    assert drawn.token_ids.tolist() == [1]
    assert drawn.logprobs.item() == pytest.approx(math.log(math.e**3 / (1 + math.e**3 + math.e)), abs=1e-6)
    assert drawn.removed.item() == 0.0


def test_bfloat16_logits_are_widened_before_they_are_scaled():
    logits = torch.randn(4, 50).bfloat16()
    drawn = draw(logits, numbers(4), sampling(temperature=0.7), banned=NONE)
    exact = torch.log_softmax(logits.float() / 0.7, -1).gather(1, drawn.token_ids[:, None])[:, 0]
    assert torch.equal(drawn.logprobs, exact)


def test_rows_worked_on_in_parts_are_those_worked_on_at_once(monkeypatch):
    from mmgrpo.rollout import sampling

    random = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 50, generator=random)
    uniform = torch.rand(7, generator=random, dtype=torch.float64)
    settings = Sampling(max_completion_length=1, top_p=0.9, repetition_penalty=1.3)
    seen = torch.rand(7, 50, generator=random) < 0.2
    whole = sampling.draw(logits, uniform, settings, banned=torch.tensor([3]), seen=seen)
    monkeypatch.setattr(sampling, "MAX_TABLE", 100)
    parts = sampling.draw(logits, uniform, settings, banned=torch.tensor([3]), seen=seen)
    assert torch.equal(whole.token_ids, parts.token_ids)
    assert torch.equal(whole.logprobs, parts.logprobs) and torch.equal(whole.removed, parts.removed)
