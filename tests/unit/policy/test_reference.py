"""The reference: what it is in each case, and that leaving it restores the policy bit for bit."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.model import Freeze, Lora

CASES = {
    "full": {"tune": "full"},
    "fresh adapter": {"tune": "lora"},
    "rslora": {"tune": "lora", "lora": Lora(r=8, rslora=True)},
    "modules_to_save": {"tune": "lora", "lora": Lora(r=4, modules_to_save=("lm_head",))},
    "projector": {"tune": "lora", "freeze": Freeze(projector=False)},
}


@pytest.fixture
def batch_for(make_prompt, make_picture, make_batch):
    return lambda policy: make_batch([make_prompt(policy, images=[make_picture()])], [[6, 3]])


def move(policy, seed=0):
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.add_(torch.randn(parameter.shape, generator=random) * 0.03)


def read(policy, batch):
    with torch.no_grad():
        return policy.logprobs(batch, temperature=1.0).logprobs


def read_reference(policy, batch):
    with policy.reference():
        return read(policy, batch)


@pytest.mark.parametrize("trained", [False, True], ids=["as loaded", "trained before"])
@pytest.mark.parametrize("case", CASES)
def test_kl_is_exactly_zero_until_the_weights_move_and_the_reference_stays(case, trained, tiny_policy, batch_for):
    policy = tiny_policy(sharp=False, **({"freeze": Freeze()} | CASES[case]))
    batch = batch_for(policy)
    if trained:
        move(policy)
    policy.fix_reference()
    start = read(policy, batch)
    assert torch.equal(read_reference(policy, batch), start)
    move(policy, seed=1)
    moved = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    assert torch.equal(read_reference(policy, batch), start)
    assert not torch.equal(read(policy, batch), start)
    assert all(torch.equal(p, moved[n]) for n, p in policy.model.named_parameters())


def test_a_fresh_adapter_costs_no_copy_and_anything_else_keeps_what_it_trains(tiny_policy):
    fresh = tiny_policy(sharp=False, tune="lora", freeze=Freeze())
    fresh.fix_reference()
    assert fresh.reference_state() == {}
    moved = tiny_policy(sharp=False, tune="lora", freeze=Freeze())
    move(moved)
    moved.fix_reference()
    assert moved.reference_state().keys() == dict(moved.trainable()).keys()
    full = tiny_policy(sharp=False, freeze=Freeze())
    full.fix_reference()
    assert full.reference_state().keys() == dict(full.trainable()).keys()
    assert not any("visual" in name for name in full.reference_state())


@pytest.mark.parametrize("case", CASES)
def test_flags_and_training_survive_a_visit_to_the_reference(case, tiny_policy, batch_for):
    policy = tiny_policy(sharp=False, **({"freeze": Freeze()} | CASES[case]))
    policy.fix_reference()
    before = [(n, p.requires_grad) for n, p in policy.model.named_parameters()]
    read_reference(policy, batch_for(policy))
    assert [(n, p.requires_grad) for n, p in policy.model.named_parameters()] == before
    policy.logprobs(batch_for(policy), temperature=1.0).logprobs.sum().backward()
    assert any(p.grad is not None and p.grad.any() for _, p in policy.trainable())


def test_an_error_inside_the_reference_still_gives_the_policy_back(tiny_policy, batch_for):
    policy = tiny_policy(sharp=False)
    batch = batch_for(policy)
    policy.fix_reference()
    move(policy)
    before = read(policy, batch)
    with pytest.raises(ZeroDivisionError), policy.reference():
        raise ZeroDivisionError
    assert torch.equal(read(policy, batch), before)


@pytest.mark.parametrize("case", CASES)
def test_the_reference_goes_through_a_checkpoint(case, tmp_path, tiny_policy, batch_for):
    settings = {"freeze": Freeze()} | CASES[case]
    policy = tiny_policy(sharp=False, **settings)
    batch = batch_for(policy)
    policy.fix_reference()
    start = read(policy, batch)
    move(policy)
    policy.save(tmp_path / "policy")
    torch.save(policy.reference_state(), tmp_path / "reference.pt")
    again = tiny_policy(sharp=False, **settings)
    again.load_weights_from(tmp_path / "policy")
    again.load_reference(torch.load(tmp_path / "reference.pt", weights_only=True))
    assert torch.equal(read(again, batch), read(policy, batch))
    assert torch.equal(read_reference(again, batch), start)


def test_there_is_no_reference_unless_one_was_fixed(tiny_policy):
    policy = tiny_policy("qwen3", sharp=False)
    assert policy.reference_state() is None
    with pytest.raises(RuntimeError, match="fix_reference"), policy.reference():
        pass
    policy.load_reference(None)
    assert policy.reference_state() is None
