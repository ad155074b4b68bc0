"""Stopped from outside: Ctrl-C, SIGTERM, a time limit, and kill -9 in the middle of a checkpoint."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

import mmgrpo
from mmgrpo.training.manifest import complete_checkpoints, latest, why_incomplete

LONG = {"train": {"num_steps": 2000, "save_steps": 0}}


@pytest.fixture
def child(yaml_file, tmp_path):
    """Start the command line in a process of its own; its output goes to a file that can be read meanwhile."""
    started = []

    def start(*words, code=None):
        log = (tmp_path / f"log-{len(started)}").open("w+b")
        command = [sys.executable, *(["-c", code] if code else ["-m", "mmgrpo"]), *words]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
        started.append(process)
        process.log = log
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.log.close()


def text_of(process):
    with open(process.log.name, encoding="utf-8") as file:
        return file.read()


def wait_for(process, pattern, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if re.search(pattern, text_of(process)):
            return
        assert process.poll() is None, text_of(process)
        time.sleep(0.05)
    raise AssertionError(f"{pattern} did not come:\n{text_of(process)}")


def command_in(text):
    """The words of the command that the run says goes on."""
    found = re.search(r"mmgrpo (train --resume .*)$", text, re.M)
    return shlex.split(found[1])


def test_a_time_limit_saves_and_the_rest_follows_later(train):
    run = train(train={"num_steps": 3, "max_seconds": 1e-9})
    assert (run.steps, run.stopped) == (0, "the time limit of 1e-09 seconds")
    assert list(complete_checkpoints(run.path / "checkpoints")) == [0]
    straight = train("straight")
    assert train(resume=run.path).steps == 0  # the folder's own configuration, limit and all
    again = mmgrpo.train(resume=run.path, overrides=["train.max_seconds=3600"])
    assert again.steps == 3
    for (name, a), (_, b) in zip(straight.policy.trainable(), again.policy.trainable(), strict=True):
        assert torch.equal(a, b), name


def test_a_time_limit_within_the_warm_start_leaves_nothing_half_done(train):
    warm = {"data": {"synthetic": "counting", "rows": 20, "seed": 3}, "num_steps": 50, "batch_size": 2}
    run = train(warm_start=warm, eval={}, train={"max_seconds": 1e-9, "save_steps": 1})
    assert (run.steps, run.before, run.after) == (0, None, None)
    assert run.stopped == "the time limit of 1e-09 seconds"
    assert latest(run.path / "checkpoints") is None
    assert not run.improved()
    assert run.summary()["stopped"] == run.stopped


def test_what_is_said_after_a_stop_fits_what_was_given(train):
    import io

    from rich.console import Console

    screen = Console(file=io.StringIO(), width=200)
    run = train(console=screen, on_step=lambda step, metrics: step < 2)
    said = screen.file.getvalue()
    assert "Stopped by the on_step callback after step 2 of 3; it is saved." in said
    assert f"Go on: mmgrpo train --resume {run.path}" in said
    screen = Console(file=io.StringIO(), width=200)
    train("other", console=screen, rewards=[lambda completions: [0.5] * len(completions)], on_step=lambda s, m: False)
    assert "mmgrpo.train(resume=" in screen.file.getvalue()
    assert "with the same rewards" in screen.file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_prints_the_command_that_goes_on(number, child, yaml_file, tmp_path):
    process = child("train", str(yaml_file(**LONG)))
    wait_for(process, r"GRPO [3-9]/2000")
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    said = text_of(process)
    assert "Stopping after this step, then saving." in said
    assert "Traceback" not in said
    steps = int(re.search(rf"Stopped by {number.name} after step (\d+) of 2000; it is saved", said)[1])
    folder = tmp_path / "runs" / "run"
    assert list(complete_checkpoints(folder / "checkpoints")) == [steps]
    again = child(*command_in(said), f"train.num_steps={steps + 2}")
    assert again.wait(120) == 0, text_of(again)
    assert f"resumed after step {steps}" in text_of(again)
    assert max(complete_checkpoints(folder / "checkpoints")) == steps + 2


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_and_still_tells_how_to_go_on(child, yaml_file):
    file = yaml_file(train={"save_steps": 1, "num_steps": 2000})
    file.with_name("dense.py").write_text(SLOW)
    process = child("train", str(file))
    wait_for(process, r"GRPO 2/2000(.|\n)*scoring")  # step 1 is saved, and a step is going on
    process.send_signal(signal.SIGINT)
    wait_for(process, "Stopping after this step")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    said = text_of(process)
    assert "Traceback" not in said
    assert command_in(said)[:2] == ["train", "--resume"]
    assert latest(file.parent / "runs" / "run" / "checkpoints") is not None


SLOW = """
import time

def letters(completions):
    print("scoring", flush=True)
    time.sleep(3)
    return [float(len(text)) for text in completions]
"""
KILLER = """
import os, pathlib, signal, sys
import torch
from mmgrpo.training import checkpoint

when, name, nth = sys.argv.pop(1).split()
left = int(nth)
place = {"save": torch, "write_text": pathlib.Path, "rmtree": checkpoint.shutil}.get(name, os)
real = getattr(place, name)

def deadly(*arguments, **more):
    global left
    left -= 1
    if left == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*arguments, **more)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

honest = checkpoint.save

def save(*arguments, **more):
    if arguments[1].step == 2:
        setattr(place, name, deadly)
    return honest(*arguments, **more)

checkpoint.save = save
from mmgrpo.cli import main
sys.exit(main(sys.argv[1:]))
"""
MOMENTS = {
    "before save 1": 1,  # the policy is written, optimizer and random streams are not
    "after write_text 1": 1,  # everything is written, nothing is sealed
    "after fsync 3": 1,  # half flushed
    "before rename 1": 1,  # sealed, without its name
    "after rename 1": 2,  # named, the old one not yet removed
    "after rename 2": 2,  # the old one renamed to be removed
    "before rmtree 1": 2,
}
"""When a process dies while it saves step 2, and the step that is gone on from."""


@pytest.mark.slow
def test_killed_in_the_middle_of_a_checkpoint_the_last_whole_one_is_gone_on_with(child, yaml_file, train, tmp_path):
    changes = {"train": {"num_steps": 3, "save_steps": 1, "save_total_limit": 1}}
    straight = train("straight", **changes)
    for moment, kept in MOMENTS.items():
        name = moment.replace(" ", "-")
        process = child(moment, "train", str(yaml_file(name, **changes)), code=KILLER)
        assert process.wait(120) == -signal.SIGKILL, text_of(process)
        folder = tmp_path / "runs" / name
        newest = latest(folder / "checkpoints")
        assert newest is not None and why_incomplete(newest) is None
        assert newest.name == f"step-{kept}", moment
        resumed = train(resume=folder)
        assert resumed.steps == 3
        for (parameter, a), (_, b) in zip(straight.policy.trainable(), resumed.policy.trainable(), strict=True):
            assert torch.equal(a, b), (moment, parameter)
        assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step-3"]
        assert [row["step"] for row in resumed.metrics()] == [1, 2, 3]
