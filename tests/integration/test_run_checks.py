"""The run checks itself: every fault is planted in the real path, and a real run must find it.

Beside each stands the switch that turns the check off; the run then goes through with the fault, which is why the
check is there.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch
from PIL import ImageStat

from mmgrpo import assemble
from mmgrpo.errors import MmgrpoError, ProcessorError, RolloutError, TrainingError
from mmgrpo.policy.families import qwen_vl
from mmgrpo.policy.model.forward import PackedForward
from mmgrpo.rollout import local
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.training.manifest import complete_checkpoints

OFF = {"media_count": False, "engine_logprobs": False, "packed_equals_plain": False, "picture_swap": False}
WARM = {"warm_start": {"data": {"synthetic": "counting", "rows": 20, "seed": 3}, "num_steps": 2, "batch_size": 4}}


@pytest.fixture
def policies(monkeypatch):
    """The policies that runs load, to look at and to break."""
    made = []
    honest = assemble.load_policy
    monkeypatch.setattr(assemble, "load_policy", lambda *a, **more: made.append(honest(*a, **more)) or made[-1])
    return made


@pytest.fixture
def processed(monkeypatch):
    """Change what the processor returns, behind its back."""
    from transformers import Qwen2_5_VLProcessor

    honest = Qwen2_5_VLProcessor.__call__

    def plant(change):
        monkeypatch.setattr(Qwen2_5_VLProcessor, "__call__", lambda self, **more: change(self, honest(self, **more)))

    return plant


def doubled(processor, output):
    """Placeholders expanded twice."""
    ids, types = output["input_ids"], output["mm_token_type_ids"]
    times = torch.where(ids[0] == processor.image_token_id, 2, 1)
    output["input_ids"], output["mm_token_type_ids"] = (x.repeat_interleave(times, dim=1) for x in (ids, types))
    return output


def cut(processor, output):
    """The prompt cut inside the picture."""
    last = int((output["input_ids"][0] == processor.image_token_id).nonzero()[-1])
    for name in ("input_ids", "mm_token_type_ids"):
        output[name] = torch.cat([output[name][:, :last], output[name][:, last + 1 :]], dim=1)
    return output


def dropped(processor, output):
    """Pictures left out, placeholders left in."""
    for name in ("pixel_values", "image_grid_thw", "mm_token_type_ids"):
        output.pop(name, None)
    return output


def black(processor, output):
    """As many pixels as ever, all of them zero."""
    if "pixel_values" in output:
        output["pixel_values"] = torch.zeros_like(output["pixel_values"])
    return output


@pytest.mark.parametrize("fault", [doubled, cut, dropped])
def test_placeholders_that_do_not_match_the_features_are_caught(fault, processed, train):
    processed(fault)
    with pytest.raises(ProcessorError, match=r"Placeholder tokens and encoder features(.|\n)*sample scene-1-"):
        train()


def test_without_the_count_a_dropped_picture_goes_through(processed, train):
    processed(dropped)
    assert train(checks=OFF, train={"num_steps": 1}).steps == 1


def test_pixels_that_are_lost_on_the_way_are_caught_by_the_swap(processed, train):
    processed(black)
    with pytest.raises(TrainingError, match=r"does not see its image(.|\n)*sample scene-1-"):
        train()
    assert train("off", checks={"picture_swap": False}, train={"num_steps": 1}).steps == 1


def shift_positions(monkeypatch):
    honest = PackedForward._continued
    monkeypatch.setattr(PackedForward, "_continued", lambda self, *arguments: honest(self, *arguments) + 2)


def test_positions_shifted_in_the_packed_forward_are_caught_by_both_comparisons(monkeypatch, train):
    shift_positions(monkeypatch)
    with pytest.raises(TrainingError, match="engine's log-probs are not the trainer's"):
        train("engine")
    with pytest.raises(TrainingError, match=r"packed forward does not equal plain rows(.|\n)*layout: rows"):
        train("packed", checks={"engine_logprobs": False})
    off = {"engine_logprobs": False, "packed_equals_plain": False, "drift_logprobs": 1e9}
    assert train("off", checks=off, train={"num_steps": 1}).steps == 1


def test_wrong_picture_positions_that_engine_and_trainer_share_are_caught_by_the_plain_rows(monkeypatch, train):
    honest = qwen_vl._mrope
    monkeypatch.setattr(qwen_vl, "_mrope", lambda *arguments: honest(*arguments)[[0, 2, 1]] * 2)
    with pytest.raises(TrainingError, match="does not equal plain rows"):
        train()


def test_a_rollout_at_another_temperature_is_caught(monkeypatch, train):
    honest = local.draw

    def hotter(logits, uniform, sampling, **more):
        return honest(logits, uniform, replace(sampling, temperature=1.5 * sampling.temperature), **more)

    monkeypatch.setattr(local, "draw", hotter)
    with pytest.raises(TrainingError, match="engine's log-probs are not the trainer's"):
        train()
    off = {"engine_logprobs": False, "drift_logprobs": 1e9}
    assert train("off", checks=off, train={"num_steps": 1}).steps == 1


def hold_stale_weights(monkeypatch):
    """The engine keeps a copy of the policy as it was loaded, and weights never reach it."""
    honest = LocalEngine.__init__
    monkeypatch.setattr(
        LocalEngine, "__init__", lambda self, policy, **more: honest(self, copy.deepcopy(policy), **more)
    )


def test_an_engine_with_stale_weights_is_caught_at_the_first_step(monkeypatch, train):
    hold_stale_weights(monkeypatch)
    with pytest.raises(TrainingError, match="engine's log-probs are not the trainer's"):
        train(**WARM)


def test_an_engine_whose_weights_stay_behind_later_is_warned_of(monkeypatch, train):
    hold_stale_weights(monkeypatch)
    with pytest.warns(UserWarning, match=r"log-probs drift away from the trainer's") as caught:
        train()
    assert len(caught) == 1
    assert train("off", checks={"drift_logprobs": 1e9}).steps == 3


def test_a_resumed_process_is_checked_again(monkeypatch, train):
    run = train(on_step=lambda step, metrics: step < 2)
    assert run.stopped
    shift_positions(monkeypatch)
    with pytest.raises(TrainingError, match="engine's log-probs are not the trainer's"):
        train(resume=run.path)


def test_a_sound_run_logs_what_the_checks_measured_once(train):
    rows = train().metrics()
    names = [{name for name in row if name.startswith("checks/")} for row in rows]
    assert {
        "checks/engine_logprobs/max",
        "checks/packed_equals_plain/gradient/vision",
        "checks/picture_swap/max",
    } <= names[0]
    assert not any(names[1:])
    assert "seconds/checks" in rows[0]


def test_a_gradient_that_is_not_finite_stops_before_the_step_and_names_the_samples(policies, train):
    def spoil(step, metrics):
        if step == 2:
            policies[0].trainable()[0][1].register_hook(lambda gradient: gradient * math.inf)

    before = {}

    def watch(step, metrics):
        spoil(step, metrics)
        before.update({name: p.detach().clone() for name, p in policies[0].trainable()})

    with pytest.raises(TrainingError, match=r"not finite; training stops before(.|\n)*samples scene-1-\d+"):
        train(on_step=watch, train={"num_steps": 4, "save_steps": 1})
    assert all(torch.equal(p, before[name]) for name, p in policies[0].trainable())


def test_after_a_stop_at_a_number_that_is_not_finite_the_last_checkpoint_goes_on(policies, train, tmp_path):
    def spoil(step, metrics):
        if step == 2:
            policies[0].trainable()[0][1].register_hook(lambda gradient: gradient * math.nan)

    with pytest.raises(TrainingError):
        train(on_step=spoil, train={"num_steps": 3, "save_steps": 2})
    folder = tmp_path / "runs" / "run"
    assert list(complete_checkpoints(folder / "checkpoints")) == [2]
    assert train(resume=folder).steps == 3


def test_without_the_check_a_number_that_is_not_finite_spoils_the_weights(policies, train):
    def spoil(step, metrics):
        if step == 2:
            policies[0].trainable()[0][1].register_hook(lambda gradient: gradient * math.nan)

    train(on_step=spoil, checks={"finite": False}, train={"num_steps": 3})
    assert not all(bool(torch.isfinite(p).all()) for _, p in policies[0].trainable())


def test_a_weight_that_is_not_a_number_stops_the_rollout_and_names_the_sample(policies, train):
    def spoil(step, metrics):
        with torch.no_grad():
            policies[0].trainable()[0][1].fill_(math.nan)

    with pytest.raises(RolloutError, match=r"logits are not finite(.|\n)*sample scene-1-\d+"):
        train(on_step=spoil)


def nothing(completions):
    return [0.0] * len(completions)


def letters(completions):
    return [sum(c.isalpha() for c in text) / max(len(text), 1) for text in completions]


def brightness(completions, images):
    return [ImageStat.Stat(pictures[0]).mean[0] for pictures in images]


def rest(completions):
    return [1 - value for value in letters(completions)]


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ([nothing, letters], "Reward nothing has been constant at 0 for 2 steps"),
        ([brightness, letters], "Reward brightness has the same value for every completion of a group, for 2 steps"),
        ([rest, letters], "No group has had two different totals for 2 steps"),
    ],
)
def test_a22_rewards_that_teach_nothing_are_told_once_with_an_example(rewards, told, train):
    with pytest.warns(UserWarning) as caught:
        train(rewards=rewards, checks={"constant_reward_steps": 2}, train={"num_steps": 4})
    text, *after = [str(w.message) for w in caught]
    assert text.startswith(told)
    assert "for example '" in text
    assert [told.startswith("The policy is as it was") for told in after] == [True] * (rest in rewards)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The policy is as it was")
        train("off", rewards=rewards, checks={"constant_reward_steps": 0}, train={"num_steps": 2})


def test_r13_more_than_half_truncated_is_told_once_and_logged(train):
    with pytest.warns(UserWarning, match=r"% of the completions hit the length limit") as caught:
        run = train(checks={"truncated_share": 0.5}, rollout={"max_completion_length": 2})
    assert len(caught) == 1
    assert run.metrics()[-1]["completions/clipped_ratio"] > 0.5


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_l09_steps_without_any_token_to_learn_from_are_told_and_change_nothing(beta, policies, train):
    before = []

    def first(step, metrics):
        assert metrics["loss"] == metrics["grad_norm"] == 0.0
        assert all(math.isfinite(value) for value in metrics.values())

    settings = {"max_completion_length": 1}  # the end token, which would not be truncated, is not drawn with this seed
    with pytest.warns(UserWarning) as caught:
        train(
            on_step=first,
            rollout=settings,
            loss={"mask_truncated_completions": True, "beta": beta},
            train={"num_steps": 2, "save_steps": 1},
        )
        before.extend(policies[0].trainable())
    during, after = [str(w.message) for w in caught]
    assert "left out of the loss: nothing is learned" in during
    assert after.startswith("The policy is as it was")
    fresh = assemble.load_policy(policies[0].settings)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(before, fresh.trainable(), strict=True))


def test_no_check_hides_behind_a_warning(train):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train()


def test_every_error_of_a_check_is_one_of_the_tree():
    assert issubclass(TrainingError, MmgrpoError)
    assert issubclass(ProcessorError, MmgrpoError)
