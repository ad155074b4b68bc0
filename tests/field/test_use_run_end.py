"""How runs end in use: a fault midway loses nothing, and what is said of going on is true."""

from __future__ import annotations

import io
import re

import pytest
import torch
from rich.console import Console

import mmgrpo
from mmgrpo.errors import RewardError, TrainingError
from mmgrpo.training.manifest import complete_checkpoints
from mmgrpo.training.optimizer import Optimizer

FLAKY = """
import pathlib

def letters(completions, trainer_state):
    if trainer_state.global_step == 2 and pathlib.Path({flag!r}).exists():
        raise RuntimeError("the scale is broken")
    return [sum(c.isalpha() for c in text) / max(len(text), 1) for text in completions]
"""
FOUR = {"train": {"num_steps": 4, "save_steps": 0}}


def equal(one, other):
    return all(
        torch.equal(a, b) for (_, a), (_, b) in zip(one.policy.trainable(), other.policy.trainable(), strict=True)
    )


def said_by(run, error, match, /, *names, **changes):
    """Train until it fails; give what was printed."""
    screen = Console(file=io.StringIO(), width=400)
    with pytest.raises(error, match=match):
        run(*names, console=screen, **changes)
    return screen.file.getvalue()


@pytest.mark.parametrize("curriculum", [{}, {"data": {"curriculum": {"kind": "by_pass_rate"}, "prefetch": 2}}])
def test_w01_a_reward_that_raises_midway_loses_no_step_and_the_run_goes_on_as_if_it_had_not(
    train, tmp_path, curriculum
):
    flag = tmp_path / "flag"
    flag.touch()
    (tmp_path / "flaky.py").write_text(FLAKY.format(flag=str(flag)))
    changes = {**FOUR, **curriculum, "rewards": [{"fn": f"{tmp_path / 'flaky.py'}:letters"}]}
    said = said_by(train, RewardError, "the scale is broken", "broken", **changes)
    folder = tmp_path / "runs" / "broken"
    assert list(complete_checkpoints(folder / "checkpoints")) == [2]
    assert re.search(rf"step-2 is saved.*go on: mmgrpo train --resume {folder}", said)
    flag.unlink()
    assert equal(mmgrpo.train(resume=folder), train("straight", **changes))


def test_w01_an_exception_in_on_step_saves_the_step_that_is_done(train, tmp_path):
    def on_step(step, metrics):
        if step == 2:
            raise KeyError("mine")

    said_by(train, KeyError, "mine", on_step=on_step, **FOUR)
    assert list(complete_checkpoints(tmp_path / "runs" / "run" / "checkpoints")) == [2]


def test_w01_one_prompt_that_is_too_long_midway_loses_no_step(train, tmp_path):
    rows = [{"prompt": "How many?", "answer": "1"}] * 6
    rows[5] = {"prompt": "many " * 400, "answer": "1"}
    changes = {
        "data": {"shuffle": False, "max_prompt_tokens": 200, "eval": None},
        "train": {"num_steps": 4, "save_steps": 0},
    }
    said_by(train, mmgrpo.ProcessorError, "tokens", train_rows=rows, **changes)
    assert list(complete_checkpoints(tmp_path / "runs" / "run" / "checkpoints")) == [2]


def interrupt_update(monkeypatch, number, error):
    """Raise in the middle of the optimizer's n-th step: after weights were written."""
    honest, calls = Optimizer._round_masters, []

    def rounding(self):
        honest(self)
        calls.append(1)
        if len(calls) == number:
            raise error

    monkeypatch.setattr(Optimizer, "_round_masters", rounding)


def test_w01_where_the_failed_step_has_changed_the_weights_nothing_is_saved_and_nothing_is_offered(
    train, tmp_path, monkeypatch
):
    interrupt_update(monkeypatch, 3, RuntimeError("torn"))
    changes = {"train": {"num_steps": 4, "save_steps": 0, "optimizer_steps": 2}}
    said = said_by(train, RuntimeError, "torn", checks={"drift_logprobs": 1e9}, **changes)
    assert not (tmp_path / "runs" / "run" / "checkpoints").exists()
    assert "resume" not in said


def test_w01_a_checkpoint_of_before_is_offered_where_the_failed_step_cannot_be_saved(train, tmp_path, monkeypatch):
    interrupt_update(monkeypatch, 3, RuntimeError("torn"))
    said = said_by(train, RuntimeError, "torn", train={"num_steps": 4, "save_steps": 1})
    assert list(complete_checkpoints(tmp_path / "runs" / "run" / "checkpoints")) == [1, 2]
    assert "step-2 is saved" in said


def test_w01_ctrl_c_twice_saves_what_is_whole_and_offers_a_resume_only_then(train, tmp_path):
    def at(step):
        def reward(completions, trainer_state):
            if trainer_state.global_step == step:
                raise KeyboardInterrupt
            return [float(len(text)) for text in completions]

        return reward

    for step, saved in ((0, []), (2, [2])):
        with pytest.raises(KeyboardInterrupt) as stop:
            train(f"at{step}", rewards=[at(step)], **FOUR)
        folder = tmp_path / "runs" / f"at{step}"
        assert list(complete_checkpoints(folder / "checkpoints")) == saved
        assert stop.value.run_folder == (folder if saved else None)


def test_w01_a_run_saves_by_default_while_it_runs():
    assert mmgrpo.load_config(None, ["model.name=tiny:qwen2_5_vl"]).train.save_steps > 0


def test_w09_no_memory_left_in_the_update_is_told_with_the_key_to_lower_and_saved(train, tmp_path, monkeypatch):
    from mmgrpo.training import learner

    honest, calls = learner.update, []

    def update(*arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        return honest(*arguments, **more)

    monkeypatch.setattr(learner, "update", update)
    match = r"update ran out of memory(.|\n)*train.max_batch_tokens 200(.|\n)*2.00 GiB(.|\n)*Lower train.max_batch"
    said = said_by(train, TrainingError, match, **FOUR)
    assert list(complete_checkpoints(tmp_path / "runs" / "run" / "checkpoints")) == [2]
    assert "step-2 is saved" in said


@pytest.mark.parametrize(
    ("key", "changes"),
    [("rollout.max_rows", {}), ("eval.batch_size", {"eval": {"at_start": True}})],
    ids=["rollout", "evaluation"],
)
def test_w09_no_memory_left_in_generation_is_told_with_the_key_to_lower(train, monkeypatch, key, changes):
    from mmgrpo.rollout import local

    def start_decoding(*arguments, **more):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(local, "start_decoding", start_decoding)
    with pytest.raises(mmgrpo.RolloutError, match=rf"out of memory(.|\n)*Lower (.|\n)*{key}"):
        train(**changes)
