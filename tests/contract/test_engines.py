"""The contract of an engine, driven through a whole life by engines that share weights, copy them, and have none.

Warm start, evaluation, steps, evaluation, a stop, a resume. An engine of a user's own is one file that the YAML names.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mmgrpo
from mmgrpo.assemble import ENGINES
from mmgrpo.errors import ConfigError, WeightSyncError

FILE = Path(__file__).parent / "extend" / "copy_engine.py"
LIFE = {
    "warm_start": {"data": {"synthetic": "counting", "rows": 12, "seed": 3}, "num_steps": 2, "batch_size": 4},
    "eval": {"eval_steps": 2, "sampled": False},
    "train": {"num_steps": 4, "save_steps": 1},
}
SCRIPTED = """
from mmgrpo import ScriptedEngine


def build(*, policy, config):
    words = ["four", "4 cubes!", "<answer>4</answer>"]
    return ScriptedEngine(lambda sample, index: words[index % 3], tokenizer=policy.tokenizer)
"""
UNCHECKED = {"checks": {"engine_logprobs": False, "weight_sync": False, "drift_logprobs": 1e9}}


@pytest.fixture
def scripted(tmp_path):
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    return f"{tmp_path / 'scripted.py'}:build"


def weights_of(run):
    return {name: p.detach().clone() for name, p in run.policy.model.named_parameters()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


ADAPTER = {"model": {"tune": "lora", "lora": {"r": 4}}}


@pytest.mark.parametrize("tuned", [{}, ADAPTER], ids=["all weights", "an adapter"])
def test_an_engine_with_a_copy_of_the_weights_writes_what_the_trainers_own_does(train, tuned):
    local = train("local", **LIFE, **tuned)
    copied = train("copied", rollout={"engine": f"{FILE}:CopyEngine"}, **LIFE, **tuned)
    for mine, theirs in zip(local.metrics(), copied.metrics(), strict=True):
        for name in ("reward", "completions/mean_length"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-9)
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
    assert local.eval_metrics()[-1] == pytest.approx(copied.eval_metrics()[-1], abs=1e-6, nan_ok=True)


def test_weights_reach_an_engine_at_the_start_after_the_warm_start_and_at_each_step(train):
    run = train("copied", rollout={"engine": f"{FILE}:CopyEngine"}, **LIFE)
    calls = [call for call in run.assembly.engine.calls if call[0] in ("start", "load_weights")]
    assert calls == [("start", 0), *(("load_weights", step) for step in (1, 2, 3, 4))]
    order = [call[0] for call in run.assembly.engine.calls]
    assert order == ["start", *["release", "load_weights", "reacquire"] * 4]
    run.close()
    assert run.assembly.engine.calls[-1] == ("close",)


@pytest.mark.parametrize("engine", ["local", f"{FILE}:CopyEngine", "scripted"])
def test_a_run_that_is_stopped_and_resumed_is_the_straight_one_with_any_engine(train, scripted, engine):
    rollout = {"engine": scripted if engine == "scripted" else engine}
    changes = {**LIFE, **(UNCHECKED if engine == "scripted" else {}), "rollout": rollout}
    straight = train("straight", **changes)
    stopped = train("stopped", on_step=lambda step, metrics: step < 2, **changes)
    assert stopped.steps == 2 and stopped.stopped == "the on_step callback"
    resumed = mmgrpo.train(resume=stopped.path)
    assert resumed.steps == 4 and equal(weights_of(straight), weights_of(resumed))
    if engine.endswith("CopyEngine"):
        assert resumed.assembly.engine.calls[0] == ("start", 2)
    assert resumed.generate("How many?", count=2)


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("StaleEngine", r"does not write with the trainer's weights: log-probs differ"),
        ("LateEngine", r"does not write with the trainer's weights: log-probs differ"),
        ("ForgetfulEngine", r"version of the weights differ(.|\n)*expected: 1(.|\n)*got: 0"),
    ],
)
@pytest.mark.parametrize("rate", [1e-2, 1e-5])
def test_an_engine_that_does_not_follow_is_found_at_the_first_sync(train, engine, told, rate):
    with pytest.raises(WeightSyncError, match=told):
        train(rollout={"engine": f"{FILE}:{engine}"}, train={"learning_rate": rate, "num_steps": 3})


def test_without_the_check_a_stale_engine_goes_on(train):
    run = train(
        rollout={"engine": f"{FILE}:StaleEngine"},
        checks={"weight_sync": False, "drift_logprobs": 1e9},
        train={"num_steps": 2, "learning_rate": 1e-5},
    )
    assert run.steps == 2


def test_what_the_probe_measures_is_logged(train):
    run = train(rollout={"engine": f"{FILE}:CopyEngine"}, train={"num_steps": 1})
    assert run.metrics()[0]["checks/weight_sync/max"] < 1e-4


def test_an_engine_that_does_not_exist_is_told_with_its_key(train):
    with pytest.raises(ConfigError, match=r"rollout.engine: expected local, or path.py:name(.|\n)*Write local"):
        train(rollout={"engine": "lokal"})


def test_the_table_names_the_engines_that_come_with_mmgrpo():
    assert list(ENGINES) == ["local"]
