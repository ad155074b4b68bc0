"""Faults found in use: state of a policy that is changed from outside, and what is computed from stale state."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from mmgrpo.config.model import Freeze, Lora, Model
from mmgrpo.errors import TrainingError
from mmgrpo.policy.attention.interface import NAME
from mmgrpo.policy.families.qwen_vl import mrope_positions
from mmgrpo.policy.model.forward import FeatureCache
from mmgrpo.policy.model.policy import load_policy
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.training.packing import pack_segments
from mmgrpo.types import Batch, Prompt, Sample, Sampling, Segment

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


def by_completion(policy, batch):
    values = policy.logprobs(batch, temperature=1.0).logprobs
    pieces = values.split([len(c.token_ids) for c in batch.completions])
    return zip(map(id, batch.completions), pieces, strict=True)


@pytest.mark.parametrize(("family", "layout"), [("gemma3", "auto"), ("qwen2_5_vl", "rows"), ("qwen2_5_vl", "packed")])
def test_m05_max_batch_tokens_bounds_what_every_layout_sends(
    family, layout, tiny_policy, make_prompt, make_picture, make_batch
):
    policy = tiny_policy(family, sharp=False, layout=layout)
    prompts = [make_prompt(policy, images=[make_picture(seed=i)]) for i in range(3)]
    whole = make_batch(prompts, [[9, 3, 5, 4], [2, 8], [7, 7, 7]])
    longest = max(len(p.token_ids) for p in prompts) + 9
    limit = 3 * longest
    with torch.no_grad():
        expected = dict(by_completion(policy, whole))
    sent = []
    policy.module.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: sent.append(kwargs["inputs_embeds"].shape[:2].numel()), with_kwargs=True
    )
    batches = pack_segments(whole.segments, max_batch_tokens=limit, share_prompts=policy.layout == "packed")
    with torch.no_grad():
        for batch in batches:
            for key, piece in by_completion(policy, batch):
                assert torch.allclose(piece, expected.pop(key), atol=1e-5)
    assert not expected
    assert max(sent) <= limit
    assert len(batches) < 9


@pytest.mark.parametrize(("per_second", "fps", "times"), [(2, 5, 21), (2, 8, 13), (2, 4, None), (4, 5, None)])
def test_r306_frames_that_share_a_time_position_are_warned_of(per_second, fps, times, tiny_policy):
    """52 frames are 26 pairs, of which transformers' integer cast makes fewer positions."""
    policy = tiny_policy(sharp=False)
    policy.model.config.vision_config.tokens_per_second = per_second
    prompt = video_prompt(26, 2 / fps)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        positions = mrope_positions(policy.model, prompt)
    distinct = len(positions[0][torch.tensor(prompt.model_inputs["mm_token_type_ids"]) == 2].unique())
    messages = [str(w.message) for w in told if "time position" in str(w.message)]
    if times is None:
        assert distinct == 26 and not messages
    else:
        assert distinct == times and f"26 pairs have {times} positions" in messages[0]


def video_prompt(pairs, seconds, text=3):
    types = [0] * text + [2] * pairs + [0] * text
    return Prompt(
        sample=Sample(id="clip", messages=()),
        text="",
        token_ids=torch.zeros(len(types), dtype=torch.long),
        model_inputs={
            "mm_token_type_ids": types,
            "video_grid_thw": torch.tensor([[pairs, 2, 2]]),
            "second_per_grid_ts": torch.tensor([seconds]),
        },
    )


def test_m01_cached_positions_are_those_of_this_grid_and_this_pace(tiny_policy):
    """A key that left one of them out would give one video the positions of another."""
    policy = tiny_policy(sharp=False)
    first = mrope_positions(policy.model, video_prompt(8, 1.0))
    assert not torch.equal(mrope_positions(policy.model, video_prompt(8, 0.5)), first)
    wide = video_prompt(8, 1.0)
    wide.model_inputs["video_grid_thw"] = torch.tensor([[2, 4, 4]])  # as many tokens, another shape
    assert not torch.equal(mrope_positions(policy.model, wide), first)
    images = video_prompt(8, 1.0)
    images.model_inputs["mm_token_type_ids"] = [0] * 3 + [1] * 8 + [0] * 3
    images.model_inputs["image_grid_thw"] = torch.tensor([[1, 8, 4]])
    del images.model_inputs["video_grid_thw"], images.model_inputs["second_per_grid_ts"]
    assert not torch.equal(mrope_positions(policy.model, images), first)
    assert torch.equal(mrope_positions(policy.model, video_prompt(8, 1.0)), first)


def test_m01_text_after_a_video_begins_behind_its_last_moment(tiny_policy):
    """transformers lets it begin at the larger side of a frame, inside the time of the video."""
    policy = tiny_policy(sharp=False)
    prompt = video_prompt(26, 1.0)
    positions = mrope_positions(policy.model, prompt)
    last, after = positions[:, 28].max(), positions[:, 29]
    assert last == 3 + 25 * policy.model.config.vision_config.tokens_per_second
    assert (after == last + 1).all()


@pytest.mark.parametrize("family", ["idefics3", "qwen2_audio", "gemma3"])
def test_m01_dropout_of_a_checkpoint_is_silenced(family, tiny_policy, tmp_path):
    tiny_policy(family, sharp=False).save(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    for part in (config, *(part for part in config.values() if isinstance(part, dict))):
        part.update({"attention_dropout": 0.3, "dropout": 0.3, "activation_dropout": 0.3})
    file.write_text(json.dumps(config))
    policy = load_policy(Model(name=str(tmp_path), device="cpu", gradient_checkpointing=True))
    assert policy.model.training  # transformers recomputes in training mode alone
    rates = [
        (name, value)
        for name, module in policy.model.named_modules()
        for key in ("p", "dropout", "attention_dropout", "activation_dropout", "layerdrop")
        if isinstance(value := getattr(module, key, None), float) and value
    ]
    assert rates == []


def test_m01_adapters_are_on_in_the_rollout_and_the_reference_is_read_at_the_given_temperature(
    tiny_policy, make_prompt, make_batch
):
    policy = tiny_policy("qwen3", sharp=False, tune="lora", lora=Lora(r=4))
    prompt = make_prompt(policy)
    batch = make_batch([prompt], [[4]])
    policy.fix_reference()
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    (group,) = LocalEngine(policy).generate([prompt], [2], SAMPLING)
    written = Batch(segments=(Segment(prompt=prompt, completions=group.completions, advantages=(0.0, 0.0)),))
    with torch.no_grad():
        learner = policy.logprobs(written, temperature=1.0).logprobs
        with policy.reference():
            reference = policy.logprobs(written, temperature=1.0).logprobs
            cold = policy.logprobs(batch, temperature=0.5).logprobs
            warm = policy.logprobs(batch, temperature=1.0).logprobs
    engine = torch.cat([c.rollout_logprobs for c in group.completions])
    assert (engine - learner).abs().max() < 1e-4 < 1e-2 < (engine - reference).abs().max()
    assert not torch.allclose(cold, warm, atol=1e-3)
