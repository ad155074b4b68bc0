"""Placeholders against features: faults planted in real prompts are caught before the forward, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import ProcessorError
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Sampling

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def drop_pixels(prompt):
    inputs = dict(prompt.model_inputs)
    rows = int(inputs["image_grid_thw"][0].prod())
    inputs["pixel_values"] = inputs["pixel_values"][rows:]
    inputs["image_grid_thw"] = inputs["image_grid_thw"][1:]
    return replace(prompt, model_inputs=inputs)


def drop_all_pixels(prompt):
    kept = {k: v for k, v in prompt.model_inputs.items() if k not in ("pixel_values", "image_grid_thw")}
    return replace(prompt, model_inputs=kept)


def double_placeholders(prompt, image_token):
    at = int((prompt.token_ids == image_token).nonzero()[0])
    count = int((prompt.token_ids == image_token).sum())
    ids = torch.cat([prompt.token_ids[:at], torch.full((count,), image_token), prompt.token_ids[at:]])
    types = prompt.model_inputs["mm_token_type_ids"].reshape(-1)
    types = torch.cat([types[:at], torch.ones(count, dtype=types.dtype), types[at:]])[None]
    return replace(prompt, token_ids=ids, model_inputs={**prompt.model_inputs, "mm_token_type_ids": types})


def cut(prompt, image_token):
    at = int((prompt.token_ids == image_token).nonzero()[-1])
    types = prompt.model_inputs["mm_token_type_ids"][:, :at]
    return replace(
        prompt, token_ids=prompt.token_ids[:at], model_inputs={**prompt.model_inputs, "mm_token_type_ids": types}
    )


@pytest.fixture
def two_pictures(make_prompt, make_picture):
    return lambda policy: make_prompt(policy, images=[make_picture(), make_picture(84, 56)], sample_id="row 17")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", ["dropped pixels", "no pixels", "doubled placeholders", "cut prompt"])
def test_a_planted_fault_stops_training_and_rollout_with_the_sample_and_both_counts(
    family, fault, tiny_policy, two_pictures, make_batch
):
    policy = tiny_policy(family)
    prompt = two_pictures(policy)
    token = policy.model.config.image_token_id
    placeholders = int((prompt.token_ids == token).sum())
    faulty, features, got = {
        "dropped pixels": lambda: (drop_pixels(prompt), 6, placeholders),
        "no pixels": lambda: (drop_all_pixels(prompt), 0, placeholders),
        "doubled placeholders": lambda: (double_placeholders(prompt, token), placeholders, 2 * placeholders),
        "cut prompt": lambda: (cut(prompt, token), placeholders, placeholders - 1),
    }[fault]()
    good = two_pictures(policy)
    for run in (
        lambda: policy.logprobs(make_batch([good, faulty], [[2], [2]]), temperature=1.0),
        lambda: LocalEngine(policy).generate([good, faulty], [1, 1], Sampling(max_completion_length=2)),
    ):
        with pytest.raises(ProcessorError) as caught:
            run()
        assert "sample row 17, image" in str(caught.value)
        assert f"got: {got} placeholders" in str(caught.value)
        if family != "qwen3_vl" or fault != "dropped pixels":
            assert f"expected: {features} features" in str(caught.value)


@pytest.mark.filterwarnings("ignore:Frames of a video share a time position")  # four frames at once
def test_whole_prompts_pass_and_counts_are_those_of_the_encoder(tiny_policy, two_pictures, make_prompt, make_picture):
    import numpy as np

    for family in FAMILIES:
        policy = tiny_policy(family)
        clip = np.stack([np.asarray(make_picture(seed=s)) for s in range(4)])
        prompts = [two_pictures(policy), make_prompt(policy), make_prompt(policy, videos=[clip])]
        policy.module.encode_media(prompts)
        for prompt in prompts:
            counted = policy.family_info.count_media_tokens(prompt.token_ids)
            assert counted == policy.family.count_features(prompt, policy.model.config)
        assert policy.family_info.count_media_tokens(prompts[0].token_ids)["image"] > 0
        assert policy.family_info.count_media_tokens(prompts[2].token_ids)["video"] > 0


@pytest.mark.parametrize(
    "family",
    [
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "idefics3",
        "smolvlm",
        "gemma3",
        "glm4v",
        "glm46v",
        "internvl",
        "llava_onevision",
        "mistral3",
        "lfm2_vl",
        "qwen2_audio",
        "qwen2_5_omni",
        "qwen3_omni_moe",
    ],
)
def test_every_family_counts_its_features_before_the_forward(
    family, tiny_policy, make_prompt, make_picture, make_beep
):
    policy = tiny_policy(family)
    media = {"image": {"images": [make_picture(), make_picture(84, 56)]}, "audio": {"audios": [make_beep()] * 2}}
    for kind in policy.family.kinds & media.keys():
        prompt = make_prompt(policy, sample_id="row 17", **media[kind])
        policy.module.encode_media([prompt])
        (token,) = policy.family.media_tokens(policy.model.config)[kind]
        last = int((prompt.token_ids == token).nonzero()[-1])
        with pytest.raises(ProcessorError, match=f"sample row 17, {kind}"):
            policy.module.encode_media([prompt, replace(prompt, token_ids=prompt.token_ids[:last])])
        with pytest.raises(ProcessorError, match="expected: 0 features"):
            policy.module.encode_media([replace(prompt, model_inputs={})])


def test_the_check_can_be_switched_off(tiny_policy, two_pictures):
    policy = tiny_policy()
    prompt = two_pictures(policy)
    faulty = cut(prompt, policy.model.config.image_token_id)
    policy.module.check_media = False
    with pytest.raises(RuntimeError):  # what torch says of it, without a sample's name
        policy.module.encode_media([faulty])
    policy.module.check_media = True
    with pytest.raises(ProcessorError):
        policy.module.encode_media([faulty])
