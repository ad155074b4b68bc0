"""Gradients against finite differences where the function is smooth, away from the clip's kinks."""

import pytest
import torch
from packed_loss import entropy, loss_of, token_logprobs

from mmgrpo.grpo.inputs import Counts
from mmgrpo.grpo.logprobs import kl_estimate

SEQUENCE = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
MASK = torch.tensor([True, True, False, True, True, True, False, True])
ADVANTAGES = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
COUNTS = Counts(num_tokens=6, num_sequences=3, max_completion_length=4)


def noise(seed, size=8, scale=1.0):
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_gradcheck_of_the_whole_loss(loss_type, level):
    # Ratios within e^+-0.3 and a clip range of 0.1 to 3: no kink near.
    old = noise(0) - 3
    logprobs = (old + noise(1, scale=0.1).clamp(-0.3, 0.3)).requires_grad_()
    ref = old + noise(2, scale=0.3)
    setting = {"loss_type": loss_type, "importance_sampling_level": level, "epsilon": 0.9, "epsilon_high": 2.0}
    setting |= {"beta": 0.3} | ({"delta": 5.0} if level == "token" else {})

    def loss(now):
        return loss_of(now, old, ADVANTAGES, SEQUENCE, MASK, counts=COUNTS, ref=ref, **setting).loss

    assert torch.autograd.gradcheck(loss, (logprobs,))


def test_old_and_reference_log_probs_and_advantages_are_constants():
    now, old, ref = ((noise(i) - 3).requires_grad_() for i in range(3))
    adv = ADVANTAGES.clone().requires_grad_()
    loss_of(now, old, adv, SEQUENCE, MASK, counts=COUNTS, ref=ref, beta=0.1, epsilon=0.9).loss.backward()
    assert now.grad.abs().sum() > 0
    assert old.grad is None and ref.grad is None and adv.grad is None


def test_the_same_tensor_as_old_log_probs_still_gives_the_policy_gradient():
    # w = 1: d loss / d logprob = -A / num_tokens on loss tokens
    now = (noise(0) - 3).requires_grad_()
    loss_of(now, now, ADVANTAGES, SEQUENCE, MASK, counts=COUNTS).loss.backward()
    torch.testing.assert_close(now.grad, -ADVANTAGES[SEQUENCE] * MASK / 6, rtol=1e-15, atol=0)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_flipping_the_advantages_flips_the_gradient(loss_type, level):
    old = noise(0) - 3
    grads = []
    for sign in (1, -1):
        now = (old + noise(1, scale=0.05)).requires_grad_()
        setting = {"loss_type": loss_type, "importance_sampling_level": level, "epsilon": 0.9}
        loss_of(now, old, sign * ADVANTAGES, SEQUENCE, MASK, counts=COUNTS, **setting).loss.backward()
        grads.append(now.grad)
    assert grads[0].abs().max() > 0.01
    assert torch.equal(grads[0], -grads[1])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_gradcheck_of_kl(kind):
    ref = noise(1)
    assert torch.autograd.gradcheck(lambda now: kl_estimate(now, ref, kind=kind), (noise(0).requires_grad_(),))


def test_gradcheck_of_log_probs_and_entropy():
    logits = noise(0, (3, 5)).requires_grad_()
    tokens = torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(lambda z: token_logprobs(z, tokens, temperature=0.7), (logits,))
    assert torch.autograd.gradcheck(lambda z: entropy(z, temperature=0.7), (logits,))
