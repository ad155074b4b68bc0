"""The checks of the first step on a tiny policy: what they measure when all is well, and what they catch."""

from dataclasses import replace

import pytest
import torch

from mmgrpo.checks import first_step
from mmgrpo.checks.first_step import FLOAT32, HALF, bounds_of, check_engine, check_first_step, check_packed, check_swap
from mmgrpo.config.checks import Checks
from mmgrpo.config.model import Lora
from mmgrpo.errors import TrainingError
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.model.lora import GradientDropout
from mmgrpo.policy.model.policy import Policy
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Decoded, Group, Media, Sample, Sampling

SAMPLING = Sampling(max_completion_length=6, temperature=0.8)
SIZES = {"num_hidden_layers": 2, "vision_depth": 2}


@pytest.fixture
def policy(tiny_policy) -> Policy:
    return tiny_policy(sizes=SIZES)


@pytest.fixture
def encode(policy):
    builder = PromptBuilder(policy.processor, family=policy.family_info)
    return lambda sample: builder.build_prompt(sample)


def sample_of(picture, name="a"):
    content = [{"type": "image"}, {"type": "text", "text": "How many items are there?"}]
    media = (Media(kind="image", source=picture, name=f"{name}.png"),) if picture else ()
    return Sample(id=name, messages=({"role": "user", "content": content if picture else "How many?"},), media=media)


@pytest.fixture
def groups(policy, encode, make_picture):
    prompts = [encode(sample_of(make_picture(seed=i), f"row-{i}")) for i in range(2)]
    return LocalEngine(policy).generate(prompts, [3, 3], SAMPLING)


def all_checks(policy, groups, encode, **switches):
    return check_first_step(policy, groups, encode, checks=Checks(**switches), temperature=SAMPLING.temperature)


def test_a_sound_policy_passes_with_room_to_spare(policy, groups, encode):
    found = all_checks(policy, groups, encode)
    assert found["checks/engine_logprobs/max"] < FLOAT32.max_logprob / 20
    assert found["checks/packed_equals_plain/max"] < FLOAT32.max_logprob / 20
    for part in ("vision", "projector", "language"):
        assert found[f"checks/packed_equals_plain/gradient/{part}"] < FLOAT32.gradient / 20
    assert found["checks/picture_swap/max"] > 0.01


@pytest.mark.filterwarnings("ignore:With adapter dropout")
def test_a_sound_policy_with_adapter_dropout_passes_and_keeps_its_dropout(tiny_policy, make_picture):
    policy = tiny_policy(sizes=SIZES, tune="lora", lora=Lora(dropout=0.3), sharp=False)
    builder = PromptBuilder(policy.processor, family=policy.family_info)
    groups = LocalEngine(policy).generate([builder.build_prompt(sample_of(make_picture()))], [2], SAMPLING)
    found = all_checks(policy, groups, builder.build_prompt)
    assert found["checks/packed_equals_plain/gradient/language"] < FLOAT32.gradient / 20
    rates = {m.p for m in policy.model.modules() if isinstance(m, GradientDropout)}
    assert rates == {0.3}


