"""Metrics, the JSONL file, and trackers."""

import json
import math
import os
import sys
import types
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.metrics import Max, Mean, Min, Sum, merge, values
from mmgrpo.observe.sinks import JsonlSink, Sinks, read_rows
from mmgrpo.observe.trackers import RunName, open_tracker

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20)


@given(NUMBERS, st.integers(0, 20))
def test_merging_parts_gives_what_the_whole_gives(numbers, cut):
    parts = [part for part in (numbers[:cut], numbers[cut:]) if part]
    kinds = {
        "mean": (lambda part: Mean(sum(part) / len(part), len(part)), sum(numbers) / len(numbers)),
        "sum": (lambda part: Sum(sum(part)), sum(numbers)),
        "max": (lambda part: Max(max(part)), max(numbers)),
        "min": (lambda part: Min(min(part)), min(numbers)),
    }
    merged = values(merge([{name: make(part) for name, (make, _) in kinds.items()} for part in parts]))
    assert merged == pytest.approx({name: whole for name, (_, whole) in kinds.items()}, abs=1e-9)


def test_an_empty_mean_adds_nothing():
    assert Mean(math.nan, 0).merge(Mean(2.0, 3)) == Mean(2.0, 3)
    assert Mean(2.0, 3).merge(Mean(math.nan, 0)) == Mean(2.0, 3)


def test_two_reductions_under_one_name_are_refused():
    with pytest.raises(ValueError, match="kl has two kinds of reduction: Mean and Sum"):
        merge([{"kl": Mean(1.0)}, {"kl": Sum(1.0)}])


def test_every_row_is_strict_json_and_nothing_is_hidden(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.log(1, {"loss": math.nan, "kl": -math.inf, "reward": 0.5, "tokens": 7})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0], parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "kl": None,
        "reward": 0.5,
        "tokens": 7,
        "not_finite": {"loss": "nan", "kl": "-inf"},
    }
    row = read_rows(tmp_path / "metrics.jsonl")[0]
    assert math.isnan(row["loss"])
    assert row["kl"] == -math.inf
    sink.close()


def test_a_row_can_be_read_as_soon_as_it_is_logged(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.log(1, {"x": 1.0})
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1, "x": 1.0}]
    sink.close()


def test_resume_keeps_rows_through_the_step_and_moves_the_rest_aside(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "x": 1}\n{"step": 3, "x": 2}\n{"step": 4, "x": 3}\n{"step": 5, "x')
    sink = JsonlSink(path, last_step=3)
    sink.log(4, {"x": 9.0})
    sink.close()
    assert [row["step"] for row in read_rows(path)] == [2, 3, 4]
    assert (tmp_path / "metrics.replaced.jsonl").read_text() == '{"step": 4, "x": 3}\n{"step": 5, "x\n'


def test_a_late_step_is_kept_and_marked(tmp_path):
    sinks = Sinks([JsonlSink(tmp_path / "m.jsonl")])
    sinks.log(5, {"x": 1.0})
    sinks.log(3, {"y": 2.0})
    sinks.close()
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 5, "x": 1.0}, {"step": 5, "y": 2.0, "late_step": 3.0}]


def test_a_full_disk_is_told_with_the_folder():
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    sink = JsonlSink("/dev/full")
    with pytest.raises(CheckpointError, match=r"The disk is full.\n  where: /dev\n"):
        sink.log(1, {"x": 1.0})
    sink.close()


def run_name(folder, **more):
    return RunName(name="count", folder=folder, **more)


def test_a_tracker_that_is_not_installed_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r'pip install "mmgrpo\[track\]"'):
        open_tracker("wandb", run_name(tmp_path))
    with pytest.raises(ConfigError, match="Unknown tracker"):
        open_tracker("mlflow", run_name(tmp_path))


def test_tensorboard_gets_every_metric(tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        sink = open_tracker("tensorboard", run_name(tmp_path))
        sink.log(1, {"reward": 0.25})
        sink.log(2, {"reward": 0.5})
        sink.close()
        resumed = open_tracker("tensorboard", run_name(tmp_path, last_step=1))
        resumed.log(2, {"reward": 0.75})
        resumed.close()
        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [(1, 0.25), (2, 0.75)]


@pytest.fixture
def wandb(monkeypatch):
    """Stand in for the service, which is not reachable in tests."""
    calls = []

    class FakeRun:
        id = "abc"

        def define_metric(self, *args, **options):
            calls.append(("define_metric", args, options))

        def log(self, row):
            calls.append(("log", row))

        def finish(self):
            calls.append(("finish",))

    def init(**options):
        calls.append(("init", options))
        return FakeRun()

    module = types.ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def test_wandb_rows_carry_their_step_as_a_metric_so_that_none_is_thrown_away(wandb, tmp_path):
    sink = open_tracker("wandb", run_name(tmp_path))
    sink.log(3, {"reward": 0.5})
    sink.close()
    assert ("log", {"reward": 0.5, "step": 3}) in wandb
    assert ("define_metric", ("*",), {"step_metric": "step"}) in wandb
    open_tracker("wandb", run_name(tmp_path, last_step=3))
    starts = [call[1]["id"] for call in wandb if call[0] == "init"]
    assert starts == [None, "abc"]


def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(wandb, tmp_path, monkeypatch):
    sink = open_tracker("wandb", run_name(tmp_path))
    monkeypatch.setattr(sink._sink._run, "log", lambda row: 1 / 0, raising=False)
    with pytest.warns(RuntimeWarning, match="wandb failed and is switched off") as caught:
        for step in range(3):
            sink.log(step, {"x": 1.0})
        sink.close()
    assert len(caught) == 1


def test_a_tracker_that_cannot_start_warns_and_the_run_goes_on(tmp_path, monkeypatch):
    module = types.ModuleType("trackio")
    module.init = lambda **options: (_ for _ in ()).throw(ConnectionError("no network"))
    monkeypatch.setitem(sys.modules, "trackio", module)
    with pytest.warns(RuntimeWarning, match="no network"):
        sink = open_tracker("trackio", run_name(tmp_path))
    sink.log(1, {"x": 1.0})
    sink.close()
