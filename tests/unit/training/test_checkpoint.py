from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mmgrpo.config.train import Train
from mmgrpo.errors import CheckpointError
from mmgrpo.training import checkpoint, manifest, random_streams
from mmgrpo.training.checkpoint import Progress, load, save
from mmgrpo.training.manifest import complete_checkpoints, latest, why_incomplete
from mmgrpo.training.optimizer import Optimizer, Schedule


@pytest.fixture
def optimizer(policy):
    return Optimizer(policy.trainable(), settings=Train(), schedule=Schedule(peak=0.1))


def at(step, **facts):
    return Progress(step=step, policy_version=step, feed={"consumed": 8 * step}, **facts)


def learn(policy, optimizer):
    for _, parameter in policy.trainable():
        parameter.grad = torch.randn_like(parameter) + random.random() + np.random.rand()
    optimizer.step()


def test_a_resumed_run_continues_bit_for_bit(tmp_path, policy, optimizer, make_policy):
    random_streams.seed_everything(7)
    learn(policy, optimizer)
    path = save(tmp_path / "checkpoints", at(1, metrics={"best": 0.5}), policy=policy, optimizer=optimizer)
    learn(policy, optimizer)

    random_streams.seed_everything(99)
    other = make_policy(seed=5)
    resumed = Optimizer(other.trainable(), settings=Train(), schedule=Schedule(peak=0.1))
    progress = load(path, policy=other, optimizer=resumed)
    assert progress == at(1, metrics={"best": 0.5})
    learn(other, resumed)
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in policy.state_dict().items())
    assert all(torch.equal(v, other.frozen[k]) for k, v in policy.frozen.items())
    assert resumed.steps_taken == 2


def test_saving_does_not_disturb_the_run(tmp_path, policy, optimizer):
    random_streams.seed_everything(7)
    expected = (random.random(), np.random.rand(), float(torch.rand(())))
    random_streams.seed_everything(7)
    save(tmp_path, at(1), policy=policy, optimizer=optimizer)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


def test_the_limit_keeps_the_newest_and_the_best(tmp_path, policy, optimizer):
    for step in range(1, 6):
        save(tmp_path, at(step, best_step=2), policy=policy, optimizer=optimizer, limit=2)
    assert list(complete_checkpoints(tmp_path)) == [2, 4, 5]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-2", "step-4", "step-5"]


def test_the_newest_is_by_number_not_by_name(tmp_path, policy, optimizer):
    for step in (9, 10):
        save(tmp_path, at(step), policy=policy, optimizer=optimizer)
    assert latest(tmp_path) == tmp_path / "step-10"


def test_there_is_no_latest_in_a_folder_that_is_empty_or_missing(tmp_path):
    assert latest(tmp_path) is None and latest(tmp_path / "none") is None


@pytest.mark.parametrize(
    "harm",
    [
        lambda p: (p / "COMPLETE").unlink(),
        lambda p: (p / "COMPLETE").write_text("{"),
        lambda p: (p / "policy" / "weights.pt").unlink(),
        lambda p: (p / "state.pt").write_bytes((p / "state.pt").read_bytes()[:-1]),
        lambda p: (p / "progress.json").write_text((p / "progress.json").read_text().replace("2", "3")),
    ],
    ids=["no manifest", "half a manifest", "a file missing", "a file cut", "a byte changed"],
)
def test_a_harmed_checkpoint_is_passed_over_and_refused_with_the_way_out(tmp_path, policy, optimizer, harm):
    for step in (1, 2):
        save(tmp_path, at(step), policy=policy, optimizer=optimizer)
    harm(tmp_path / "step-2")
    assert latest(tmp_path) == tmp_path / "step-1"
    with pytest.raises(CheckpointError, match=r"step-2(.|\n)*Resume from .*step-1"):
        load(tmp_path / "step-2", policy=policy, optimizer=optimizer)


def test_loading_runs_no_code_of_the_file(tmp_path, policy, optimizer):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    path = save(tmp_path, at(1), policy=policy, optimizer=optimizer)
    torch.save({"optimizer": Evil()}, path / "state.pt")
    manifest.finalize(path)
    with pytest.raises(CheckpointError):
        load(path, policy=policy, optimizer=optimizer)
    assert not (tmp_path / "owned").exists()


class Killed(BaseException):
    """Stands for kill -9: no cleaning up happens on it."""


