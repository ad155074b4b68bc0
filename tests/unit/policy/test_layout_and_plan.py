"""The packed row and its attention plan: who sees whom, worked out the slow way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks

from mmgrpo.errors import TrainingError
from mmgrpo.policy.attention import blocks, interface
from mmgrpo.policy.attention.blocks import block_plan
from mmgrpo.policy.attention.interface import build_plan
from mmgrpo.policy.attention.layout import completion_index, predictor_index, prompt_index, spans_of

CPU = torch.device("cpu")
segments = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 6), max_size=4).map(tuple)), min_size=1, max_size=4
)


def visible(lengths):
    """``[T, T]``: which row index sees which, by the rule of the packed layout."""
    owner = []
    for segment, (prompt, completions) in enumerate(lengths):
        owner += [(segment, -1)] * prompt
        owner += [(segment, i) for i, length in enumerate(completions) for _ in range(length)]
    return torch.tensor(
        [[a[0] == b[0] and b[1] in (-1, a[1]) and j <= i for j, b in enumerate(owner)] for i, a in enumerate(owner)]
    )


def built_as(form, lengths):
    """The plan of a row: as this device has it, or by blocks, whose form is chosen by cost or given."""
    spans = spans_of(lengths)
    if form == "prefix":
        return build_plan(spans, CPU)
    choose = blocks._grouped_is_cheaper
    try:
        if form != "cheaper":
            blocks._grouped_is_cheaper = lambda span: form == "grouped"
        return block_plan(spans, CPU)
    finally:
        blocks._grouped_is_cheaper = choose


def written_out(q, k, v, scale, sees):
    keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~sees, float("-inf")).softmax(-1), values)


@given(
    segments,
    st.sampled_from(["prefix", "cheaper", "grouped", "per_completion"]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_attention_by_the_plan_and_its_gradients_are_those_under_the_written_out_mask(lengths, form, shared, narrow):
    built = built_as(form, lengths)
    total = sum(s.length for s in spans_of(lengths))
    random = torch.Generator().manual_seed(total)
    q = 3 * torch.randn(total, 4, 8, generator=random, dtype=torch.float64)
    k = torch.randn(total, shared, 8, generator=random, dtype=torch.float64)
    v = torch.randn(total, shared, 5 if narrow else 8, generator=random, dtype=torch.float64)
    k[0] = -1e4 * q[0, :shared]  # the first row shuns itself: padding that repeats it must not overflow
    inputs = [x.requires_grad_() for x in (q, k, v)]
    found, expected = built.attend(0, *inputs, 0.3), written_out(*inputs, 0.3, visible(lengths))
    assert torch.allclose(found, expected, atol=1e-12)
    weights = torch.randn(found.shape, generator=random, dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (found, expected)), strict=True)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in pairs)
    assert built.max_span == max(p + max(c, default=0) for p, c in lengths)


def test_a_row_holds_its_keys_and_outputs_once_for_backward():
    """Not a copy of the prompt for each completion."""
    lengths, held = [(200, (8,) * 8)], {}
    q, k, v = (torch.randn(264, heads, 16, requires_grad=True) for heads in (4, 2, 2))

    def pack(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with saved_tensors_hooks(pack, lambda t: t):
        build_plan(spans_of(lengths), CPU).attend(0, q, k, v, 0.3)
    assert sum(held.values()) == 264 * 16 * (4 + 2 + 2 + 4) + 264 * 4


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
    interface.packed_attention(layer, x, x, x, None, plan=built, sliding_window=8)
    with pytest.raises(TrainingError, match="window 7 tokens, prompt and completion 8 tokens"):
        interface.packed_attention(layer, x, x, x, None, plan=built, sliding_window=7)
