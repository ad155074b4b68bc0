"""Checkpoint rows of the field cases that are about the policy's own folder."""

from __future__ import annotations

import socket

import pytest
import torch
from transformers import AutoProcessor

from mmgrpo.config.model import Freeze, Lora, Model
from mmgrpo.policy.model.merging import merge_adapter
from mmgrpo.policy.model.policy import load_policy


def move(policy, std=0.02):
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.add_(torch.randn(parameter.shape, generator=random) * std)


def read(policy, batch):
    with torch.no_grad():
        return policy.logprobs(batch, temperature=1.0).logprobs


@pytest.fixture
def batch_for(make_prompt, make_picture, make_batch):
    return lambda policy: make_batch(
        [make_prompt(policy, images=[make_picture()] if policy.family.kinds else [])], [[6, 3]]
    )


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("something asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_c02_the_saved_folder_alone_renders_the_same_prompt(tune, tmp_path, no_network, tiny_policy, make_picture):
    policy = tiny_policy(tune=tune, freeze=Freeze())
    move(policy)
    policy.save(tmp_path)
    processor = AutoProcessor.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}]
    texts = [
        p.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for p in (policy.processor, processor)
    ]
    assert texts[0] == texts[1]
    inputs = [p(text=[texts[0]], images=[make_picture()], return_tensors="pt") for p in (policy.processor, processor)]
    assert inputs[0].keys() == inputs[1].keys()
    assert all(torch.equal(inputs[0][k], inputs[1][k]) for k in inputs[0])


LORAS = {
    "language": Lora(r=4),
    "head and embeddings": Lora(r=4, targets=("language", "lm_head", "embed_tokens")),
    "head alone": Lora(r=4, targets=("lm_head",)),
    "head saved whole": Lora(r=4, modules_to_save=("lm_head",)),
    "rslora": Lora(r=8, rslora=True, targets=("all-linear",)),
}


@pytest.mark.parametrize("lora", LORAS)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3"])
def test_c06_a_merged_model_reads_as_the_adapter_did(family, lora, tmp_path, tiny_policy, batch_for):
    freeze = Freeze(projector=family == "qwen3")
    policy = tiny_policy(family, tune="lora", lora=LORAS[lora], freeze=freeze)
    move(policy)
    assert policy.model.config.tie_word_embeddings
    batch = batch_for(policy)
    before = read(policy, batch)
    folder = merge_adapter(policy, tmp_path / "merged")
    assert torch.equal(read(policy, batch), before)
    merged = load_policy(Model(name=str(folder), device="cpu"))
    assert merged.adapters is None
    assert (read(merged, batch) - before).abs().max() < 1e-5
    apart = "head" in lora
    assert merged.model.config.tie_word_embeddings == (not apart)
    embeddings = merged.model.get_input_embeddings().weight, merged.model.get_output_embeddings().weight
    assert torch.equal(*embeddings) == (not apart)
    plain = tiny_policy(family, tune="full", freeze=freeze)
    assert (read(plain, batch) - before).abs().max() > 1e-2


@pytest.mark.parametrize("place", [".", "policy", "checkpoints/step-12/policy"])
def test_c06_a_run_a_checkpoint_or_its_policy_folder_can_be_merged(place, tmp_path, tiny_policy, batch_for):
    policy = tiny_policy(tune="lora", seed=3, sizes={"num_hidden_layers": 2}, sharp=False)
    batch = batch_for(policy)
    policy.save(tmp_path / "run/checkpoints/step-9/policy")
    move(policy)
    policy.save(tmp_path / "run" / place)
    folder = merge_adapter(tmp_path / "run", tmp_path / "merged")
    merged = load_policy(Model(name=str(folder), device="cpu"))
    assert (read(merged, batch) - read(policy, batch)).abs().max() < 1e-5


def test_c08_a_run_that_starts_from_a_trained_adapter_has_kl_zero(tmp_path, tiny_policy, batch_for):
    first = tiny_policy(tune="lora", lora=Lora(r=4), freeze=Freeze())
    move(first)
    first.save(tmp_path)
    second = tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(tmp_path)), freeze=Freeze())
    second.model.load_state_dict(
        {n: t for n, t in first.model.state_dict().items() if ".lora_" not in n}, strict=False
    )
    batch = batch_for(second)
    assert torch.equal(read(second, batch), read(first, batch))
    second.fix_reference()
    with second.reference():
        reference = read(second, batch)
    assert torch.equal(reference, read(second, batch))
    with second.adapters.disable_adapter():
        assert (read(second, batch) - reference).abs().max() > 1e-2
    assert all(p.requires_grad for n, p in second.model.named_parameters() if ".lora_" in n)
