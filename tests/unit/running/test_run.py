"""The run: what follows a step, in which order, and when it ends."""

import pytest

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.running.run import Every, Hooks, Run


class NoStop:
    reason = None


class Journal:
    """Remembers what the run called."""

    def __init__(self, evaluations=(), on_step=None):
        self.calls = []
        self.evaluations = iter(evaluations)
        self.on_step = on_step or (lambda step, metrics: None)

    def hooks(self):
        def note(name, result=None):
            def call(*arguments):
                self.calls.append((name, arguments[0]))
                return result

            return call

        def evaluate(step):
            self.calls.append(("evaluate", step))
            return {"eval/accuracy": next(self.evaluations)}

        def save(step, best):
            self.calls.append(("save", (step, best)))

        return Hooks(
            seconds=lambda: {"data": 1.0},
            figures=lambda: {"extra": 2.0},
            log=note("log"),
            show=lambda metrics: None,
            write_completions=note("completions"),
            evaluate=evaluate,
            save=save,
            on_step=self.on_step,
        )

    def of(self, name):
        return [step for called, step in self.calls if called == name]


def run_of(journal, total=4, **every):
    return Run(
        num_steps=total,
        hooks=journal.hooks(),
        every=Every(**{"log": 0, "evaluate": 0, "save": 0, **every}),
        stop=NoStop(),
    )


def go(run, make_scored, stats):
    for step in run.steps():
        run.record(step, [make_scored("a", [0.0, 1.0])], stats)


def test_things_happen_when_they_are_due(make_scored, nothing_done):
    journal = Journal(evaluations=[0.1, 0.2])
    run = run_of(journal, total=5, log=2, evaluate=2, save=3)
    go(run, make_scored, nothing_done)
    assert journal.of("log") == [1, 2, 3, 4, 5]
    assert journal.of("completions") == [2, 4, 5]  # and always the last
    assert journal.of("evaluate") == [2, 4]
    assert journal.of("save") == [(3, None)]


def test_the_last_evaluation_is_left_to_the_end_of_the_run(make_scored, nothing_done):
    journal = Journal(evaluations=[0.1])
    go(run_of(journal, total=4, evaluate=2), make_scored, nothing_done)
    assert journal.of("evaluate") == [2]


def test_a_steps_metrics_are_written_before_the_evaluation_that_may_fail(make_scored, nothing_done):
    journal = Journal(evaluations=[0.5])
    go(run_of(journal, total=2, evaluate=1, save=1), make_scored, nothing_done)
    order = [name for name, _ in journal.calls if name in ("log", "evaluate", "save")]
    assert order == ["log", "evaluate", "save", "log", "save"]


def test_the_callback_sees_all_metrics_of_the_step_with_the_evaluation(make_scored, nothing_done):
    seen = []
    journal = Journal(evaluations=[0.5], on_step=lambda step, metrics: seen.append((step, dict(metrics))))
    run = run_of(journal, total=2, evaluate=1)
    go(run, make_scored, nothing_done)
    assert [step for step, _ in seen] == [1, 2]
    assert seen[0][1]["eval/accuracy"] == 0.5
    assert {"reward", "extra", "seconds/data", "num_tokens"} <= set(seen[1][1])
    assert run.last == seen[1][1]


def test_a_callback_that_returns_false_stops_the_run(make_scored, nothing_done):
    journal = Journal(on_step=lambda step, metrics: step < 2)
    run = run_of(journal, total=5)
    go(run, make_scored, nothing_done)
    assert run.done == 2
    assert run.stopped == "the on_step callback"


@pytest.mark.parametrize("returned", [None, True, 0, "no"])
def test_a_callback_that_returns_anything_else_does_not_stop_it(returned, make_scored, nothing_done):
    run = run_of(Journal(on_step=lambda step, metrics: returned), total=2)
    go(run, make_scored, nothing_done)
    assert (run.done, run.stopped) == (2, None)


def test_a_callback_cannot_stop_a_run_that_is_at_its_end(make_scored, nothing_done):
    run = run_of(Journal(on_step=lambda step, metrics: step < 2), total=2)
    go(run, make_scored, nothing_done)
    assert (run.done, run.stopped) == (2, None)


def test_a_reason_to_stop_is_looked_for_before_each_step(make_scored, nothing_done):
    journal = Journal()
    run = run_of(journal, total=5)
    run.stop = type("Stop", (), {"reason": property(lambda self: "SIGTERM" if run.done == 3 else None)})()
    go(run, make_scored, nothing_done)
    assert (run.done, run.stopped) == (3, "SIGTERM")


def test_a_resumed_run_goes_on_behind_its_last_step(make_scored, nothing_done):
    journal = Journal()
    run = run_of(journal, total=5)
    run.done = 3
    assert next(run.steps()) == 3
    run = run_of(journal, total=5)
    run.done = 5
    assert list(run.steps()) == []


def test_the_best_checkpoint_is_saved_when_it_comes_and_noted(make_scored, nothing_done):
    journal = Journal(evaluations=[0.5, 0.7, 0.6, 0.7])
    run = run_of(journal, total=5, evaluate=1, best_metric="eval/accuracy")
    go(run, make_scored, nothing_done)
    assert journal.of("save") == [(1, 1), (2, 2)]  # an equal value later is not better
    assert (run.best_step, run.best_value) == (2, 0.7)


def test_the_best_is_remembered_over_a_resume():
    run = run_of(Journal(), best_metric="eval/accuracy")
    run.load_state({"best_step": 3, "best_value": 0.7})
    run.done = 4
    assert run.note_best({"eval/accuracy": 0.6}) is False
    assert run.note_best({"eval/accuracy": 0.8}) is True
    assert run.state() == {"best_step": 4, "best_value": 0.8}


def test_a_metric_that_no_evaluation_has_is_told_with_those_there_are():
    run = run_of(Journal(), best_metric="eval/acuracy")
    with pytest.raises(ConfigError, match=r"train\.save_best(.|\n)*eval/accuracy(.|\n)*eval/acuracy"):
        run.note_best({"eval/accuracy": 0.6})


def test_a_checkpoint_is_written_once_unless_asked_again():
    journal = Journal()
    run = run_of(journal)
    run.done = 2
    run.save()
    run.save()
    run.save(again=True)
    assert journal.of("save") == [(2, None), (2, None)]


def test_a_checkpoint_that_could_not_be_written_counts_as_not_written(make_scored, nothing_done):
    def fail(step, best):
        raise CheckpointError("The disk is full.")

    journal = Journal()
    run = run_of(journal, save=1)
    run.hooks = Hooks(seconds=dict, save=fail)
    with pytest.raises(CheckpointError):
        run.record(0, [make_scored("a", [0.0, 1.0])], nothing_done)
    assert run.saved is None
