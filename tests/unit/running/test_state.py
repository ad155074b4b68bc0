"""Where a run stands: what is due, which checkpoint is the best, and when it ends."""

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.running.state import Intervals, RunState


class NoStop:
    reason = None


def state_of(total=4, **intervals):
    return RunState(num_steps=total, intervals=Intervals(**{"log": 1, **intervals}), stop=NoStop())


def test_a_resumed_run_continues_behind_its_last_step():
    run = state_of(total=5)
    run.step = 3
    assert next(run.steps()) == 3
    run.step = 5
    assert list(run.steps()) == []


def test_a_reason_to_stop_is_looked_for_before_each_step():
    run = state_of(total=5)
    run.stop = type("Stop", (), {"reason": property(lambda self: "SIGTERM" if run.step == 3 else None)})()
    for step in run.steps():
        run.step = step + 1
    assert (run.step, run.stopped) == (3, "SIGTERM")


@pytest.mark.parametrize(("step", "interval", "due"), [(4, 2, True), (3, 2, False), (4, 0, False)])
def test_what_happens_every_so_many_steps_is_due_then_and_with_zero_never(step, interval, due):
    run = state_of()
    run.step = step
    assert run.is_due(interval) is due


def test_the_best_step_is_the_first_with_the_highest_value():
    run = state_of(best_metric="eval/accuracy")
    for step, value in enumerate([0.5, 0.7, 0.6, 0.7], start=1):
        run.step = step
        run.note_best({"eval/accuracy": value})
    assert (run.best_step, run.best_value) == (2, 0.7)


def test_a_value_that_is_not_a_number_is_never_the_best():
    run = state_of(best_metric="eval/accuracy")
    assert run.note_best({"eval/accuracy": float("nan")}) is False


def test_the_best_is_remembered_over_a_resume():
    run = state_of(best_metric="eval/accuracy")
    run.load_state({"best_step": 3, "best_value": 0.7})
    run.step = 4
    assert run.note_best({"eval/accuracy": 0.6}) is False
    assert run.note_best({"eval/accuracy": 0.8}) is True
    assert run.state() == {"best_step": 4, "best_value": 0.8}


def test_a_metric_that_no_evaluation_has_is_told_with_those_there_are():
    run = state_of(best_metric="eval/acuracy")
    with pytest.raises(ConfigError, match=r"train\.save_best(.|\n)*eval/accuracy(.|\n)*eval/acuracy"):
        run.note_best({"eval/accuracy": 0.6})
