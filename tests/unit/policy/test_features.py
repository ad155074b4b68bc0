"""Features of frozen encoders are kept from the rollout to the update: same numbers, and each picture encoded once."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.config.model import Freeze, Lora
from mmgrpo.policy.model.forward import FeatureCache, encoder_weights
from mmgrpo.types import Batch, Completion, Sampling, Segment

FROZEN = Freeze()
MEDIA = {
    "qwen2_vl": "image", "qwen2_5_vl": "image", "qwen3_vl": "image", "idefics3": "image", "smolvlm": "image",
    "gemma3": "image", "qwen2_audio": "audio", "qwen2_5_omni": "audio",
}  # fmt: skip
LENGTHS = (3, 5)


def medium(kind, shade=90):
    if kind == "audio":
        return np.sin(np.arange(16000) / (shade / 9)).astype(np.float32)
    return Image.effect_noise((56, 84), shade).convert("RGB")


def ask(make_prompt, policy, kind, shade=90):
    return make_prompt(policy, **{"audios" if kind == "audio" else "images": [medium(kind, shade)]})


def batch_of(prompt):
    random = torch.Generator().manual_seed(1)

    def completion(length):
        return Completion(
            token_ids=torch.randint(20, 200, (length,), generator=random), rollout_logprobs=torch.zeros(length),
            loss_mask=torch.ones(length, dtype=torch.bool), text="", status="length", policy_version=0,
        )  # fmt: skip

    completions = tuple(map(completion, LENGTHS))
    return Batch(segments=(Segment(prompt=prompt, completions=completions, advantages=(0.5, -0.5)),))


@pytest.fixture
def policy_of(tiny_policy):
    def build(family="qwen2_5_vl", **settings):
        policy = tiny_policy(family, **{"lora": Lora(r=4), "tune": "lora", "freeze": FROZEN} | settings)
        policy.module.feature_cache = FeatureCache(10**8)
        return policy

    return build


def counted(policy):
    """Count how many prompts are encoded."""
    calls, encode = Counter(), policy.module.family.encode_media

    def watched(model, prompts, inputs):
        calls["prompts"] += len(prompts)
        return encode(model, prompts, inputs)

    policy.module.family = replace(policy.module.family, encode_media=watched)
    return calls


def learned(policy, batch):
    """Log-probs and gradient of one pass."""
    policy.model.zero_grad()
    found = policy.logprobs(batch, temperature=1.0)
    found.logprobs.sum().backward()
    return found.logprobs.detach(), [p.grad.clone() for _, p in policy.trainable() if p.grad is not None]


@pytest.mark.parametrize("family", MEDIA)
def test_each_medium_is_encoded_once_in_a_step_and_every_number_is_the_same(family, policy_of, make_prompt):
    from mmgrpo.rollout.local import LocalEngine

    policy = policy_of(family)
    prompt = ask(make_prompt, policy, MEDIA[family])
    batch = batch_of(prompt)
    policy.module.feature_cache, kept = None, policy.module.feature_cache
    plain = learned(policy, batch)
    policy.module.feature_cache = kept
    calls = counted(policy)
    LocalEngine(policy).generate([prompt], [2], Sampling(max_completion_length=3))
    policy.fix_reference()
    with policy.reference(), torch.no_grad():
        policy.logprobs(batch, temperature=1.0)
    for _ in range(2):
        logprobs, gradients = learned(policy, batch)
        assert torch.equal(logprobs, plain[0])
        assert all(torch.equal(a, b) for a, b in zip(gradients, plain[1], strict=True))
    assert calls["prompts"] == 1


@pytest.mark.parametrize("free", ["vision", "projector", "embeddings"])
def test_what_learns_is_computed_each_time(free, policy_of, make_prompt):
    settings = {"tune": "full", "lora": None} if free == "embeddings" else {"freeze": Freeze(**{free: False})}
    policy = policy_of(**settings)
    assert any(w.requires_grad for w in encoder_weights(policy.model, policy.family))
    calls = counted(policy)
    batch = batch_of(ask(make_prompt, policy, "image"))
    for _ in range(2):
        learned(policy, batch)
    assert calls["prompts"] == 2
    assert policy.module.feature_cache.held_bytes == 0


def test_another_picture_changed_pixels_and_changed_weights_are_encoded_anew(policy_of, make_prompt):
    policy = policy_of()
    prompt, calls = ask(make_prompt, policy, "image"), counted(policy)
    swapped = replace(prompt, model_inputs=ask(make_prompt, policy, "image", shade=30).model_inputs)
    first = policy.module.encode_media([prompt])[0].embeddings
    assert not torch.equal(policy.module.encode_media([swapped])[0].embeddings, first)
    prompt.model_inputs["pixel_values"].mul_(0.5)
    assert not torch.equal(policy.module.encode_media([prompt])[0].embeddings, first)
    with torch.no_grad():
        next(policy.model.model.visual.parameters()).mul_(1.5)
    halved = policy.module.encode_media([prompt])[0].embeddings
    assert torch.equal(policy.module.encode_media([prompt])[0].embeddings, halved)
    assert calls["prompts"] == 4


def test_features_go_with_their_prompt_and_stay_within_their_limit(policy_of, make_prompt):
    policy = policy_of()
    prompts = [ask(make_prompt, policy, "image", shade) for shade in (20, 40, 60)]
    policy.module.encode_media(prompts[:1])
    one = policy.module.feature_cache.held_bytes
    assert one > 0
    policy.module.feature_cache = FeatureCache(2 * one)
    policy.module.encode_media(prompts)
    assert policy.module.feature_cache.held_bytes == 2 * one
    del prompts
    gc.collect()
    assert policy.module.feature_cache.held_bytes == 0


def test_prompts_of_a_batch_keep_their_places_when_some_are_found(policy_of, make_prompt):
    policy = policy_of()
    prompts = [ask(make_prompt, policy, "image", shade) for shade in (20, 40, 60)]
    alone = [policy.module.family.encode(policy.model, [p])[0].embeddings for p in prompts]
    policy.module.encode_media([prompts[1]])
    for found, expected in zip(policy.module.encode_media(prompts), alone, strict=True):
        assert torch.allclose(found.embeddings, expected, atol=1e-6)
