"""Resumed equals straight: stopped at step 3 of 6 and gone on with, bit for bit on one CPU."""

from __future__ import annotations

import json
import math

import pytest
import torch

import mmgrpo
from mmgrpo.cli import main
from mmgrpo.errors import CheckpointError
from mmgrpo.observe.sinks import read_rows
from mmgrpo.training.manifest import complete_checkpoints, latest

SIX = {"num_steps": 6, "lr_scheduler_type": "cosine", "warmup_steps": 2}
WARM = {"data": {"synthetic": "counting", "rows": 20, "seed": 3}, "num_steps": 2, "batch_size": 4}
FULL = {}
LORA = {"model": {"tune": "lora"}, "loss": {"beta": 0.1}}
EVERYTHING = {
    "warm_start": WARM,
    "loss": {"beta": 0.1},
    "eval": {"eval_steps": 1},
    "train": {"save_best": "eval/rewards/letters/mean", "save_total_limit": 1, "save_steps": 1},
}
MANY_UPDATES = {
    "train": {"optimizer_steps": 2},
    "loss": {"num_iterations": 2},
    "checks": {"drift_logprobs": 1e9},
}
HALF = {"model": {"dtype": "bfloat16"}, "train": {"optim": "sgd"}}
CASES = [
    pytest.param(FULL, id="full"),
    pytest.param(LORA, id="adapters and a KL term"),
    pytest.param(EVERYTHING, id="warm start, KL term, evaluations, the best kept"),
    pytest.param(MANY_UPDATES, id="several optimizer steps and iterations, scaled rewards", marks=pytest.mark.slow),
    pytest.param(HALF, id="bfloat16 with master weights", marks=pytest.mark.slow),
]


def six(changes):
    return {**changes, "train": {**SIX, **changes.get("train", {})}}


def stop_at(step):
    return lambda done, metrics: done < step


