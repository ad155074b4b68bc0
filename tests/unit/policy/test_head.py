"""The LM head in chunks: exact, and without holding logits."""

from __future__ import annotations

import pytest
import torch
from packed_loss import entropy, token_logprobs
from torch.autograd.graph import saved_tensors_hooks

from mmgrpo.grpo.logprobs import entropy_of
from mmgrpo.policy.model import forward as head
from mmgrpo.policy.model.forward import head_stats

WIDTH, TOKENS = 8, 40


def run(vocabulary, *, chunk=16, dtype=torch.float32, temperature=0.7):
    """Forward through a head; return the statistics and the bytes that autograd holds until backward."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=random, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, WIDTH, generator=random, dtype=dtype, requires_grad=True)
    ids = torch.randint(0, vocabulary, (TOKENS,), generator=random)
    held: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() != weight.untyped_storage().data_ptr():
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logprobs, h = head_stats(
            hidden, ids, lambda x: x @ weight.T, temperature=temperature, chunk=chunk, entropy=True
        )
    return logprobs, h, (hidden, weight, ids), sum(held.values())


def test_memory_held_for_backward_does_not_grow_with_the_vocabulary():
    small, large = run(100)[3], run(10_000)[3]
    assert small == large
    assert large < 100 * TOKENS * WIDTH  # the logits alone would be 1.6 MB

    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=random, requires_grad=True)
    held = []
    with saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
        torch.log_softmax(hidden @ torch.randn(10_000, WIDTH).T, -1).sum()
    assert max(held) >= TOKENS * 10_000  # the measure sees logits where they are held


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
def test_chunks_change_neither_values_nor_gradients(chunk):
    logprobs, h, (hidden, weight, ids), _ = run(50, chunk=chunk, dtype=torch.float64)
    logprobs.sum().backward()
    found = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    logits = hidden @ weight.T
    whole, whole_h = token_logprobs(logits, ids, temperature=0.7), entropy(logits, temperature=0.7)
    whole.sum().backward()
    assert torch.allclose(logprobs, whole, atol=1e-12)
    assert torch.allclose(h, whole_h, atol=1e-12)
    assert torch.allclose(found[0], hidden.grad, atol=1e-11)
    assert torch.allclose(found[1], weight.grad, atol=1e-11)


def test_the_entropy_is_measured_once_and_has_no_gradient(monkeypatch):
    measured = []
    monkeypatch.setattr(head, "entropy_of", lambda x: measured.append(len(x)) or entropy_of(x))
    logprobs, h, _, _ = run(50)
    assert not h.requires_grad
    logprobs.sum().backward()
    assert measured == [16, 16, 8]


def test_bfloat16_logits_give_float32_logprobs():
    logprobs, h, (hidden, weight, ids), _ = run(50, dtype=torch.bfloat16)
    assert logprobs.dtype == h.dtype == torch.float32
    assert torch.allclose(logprobs, token_logprobs(hidden @ weight.T, ids, temperature=0.7), atol=1e-5)


def test_logits_far_from_zero_and_banned_tokens_give_the_same_finite_figures():
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(TOKENS, 50, generator=random)
    logits[:, 7] = -torch.inf
    ids = torch.zeros(TOKENS, dtype=torch.long)

    def stats(shift):
        moved = (logits + shift).requires_grad_()
        logprobs, h = head_stats(moved, ids, lambda x: x, temperature=1.0, chunk=16, entropy=True)
        logprobs.sum().backward()
        return logprobs, h, moved.grad

    near, far = stats(0.0), stats(1e4)  # at 10,000 a float32 logit still has three digits behind the point
    for a, b in zip(near, far, strict=True):
        assert a.isfinite().all() and torch.allclose(a, b, atol=5e-3)


def test_no_tokens_give_empty_statistics():
    hidden = torch.zeros(0, WIDTH)
    logprobs, h = head_stats(hidden, torch.zeros(0, dtype=torch.long), lambda x: x, temperature=1.0, chunk=4)
    assert logprobs.shape == (0,)
    assert h is None


def test_a_policys_held_memory_does_not_grow_with_its_vocabulary(tiny_policy, make_prompt, make_batch):
    """The same through the real policy: no saved tensor of a forward has an axis as long as the vocabulary."""
    policy = tiny_policy("qwen3")
    batch = make_batch([make_prompt(policy)], [[100, 100, 100]])
    shapes = []
    with saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
        policy.logprobs(batch, temperature=1.0, entropy=True)
    vocabulary, width = policy.model.config.vocab_size, policy.model.config.hidden_size
    assert shapes
    assert not [s for s in shapes if s[-1:] == (vocabulary,) and s != (width, vocabulary)]


@pytest.mark.parametrize("chunk", [7, 64])
def test_the_entropy_is_differentiable_for_a_loss_that_reads_it(chunk):
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=random, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, WIDTH, generator=random, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 50, (TOKENS,), generator=random)
    options = {"temperature": 0.7, "chunk": chunk, "entropy": True}
    logprobs, h = head_stats(hidden, ids, lambda x: x @ weight.T, entropy_gradient=True, **options)
    expected = entropy(hidden @ weight.T, temperature=0.7)
    assert torch.allclose(h, expected, rtol=1e-12)
    got = torch.autograd.grad(h.sum() + 2 * logprobs.sum(), [hidden, weight])
    plain = token_logprobs(hidden @ weight.T, ids, temperature=0.7)
    want = torch.autograd.grad(expected.sum() + 2 * plain.sum(), [hidden, weight])
    assert all(torch.allclose(g, w, rtol=1e-9, atol=1e-12) for g, w in zip(got, want, strict=True))
    assert not head_stats(hidden, ids, lambda x: x @ weight.T, **options)[1].requires_grad
