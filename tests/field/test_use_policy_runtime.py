"""Faults found in use: state of a policy that is changed from outside, and what is computed from stale state."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.model import Freeze, Lora
from mmgrpo.errors import TrainingError
from mmgrpo.policy.attention.interface import NAME
from mmgrpo.policy.model.forward import FeatureCache
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Sampling

SAMPLING = Sampling(max_completion_length=4, seed=3)


def written(policy, prompt):
    (group,) = LocalEngine(policy).generate([prompt], [2], SAMPLING)
    return [c.token_ids.tolist() for c in group.completions]


def test_w07_a_replaced_attention_is_told_in_a_sentence_and_can_be_set_back(tiny_policy, make_prompt, make_picture):
    policy = tiny_policy(sharp=False)
    prompt = make_prompt(policy, images=[make_picture()])
    before = written(policy, prompt)
    policy.model.set_attn_implementation("eager")
    with pytest.raises(TrainingError, match=rf"attention was replaced(.|\n)*eager(.|\n)*{NAME}"):
        written(policy, prompt)
    policy.model.set_attn_implementation(NAME)
    assert written(policy, prompt) == before


def test_r309_features_are_computed_anew_after_weights_change_behind_the_version_counter(
    tiny_policy, make_prompt, make_picture
):
    policy = tiny_policy(sharp=False, tune="lora", lora=Lora(r=4), freeze=Freeze())
    policy.module.feature_cache = FeatureCache(10**8)
    prompt = make_prompt(policy, images=[make_picture()])
    first = policy.module.encode_media([prompt])[0].embeddings
    for name, parameter in policy.model.named_parameters():
        if "visual.blocks.0" in name and name.endswith("qkv.weight"):
            parameter.data.copy_(torch.flip(parameter.data, [0]) * 1.01)
    assert not torch.equal(policy.module.encode_media([prompt])[0].embeddings, first)