def equal(a, b, place=""):
    """Compare nested values, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), place
    elif isinstance(a, dict):
        assert list(a) == list(b), place
        for key in a:
            equal(a[key], b[key], f"{place}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), place
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            equal(x, y, f"{place}/{i}")
    else:
        assert a == b or (a != a and b != b), place


def is_timing(name):
    return name.startswith(("seconds/", "checks/")) or name in ("step_time", "peak_memory_bytes") or "seconds" in name


def rows_of(folder):
    return [{k: v for k, v in row.items() if not is_timing(k)} for row in read_rows(folder / "metrics.jsonl")]


def completions_of(folder):
    """All logged completions by file, without the folder that copies of pictures lie in."""
    return {
        file.name: file.read_text(encoding="utf-8").replace(str(folder), "")
        for file in sorted((folder / "completions").glob("*.jsonl"))
    }


def assert_same(one, other):
    """Compare two run folders: checkpoints whole, metrics and completions."""
    assert list(complete_checkpoints(one / "checkpoints")) == list(complete_checkpoints(other / "checkpoints"))
    for step, folder in complete_checkpoints(one / "checkpoints").items():
        twin = other / "checkpoints" / f"step-{step}"
        equal(*(torch.load(f / "state.pt", weights_only=True) for f in (folder, twin)), place=f"step {step}")
        equal(*(json.loads((f / "progress.json").read_text()) for f in (folder, twin)), place=f"step {step}")
        for file in sorted((folder / "policy").iterdir()):
            assert file.read_bytes() == (twin / "policy" / file.name).read_bytes(), f"{step}/{file.name}"
    equal(rows_of(one), rows_of(other))
    equal(completions_of(one), completions_of(other))


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_equals_straight_bit_for_bit(case, train, reward_file):
    changes = six(case)
    if case is MANY_UPDATES:
        changes["rewards"] = [{"fn": reward_file, "scale": "running"}]
    # what is saved at the stop, and at the stop alone, would be one checkpoint more
    changes["train"].setdefault("save_steps", 3)
    straight = train("straight", **changes)
    stopped = train("stopped", on_step=stop_at(3), **changes)
    assert (stopped.steps, stopped.stopped) == (3, "the on_step callback")
    resumed = train(resume=stopped.path)
    assert (resumed.steps, resumed.stopped) == (6, None)
    equal(straight.policy.model.state_dict(), resumed.policy.model.state_dict())
    assert_same(straight.path, resumed.path)
    moved = torch.load(straight.path / "checkpoints" / "step-6" / "state.pt", weights_only=True)["optimizer"]
    assert moved["steps_taken"] == 6 * changes["train"].get("optimizer_steps", 1) * changes.get("loss", {}).get(
        "num_iterations", 1
    )


def test_the_runs_that_are_compared_do_learn(train):
    """Else bit for bit would be trivial."""
    rows = train(**six({})).metrics()
    assert len({row["reward"] for row in rows}) == 6
    assert all(row["grad_norm"] > 0 for row in rows)


def test_one_step_more_is_not_the_same(train):
    run = train("straight", **six({}))
    other = train("other", **six({"rollout": {"seed": 1}}))
    with pytest.raises(AssertionError):
        equal(run.policy.model.state_dict(), other.policy.model.state_dict())


def test_command_line_and_python_give_the_same_run(yaml_file, train, tmp_path, capsys):
    changes = six({"warm_start": WARM, "eval": {}, "train": {"save_steps": 3}})
    straight = train("straight", **changes)
    file = yaml_file("cli", **changes)
    assert main(["train", str(file), "train.max_seconds=3600"]) == 0
    assert_same(straight.path, tmp_path / "runs" / "cli")
    assert "held-out rows" in capsys.readouterr().err


def test_the_command_line_resumes_the_newest_run_of_a_yaml(yaml_file, train, tmp_path, capsys):
    changes = six({"train": {"save_steps": 3}})
    straight = train("straight", **changes)
    file = yaml_file("cli", **changes)
    mmgrpo.train(file, on_step=stop_at(3))
    assert "Go on: mmgrpo train --resume " in capsys.readouterr().err
    assert main(["train", str(file), "--resume"]) == 0
    assert_same(straight.path, tmp_path / "runs" / "cli")
    assert "resumed after step 3" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "cli-2").exists()


def test_evaluations_of_a_resumed_run_are_those_of_the_straight_one(train):
    changes = six({"eval": {"eval_steps": 2}})
    straight = train("straight", **changes)
    stopped = train("stopped", on_step=stop_at(3), **changes)
    assert stopped.after is None
    resumed = train(resume=stopped.path)
    for name in ("before", "after"):
        one, other = getattr(straight, name), getattr(resumed, name)
        assert one.greedy == other.greedy and one.sampled == other.sampled
        assert one.greedy_rows == other.greedy_rows and one.sampled_rows == other.sampled_rows
        assert {**one.settings, "model": ""} == {
            **other.settings,
            "background": one.settings["background"],
            "model": "",
        }
    assert straight.improved() == resumed.improved()


def test_g02_steps_never_fall_in_the_metrics_also_after_a_resume_in_the_middle(train):
    run = train(on_step=stop_at(4), **six({"eval": {"eval_steps": 3}, "train": {"save_steps": 3}}))
    (run.path / "checkpoints" / "step-4" / "COMPLETE").unlink()  # as if the run had died while saving step 4
    train(resume=run.path)
    steps = [row["step"] for row in read_rows(run.path / "metrics.jsonl")]
    assert steps == sorted(steps)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in run.eval_metrics()] == [0, 3, 6]
    assert [row["step"] for row in read_rows(run.path / "metrics.replaced.jsonl")] == [4]


@pytest.mark.slow
def test_a_run_that_died_before_its_first_checkpoint_starts_again_in_its_folder(train):
    changes = six({"warm_start": WARM, "eval": {}, "train": {"save_steps": 6}})
    straight = train("straight", **changes)

    def die(step, metrics):
        if step == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train("died", on_step=die, **changes)
    died = straight.path.with_name("died")
    for folder in complete_checkpoints(died / "checkpoints").values():  # that of the warm start
        (folder / "COMPLETE").unlink()
    resumed = train(resume=died)
    assert resumed.steps == 6
    equal(straight.policy.model.state_dict(), resumed.policy.model.state_dict())
    equal(rows_of(straight.path), rows_of(died))


@pytest.mark.slow
def test_a_warm_start_is_not_done_twice(train, monkeypatch):
    changes = six({"warm_start": WARM, "train": {"save_steps": 4}})
    straight = train("straight", **changes)

    def die(step, metrics):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train("died", on_step=die, **changes)
    died = straight.path.with_name("died")
    assert list(complete_checkpoints(died / "checkpoints")) == [0, 1]  # the warm start, and the step that was done
    monkeypatch.setattr("mmgrpo.running.warm_start.warm_start", None)
    resumed = train(resume=died)
    equal(straight.policy.model.state_dict(), resumed.policy.model.state_dict())


def test_the_best_and_the_newest_checkpoints_are_kept(train):
    values = [0.0, 0.5, 0.9, 0.1, 0.2, 0.3, 0.4]
    changes = six({"eval": {"eval_steps": 1, "at_start": False}})
    changes["train"] |= {"save_steps": 1, "save_total_limit": 2, "save_best": "eval/accuracy"}
    with pytest.MonkeyPatch.context() as patch:
        from mmgrpo.evaluation.results import Report

        honest = Report.metrics
        patch.setattr(Report, "metrics", lambda self: honest(self) | {"eval/accuracy": values[self.step]})
        run = train(**changes)
    assert list(complete_checkpoints(run.path / "checkpoints")) == [2, 5, 6]


def test_the_last_steps_are_kept_when_the_evaluation_behind_them_fails(train):
    calls = []

    def fails_late(completions, answer, trainer_state):
        calls.append(trainer_state.global_step)
        if trainer_state.global_step == 3:  # the evaluation at the end: steps of training see 0, 1 and 2
            raise ZeroDivisionError("late")
        return [float(len(text)) for text in completions]

    with pytest.raises(mmgrpo.RewardError, match="late"):
        train(rewards=[fails_late], eval={})
    assert calls.count(3) == 1
    folder = train("ok", eval={}).path.with_name("run")
    assert list(complete_checkpoints(folder / "checkpoints")) == [3]
    resumed = train(resume=folder, rewards=[lambda completions: [0.5] * len(completions)])
    assert resumed.after is not None and resumed.before is not None


def test_a_finished_run_that_is_resumed_evaluates_nothing_again_and_changes_nothing(train, monkeypatch):
    run = train(eval={})
    before = (run.path / "metrics.jsonl").read_bytes()
    checkpoint = latest(run.path / "checkpoints").stat().st_mtime_ns
    monkeypatch.setattr("mmgrpo.evaluation.evaluator.SuiteEvaluator.evaluate", None)
    again = train(resume=run.path)
    assert again.after.greedy_rows == run.after.greedy_rows
    assert (run.path / "metrics.jsonl").read_bytes() == before
    assert latest(run.path / "checkpoints").stat().st_mtime_ns == checkpoint


def test_a_run_without_a_reference_cannot_be_resumed_with_a_kl_term(train):
    run = train(on_step=stop_at(2))
    with pytest.raises(CheckpointError, match=r"holds no reference(.|\n)*loss\.beta 0\.1"):
        mmgrpo.train(resume=run.path, overrides=["loss.beta=0.1"])


def test_resuming_with_another_length_goes_on_from_where_it_stood(train):
    run = train()
    more = mmgrpo.train(resume=run.path, train={"num_steps": 5})
    assert more.steps == 5
    assert [row["step"] for row in more.metrics()] == [1, 2, 3, 4, 5]


def test_what_a_resume_changes_is_part_of_the_run_from_then_on(train, capsys):
    run = train(on_step=stop_at(2))
    first = run.folder.config.read_text()
    assert main(["train", "--resume", str(run.path), "train.num_steps=4", "observe.log_completions=1"]) == 0
    assert "train.num_steps 3 -> 4, observe.log_completions 100 -> 1" in capsys.readouterr().err
    assert mmgrpo.load_config(run.folder.config).train.num_steps == 4
    assert (run.path / "config.before-start-2.yaml").read_text() == first
    assert run.folder.starts()[-1]["changed"] == {"train.num_steps": "3 -> 4", "observe.log_completions": "100 -> 1"}
    again = mmgrpo.train(resume=run.path, train={"max_seconds": 3600.0})
    assert again.steps == 4
    assert again.assembly.config.observe.log_completions == 1


def test_a_resume_that_fails_changes_nothing(train):
    run = train(on_step=stop_at(2))
    before = run.folder.config.read_text()
    with pytest.raises(CheckpointError):
        mmgrpo.train(resume=run.path, overrides=["loss.beta=0.1"])
    assert run.folder.config.read_text() == before
    assert train(resume=run.path).steps == 3


def test_what_is_not_a_run_cannot_be_resumed(tmp_path, train, capsys):
    with pytest.raises(CheckpointError, match="No such run folder"):
        train(resume=tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.yaml"):
        train(resume=tmp_path)
    assert main(["train", "--resume", str(tmp_path / "nowhere")]) == 2


def test_numbers_that_are_not_finite_are_told_apart_here():
    equal({"a": math.nan}, {"a": math.nan})
    with pytest.raises(AssertionError):
        equal([torch.zeros(2)], [torch.tensor([0.0, 1e-45])])
