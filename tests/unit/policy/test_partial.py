"""Attention over parts of the keys: merged, it is attention over all of them."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.policy.attention import prefix
from mmgrpo.policy.attention.layout import spans_of
from mmgrpo.policy.attention.prefix import attend_partial, key_mask, merge_partials, partial_gradients
from mmgrpo.policy.model.decoding import PrefixCache


def tensors(*shapes, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=random, dtype=torch.float64) for shape in shapes]


@pytest.fixture(params=["kernels", "none"])
def device(request, monkeypatch):
    """With kernels that tell the log-sum-exp, and as on a device that has none."""
    if request.param == "none":
        monkeypatch.setattr(prefix, "has_kernels", lambda device: False)
    return request.param


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (False, True), (True, False)])
def test_a_part_gives_the_softmax_over_its_keys_and_their_log_sum_exp(device, causal, masked):
    q, k, v = tensors((2, 3, 6, 8), (2, 3, 6, 8), (2, 3, 6, 8))
    mask = key_mask([6, 4], 6, q.dtype, q.device) if masked else None
    scores = q @ k.transpose(-1, -2) * 0.3
    scores = scores if mask is None else scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    bound = 1e-12 if device == "kernels" else 1e-6  # without kernels scores are float32 at least and at most
    out, lse = attend_partial(q, k, v, 0.3, causal=causal, mask=mask)
    assert torch.allclose(out.double(), scores.softmax(-1) @ v, atol=bound)
    assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=bound)


def test_merged_parts_and_their_gradients_are_those_of_all_keys():
    q, *rest = tensors((1, 2, 5, 8), (1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 7, 8), (1, 2, 7, 8))
    k1, v1, k2, v2 = rest
    inputs = [x.requires_grad_() for x in (q, torch.cat([k1, k2], 2), torch.cat([v1, v2], 2))]
    expected = (inputs[0] @ inputs[1].transpose(-1, -2) * 0.3).softmax(-1) @ inputs[2]
    out, lse = merge_partials(attend_partial(q, k1, v1, 0.3), attend_partial(q, k2, v2, 0.3))
    assert torch.allclose(out, expected, atol=1e-12)
    (grad,) = tensors(out.shape, seed=1)
    gq, gk, gv = torch.autograd.grad((expected * grad).sum(), inputs)
    one, other = (partial_gradients(grad, q, k, v, out, lse, 0.3) for k, v in ((k1, v1), (k2, v2)))
    assert torch.allclose(one[0] + other[0], gq, atol=1e-12)
    assert torch.allclose(torch.cat([one[1], other[1]], 2), gk, atol=1e-12)
    assert torch.allclose(torch.cat([one[2], other[2]], 2), gv, atol=1e-12)


@pytest.mark.parametrize("lengths", [(4, 4), (7, 3), (5,)])
@pytest.mark.parametrize("kept", [None, "some of each", "one prompt leaves"])
def test_rows_read_their_own_prompt_also_after_others_have_left(device, lengths, kept):
    spans = spans_of([(n, ()) for n in lengths])
    k, v = tensors((sum(lengths), 2, 8), (sum(lengths), 2, 6))  # values may be narrower than keys
    group = [p for p in range(len(lengths)) for _ in range(3)]
    prompts = PrefixCache({0: (k, v)}, spans, group)
    (query,) = tensors((len(group), 2, 2, 8), seed=2)
    if kept is not None:
        rows = [i for i in range(len(group)) if i % 3 != 1] if kept == "some of each" else [*range(2)]
        rows = rows[1:]  # and groups of different sizes
        prompts.keep(rows)
        group, query = [group[i] for i in rows], query[rows]
    out, lse = prompts.attend(0, query, 0.3)
    assert prompts.lengths == [lengths[p] for p in sorted(set(group))]
    for row, prompt in enumerate(group):
        own = slice(spans[prompt].start, spans[prompt].first_completion)
        scores = torch.einsum("jrd,pjd->jrp", query[row], k[own]) * 0.3
        expected = torch.einsum("jrp,pjd->jrd", scores.softmax(-1), v[own])
        assert torch.allclose(out[row, ..., :6].double(), expected, atol=1e-6)
        assert torch.allclose(lse[row].double(), scores.logsumexp(-1), atol=1e-6)