@pytest.mark.parametrize("tune", ["lora", "full"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_they_leave_no_gradient_and_change_no_weight(tune, checkpointing, tiny_policy, make_picture):
    policy = tiny_policy(sizes=SIZES, tune=tune, gradient_checkpointing=checkpointing, sharp=False)
    builder = PromptBuilder(policy.processor, family=policy.family_info)
    prompt = builder.build_prompt(sample_of(make_picture()))
    groups = LocalEngine(policy).generate([prompt], [2], SAMPLING)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    all_checks(policy, groups, builder.build_prompt)
    for name, parameter in policy.model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


def test_a_fresh_adapter_is_checked_where_its_gradient_is_not_zero(tiny_policy, make_picture, monkeypatch):
    policy = tiny_policy(sizes=SIZES, tune="lora", sharp=False)
    builder = PromptBuilder(policy.processor, family=policy.family_info)
    groups = LocalEngine(policy).generate([builder.build_prompt(sample_of(make_picture()))], [2], SAMPLING)
    watched = first_step._one_per_part(policy)
    assert any(".lora_B." in name for name in watched)
    seen = []
    monkeypatch.setattr(first_step, "_relative", lambda a, b: seen.append(float(b.norm())) or 0.0)
    check_packed(policy, groups[0], temperature=SAMPLING.temperature)
    assert seen and min(seen) > 0


@pytest.mark.parametrize("switch", ["engine_logprobs", "packed_equals_plain", "picture_swap"])
def test_each_has_a_switch(switch, policy, groups, encode):
    found = all_checks(policy, groups, encode, **{switch: False})
    assert not [name for name in found if switch in name]
    assert len({name.split("/")[1] for name in found}) == 2


def test_a_rollout_at_another_temperature_is_caught(policy, groups):
    with pytest.raises(TrainingError, match=r"engine's log-probs are not the trainer's(.|\n)*row-0"):
        check_engine(policy, groups, temperature=1.0)


def test_one_token_that_differs_is_enough(policy, groups):
    first = groups[0].completions[0]
    moved = first.rollout_logprobs.clone()
    moved[-1] += 0.01
    changed = replace(groups[0], completions=(replace(first, rollout_logprobs=moved), *groups[0].completions[1:]))
    with pytest.raises(TrainingError):
        check_engine(policy, [changed], temperature=SAMPLING.temperature)


def test_log_probs_that_are_not_numbers_do_not_pass(policy, groups):
    first = groups[0].completions[0]
    broken = replace(first, rollout_logprobs=torch.full_like(first.rollout_logprobs, float("nan")))
    with pytest.raises(TrainingError, match="nan"):
        check_engine(policy, [replace(groups[0], completions=(broken,))], temperature=SAMPLING.temperature)


def test_a_gradient_that_differs_where_log_probs_agree_is_caught(policy, groups, monkeypatch):
    honest = policy.module.head

    def head(hidden):  # the same values, half the gradient
        return honest(hidden.detach() + 0.5 * (hidden - hidden.detach()))

    monkeypatch.setattr(policy.module, "head", head)
    with pytest.raises(TrainingError, match=r"the gradient of .* differs(.|\n)*row-0"):
        check_packed(policy, groups[0], temperature=SAMPLING.temperature)


def test_the_rows_layout_is_compared_too_and_is_not_advised_to_itself(tiny_policy, make_picture, monkeypatch):
    policy = tiny_policy(sizes=SIZES, layout="rows")
    builder = PromptBuilder(policy.processor, family=policy.family_info)
    (group,) = LocalEngine(policy).generate([builder.build_prompt(sample_of(make_picture()))], [2], SAMPLING)
    assert check_packed(policy, group, temperature=0.8)["checks/packed_equals_plain/max"] < 1e-4
    honest = policy.module._continued
    monkeypatch.setattr(policy.module, "_continued", lambda *arguments: honest(*arguments) + 3)
    with pytest.raises(TrainingError) as caught:
        check_packed(policy, group, temperature=0.8)
    assert "layout: rows" not in str(caught.value)


def test_a_picture_that_does_not_reach_the_model_is_caught(policy, groups, encode, monkeypatch):
    def blind(sample):
        prompt = encode(sample)
        return replace(prompt, model_inputs=groups[0].prompt.model_inputs)

    with pytest.raises(TrainingError, match="does not see its image"):
        check_swap(policy, groups[0], blind, temperature=0.8)


@pytest.mark.parametrize("colour", [(127, 127, 127), (128, 128, 128), (255, 255, 255), (0, 0, 0)])
def test_a_picture_of_one_colour_is_no_false_alarm(colour, policy, encode):
    from PIL import Image

    prompt = encode(sample_of(Image.new("RGB", (56, 56), colour)))
    (group,) = LocalEngine(policy).generate([prompt], [2], SAMPLING)
    assert check_swap(policy, group, encode, temperature=0.8)["checks/picture_swap/max"] > 1e-3


def test_prompts_without_media_are_not_swapped(policy, encode):
    (group,) = LocalEngine(policy).generate([encode(sample_of(None))], [2], SAMPLING)
    assert check_swap(policy, group, encode, temperature=0.8) == {}


def test_the_group_with_a_picture_and_most_to_compare_is_looked_at(policy, encode, make_picture, monkeypatch):
    prompts = [
        encode(sample_of(None, "text")),
        encode(sample_of(make_picture(), "one")),
        encode(sample_of(make_picture(), "two")),
    ]
    groups = LocalEngine(policy).generate(prompts, [4, 1, 3], SAMPLING)
    seen = []
    monkeypatch.setattr(
        first_step, "check_packed", lambda policy, group, **more: seen.append(group.prompt.sample.id) or {}
    )
    all_checks(policy, groups, encode, engine_logprobs=False, picture_swap=False)
    assert seen == ["two"]


def test_half_precision_is_judged_by_the_mean():
    assert bounds_of(torch.bfloat16) is HALF
    assert bounds_of(torch.float16) is HALF
    assert bounds_of(torch.float32) is FLOAT32
    assert HALF.mean_logprob == 0.02


def test_bfloat16_passes_too(tiny_policy, make_picture):
    policy = tiny_policy(sizes=SIZES, dtype="bfloat16", sharp=False)
    builder = PromptBuilder(policy.processor, family=policy.family_info)
    prompts = [builder.build_prompt(sample_of(make_picture(seed=i))) for i in range(2)]
    groups = LocalEngine(policy).generate(prompts, [4, 4], SAMPLING)
    found = all_checks(policy, groups, builder.build_prompt)
    assert found["checks/engine_logprobs/mean"] < HALF.mean_logprob


def test_another_medium_has_the_size_kind_and_rate_of_the_first(make_picture):
    import numpy as np

    picture = first_step.swapped(Decoded(kind="image", data=make_picture(40, 28)))
    assert picture.source.size == (40, 28)
    assert picture.source.mode == "RGB"
    sound = Decoded(kind="audio", data=np.zeros(1600, np.float32), rate=16000.0)
    other = first_step.swapped(sound)
    assert (other.kind, other.rate, other.source.shape, other.source.dtype) == ("audio", 16000.0, (1600,), np.float32)
    assert float(np.abs(other.source).mean()) > 0.01
    film = Decoded(kind="video", data=np.full((4, 8, 6, 3), 127, np.uint8), rate=2.0)
    other = first_step.swapped(film)
    assert (other.rate, other.source.shape, other.source.dtype) == (2.0, (4, 8, 6, 3), np.uint8)
    assert (other.source != film.data).mean() > 0.9


def test_packing_for_a_check_gives_every_completion(groups):
    batch = first_step.batch_of(groups)
    assert [len(s.completions) for s in batch.segments] == [3, 3]
    assert isinstance(groups[0], Group)
