"""The packed row and its attention plan: who sees whom, worked out the slow way."""

from __future__ import annotations

import doctest

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgrpo.errors import TrainingError
from mmgrpo.policy import attention, layout, parts, plan
from mmgrpo.policy.layout import completion_index, predictor_index, prompt_index, spans_of
from mmgrpo.policy.plan import build_plan

CPU = torch.device("cpu")
segments = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 6), max_size=4).map(tuple)), min_size=1, max_size=4
)


@pytest.mark.parametrize("module", [layout, parts])
def test_examples_in_the_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def visible(lengths):
    """``[T, T]``: which row index sees which, by the rule of the packed layout."""
    owner = []
    for segment, (prompt, completions) in enumerate(lengths):
        owner += [(segment, -1)] * prompt
        owner += [(segment, i) for i, length in enumerate(completions) for _ in range(length)]
    return torch.tensor(
        [[a[0] == b[0] and b[1] in (-1, a[1]) and j <= i for j, b in enumerate(owner)] for i, a in enumerate(owner)]
    )


@given(segments, st.sampled_from(["cheaper", "joined", "apart"]))
@settings(max_examples=60, deadline=None)
def test_attention_by_the_plan_is_attention_under_the_written_out_mask(lengths, form):
    spans = spans_of(lengths)
    choose, plan._joined_is_cheaper = plan._joined_is_cheaper, plan._joined_is_cheaper
    try:
        if form != "cheaper":
            plan._joined_is_cheaper = lambda span: form == "joined"
        built = build_plan(spans, CPU)
    finally:
        plan._joined_is_cheaper = choose
    total = sum(s.length for s in spans)
    random = torch.Generator().manual_seed(total)
    q = torch.randn(total, 4, 8, generator=random, dtype=torch.float64)
    k, v = (torch.randn(total, 2, 8, generator=random, dtype=torch.float64) for _ in range(2))
    keys, values = (x.repeat_interleave(2, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, keys) * 0.3
    weights = scores.masked_fill(~visible(lengths), float("-inf")).softmax(-1)
    expected = torch.einsum("hqk,khd->qhd", weights, values)
    assert torch.allclose(built.attend(0, q, k, v, 0.3), expected, atol=1e-12)
    assert built.reach == max(p + max(c, default=0) for p, c in lengths)


@given(segments)
@settings(max_examples=60, deadline=None)
def test_indices_cover_the_row_once_and_every_token_is_predicted_by_the_one_before_it(lengths):
    spans = spans_of(lengths)
    order = torch.cat([prompt_index(spans), completion_index(spans)])
    assert order.sort().values.tolist() == list(range(sum(s.length for s in spans)))
    sees = visible(lengths)
    for target, source in zip(completion_index(spans).tolist(), predictor_index(spans).tolist(), strict=True):
        before = [j for j in range(len(sees)) if sees[target, j] and j != target]
        assert source == max(before)


def test_a_window_shorter_than_prompt_and_completion_is_refused_and_a_longer_one_is_not():
    built = build_plan(spans_of([(5, (3, 2)), (4, (1,))]), CPU)
    x = torch.randn(1, 2, 15, 8)
    layer = torch.nn.Module()
    layer.layer_idx = 0
    attention.packed_attention(layer, x, x, x, None, plan=built, sliding_window=8)
    with pytest.raises(TrainingError, match="window 7 tokens, prompt and completion 8 tokens"):
        attention.packed_attention(layer, x, x, x, None, plan=built, sliding_window=7)
