"""LoRA rows of the field cases."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.model import Freeze, Lora


@pytest.fixture
def step(make_prompt, make_picture, make_batch):
    """One step of plain gradient ascent on the log-probs of two groups with pictures; gradients stay."""

    def run(policy):
        prompts = [make_prompt(policy, images=[make_picture(seed=s)]) for s in (0, 1)]
        policy.logprobs(make_batch(prompts, [[4, 6], [3]]), temperature=1.0).logprobs.sum().backward()
        with torch.no_grad():
            for _, parameter in policy.trainable():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=1e-2)

    return run


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_o02_adapters_in_the_vision_tower_get_a_gradient(family, checkpointing, tiny_policy, step):
    lora = Lora(r=4, targets=("vision", "projector", "language"))
    policy = tiny_policy(
        family, sharp=False, tune="lora", lora=lora, gradient_checkpointing=checkpointing, freeze=Freeze()
    )
    step(policy)
    reached = {part for part in ("visual", "language_model") for name, _ in policy.trainable() if part in name}
    assert reached == {"visual", "language_model"}
    assert [name for name, p in policy.trainable() if p.grad is None] == []
    assert [name for name, p in policy.trainable() if ".lora_B" in name and not p.norm() > 0] == []


@pytest.mark.parametrize("layout", ["packed", "rows"])
def test_o03_recomputation_and_adapters_train_every_layer(layout, tiny_policy, step):
    policy = tiny_policy(sharp=False, tune="lora", gradient_checkpointing=True, layout=layout, freeze=Freeze())
    base = {n: p.detach().clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    step(policy)
    changed = [n for n, p in policy.trainable() if ".lora_B" in n and p.any()]
    assert len(changed) == sum(".lora_B" in n for n, _ in policy.trainable()) > 20
    assert all(torch.equal(p, base[n]) for n, p in policy.model.named_parameters() if n in base)


def test_o04_a_projector_set_free_beside_adapters_learns_and_the_table_says_so(tiny_policy, step):
    policy = tiny_policy(sharp=False, tune="lora", freeze=Freeze(vision=True, projector=False))
    before = {n: p.detach().clone() for n, p in policy.trainable() if "merger" in n}
    assert before
    step(policy)
    assert all(not torch.equal(p, before[n]) for n, p in policy.trainable() if n in before)
    table = {row.part: row for row in policy.parts()}
    assert table["projector"].trainable == table["projector"].total > 0
    assert table["vision"].trainable == 0
    assert 0 < table["language"].trainable < table["language"].total


def test_o04_a_projector_that_learned_is_saved_with_the_adapter(
    tmp_path, tiny_policy, step, make_prompt, make_picture
):
    settings = {"sharp": False, "tune": "lora", "freeze": Freeze(vision=True, projector=False)}
    policy = tiny_policy(**settings)
    step(policy)
    policy.save(tmp_path)
    again = tiny_policy(**settings)
    again.load_weights_from(tmp_path)
    learned = dict(policy.trainable())
    assert all(torch.equal(p, learned[n]) for n, p in again.trainable())
    assert len(learned) == len(again.trainable())


def test_o05_weights_for_an_engine_have_the_bases_names_and_the_adapter_added_once(tiny_policy):
    base = tiny_policy(sharp=False, tune="full").model.state_dict()
    policy = tiny_policy(sharp=False, tune="lora", lora=Lora(r=4, alpha=8.0), freeze=Freeze())
    with torch.no_grad():
        for name, parameter in policy.trainable():
            if ".lora_B" in name:
                parameter.normal_(std=0.02)
    sent = [dict(policy.named_weights()) for _ in range(2)]
    assert sent[0].keys() == base.keys()
    state = policy.model.state_dict()
    for name, tensor in sent[0].items():
        stem = name.removesuffix(".weight")
        expected = base[name]
        if f"{stem}.lora_A.default.weight" in state:
            expected = expected + 2.0 * state[f"{stem}.lora_B.default.weight"] @ state[f"{stem}.lora_A.default.weight"]
            assert not torch.equal(tensor, base[name])
        assert torch.allclose(tensor, expected, atol=1e-7)
        assert torch.equal(tensor, sent[1][name])