def test_dying_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path, policy, optimizer, monkeypatch):
    """Steps 1 and 2 are saved; then 2 is saved again and dies at its n-th operation, for every n."""
    operations = [
        (os, "rename"),
        (os, "fsync"),
        (os, "mkdir"),
        (torch, "save"),
        (shutil, "rmtree"),
        (Path, "write_text"),
    ]
    died = 0
    for n in range(1, 100):
        folder = tmp_path / str(n)
        for step in (1, 2):
            save(folder, at(step), policy=policy, optimizer=optimizer)
        left = [n]

        def dying(real, left=left):
            def run(*args, **kwargs):
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return real(*args, **kwargs)

            return run

        with monkeypatch.context() as patch:
            for owner, name in operations:
                patch.setattr(owner, name, dying(getattr(owner, name)))
            try:
                save(folder, at(2), policy=policy, optimizer=optimizer, limit=1)
            except Killed:
                died += 1
        newest = latest(folder)
        assert load(newest, policy=policy, optimizer=optimizer).step == 2
        save(folder, at(3), policy=policy, optimizer=optimizer, limit=2)
        assert sorted(p.name for p in folder.iterdir()) == ["step-2", "step-3"]
        if left[0] > 0:
            break
    assert died > 10 and left[0] > 0


def test_a_save_that_fails_keeps_earlier_checkpoints_and_says_what_to_do(tmp_path, policy, optimizer, monkeypatch):
    save(tmp_path, at(1), policy=policy, optimizer=optimizer)
    monkeypatch.setattr(policy, "save", lambda folder: folder.joinpath("no", "such").write_text("x"))
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path, at(2), policy=policy, optimizer=optimizer, limit=1)
    message = str(caught.value)
    assert "step 2" in message and str(tmp_path / "step-1") in message and "train.output_dir" in message
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path, policy, optimizer):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="no earlier checkpoint"):
        save(tmp_path / "file" / "checkpoints", at(1), policy=policy, optimizer=optimizer)


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path, policy, optimizer):
    """The system refuses to write more than a few bytes to any file, as a full disk does."""
    save(tmp_path, at(1), policy=policy, optimizer=optimizer)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"Free disk space"):
            save(tmp_path, at(2), policy=policy, optimizer=optimizer, limit=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert latest(tmp_path) == tmp_path / "step-1"
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def test_an_old_checkpoint_that_cannot_be_removed_is_a_warning_not_an_end(tmp_path, policy, optimizer, monkeypatch):
    save(tmp_path, at(1), policy=policy, optimizer=optimizer)

    def refused(path, **options):
        raise PermissionError(f"not allowed: {path}")

    monkeypatch.setattr(checkpoint.shutil, "rmtree", refused)
    with pytest.warns(UserWarning, match="could not be removed"):
        save(tmp_path, at(2), policy=policy, optimizer=optimizer, limit=1)
    assert latest(tmp_path) == tmp_path / "step-2"


def test_folders_of_others_are_left_alone(tmp_path, policy, optimizer):
    for name in ("step-7", "notes", "step-best"):
        (tmp_path / name).mkdir(parents=True)
    save(tmp_path, at(1), policy=policy, optimizer=optimizer, limit=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-1", "step-7", "step-best"]
    assert "interrupted" in why_incomplete(tmp_path / "step-7")


def test_the_manifest_lists_every_file_with_its_size(tmp_path, policy, optimizer):
    path = save(tmp_path, at(1), policy=policy, optimizer=optimizer)
    listed = json.loads((path / "COMPLETE").read_text())["files"]
    assert set(listed) == {"policy/weights.pt", "state.pt", "progress.json"}
    assert all((path / name).stat().st_size == facts["bytes"] for name, facts in listed.items())


SAVE_FOREVER = """
import sys, torch
from pathlib import Path
from mmgrpo.config.train import Train
from mmgrpo.training.checkpoint import Progress, save
from mmgrpo.training.optimizer import Optimizer, Schedule

class Policy:
    weight = torch.nn.Parameter(torch.zeros(300_000))
    def save(self, folder):
        folder.mkdir()
        for part in range(3):
            torch.save(self.weight.detach(), folder / f"{part}.pt")
    def reference_state(self):
        return None

policy, folder, step = Policy(), Path(sys.argv[1]), 0
optimizer = Optimizer([("w", policy.weight)], settings=Train(), schedule=Schedule(peak=0.1))
while True:
    step += 1
    with torch.no_grad():
        policy.weight.fill_(step)
    save(folder, Progress(step=step, policy_version=step, feed={}), policy=policy, optimizer=optimizer, limit=2)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_killed_at_random_moments_the_last_whole_checkpoint_loads(tmp_path):
    moments = random.Random(0)
    for trial in range(6):
        folder = tmp_path / str(trial)
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOREVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        with process:
            for _ in range(3):
                process.stdout.readline()
            try:
                process.wait(timeout=moments.uniform(0, 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
            finished = [int(line) for line in process.stdout.read().split()]
        newest = latest(folder)
        step = json.loads((newest / "progress.json").read_text())["step"]
        assert step >= max([3, *finished])
        parts = [torch.load(newest / "policy" / f"{p}.pt", weights_only=True) for p in range(3)]
        assert all(bool((part == step).all()) for part in parts)
