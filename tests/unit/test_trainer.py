"""The life of a run, read with a fake in place of every part: what is called when, and what an error leaves."""

from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import CheckpointError, RewardError, TrainingError
from mmgrpo.grpo.advantages import GroupAdvantages
from mmgrpo.parallel.strategy import Single
from mmgrpo.running.callback import StepCallback, callback_names
from mmgrpo.running.clock import Clock
from mmgrpo.running.quota import DynamicSampling, Quota, RolloutRequest, has_reward_signal, with_equal_names
from mmgrpo.running.state import Intervals, RunState
from mmgrpo.running.step_metrics import reward_metrics
from mmgrpo.trainer import Components, collect, run_training
from mmgrpo.types import Prompt, Sample, Sampling, UpdateStats

SAMPLING = Sampling(max_completion_length=4)


class NoStop:
    reason = None


class Found:
    """An evaluation."""

    def __init__(self, step, accuracy):
        self.step, self.accuracy = step, accuracy

    def metrics(self):
        return {"eval/accuracy": self.accuracy}


class World:
    """Every part of the loop, in one object that writes down what it was asked."""

    names = ("r",)

    def __init__(self, make_scored, evaluations=()):
        self.make_scored = make_scored
        self.calls = []
        self.drawn = 0
        self.evaluations = iter(evaluations)
        self.failing = {}
        self.clock = Clock()

    def note_call(self, *call):
        self.calls.append(call)
        error = self.failing.get(call[0])
        if error is not None:
            raise error

    def called(self, name):
        return [call[1:] for call in self.calls if call[0] == name]

    def order(self, *names):
        return [call[0] for call in self.calls if call[0] in names]

    # the policy and the engine
    def named_weights(self):
        return iter([("w", torch.ones(1))])

    def start(self, first, version=None):
        self.note_call(
            "engine.start" if version is not None else "learner.start", first if version is None else version
        )

    def generate(self, prompts, counts, sampling):
        self.note_call("generate", [p.sample.id for p in prompts], list(counts), sampling)
        return [self.make_scored(p.sample.id, [0.0, 1.0]).group for p in prompts]

    def load_weights(self, weights, version):
        self.note_call("load_weights", [name for name, _ in weights], version)

    def release(self):
        self.note_call("release")

    def reacquire(self):
        self.note_call("reacquire")

    def metrics(self):
        return {}

    # the source of prompts
    def take(self, count):
        self.note_call("take", count)
        self.drawn += count
        numbers = range(self.drawn - count, self.drawn)
        return [
            Prompt(sample=Sample(id=str(n), messages=()), text="", token_ids=torch.zeros(1).long(), model_inputs={})
            for n in numbers
        ]

    def apply_feedback(self, draw_indices, mean_rewards):
        self.note_call("feedback", list(mean_rewards))

    # rewards
    def score(self, groups, step):
        self.note_call("score", step)
        return [self.make_scored(g.prompt.sample.id, [0.0, 1.0]) for g in groups]

    # the learner
    def keep_reference(self):
        self.note_call("keep_reference")

    def learn(self, scored, advantages):
        ids = [s.group.prompt.sample.id for s in scored]
        self.note_call("learn", ids, [a.tolist() for a in advantages])
        return UpdateStats(metrics={}, optimizer_steps=1, skipped_optimizer_steps=0, num_tokens=0, seconds=0.0)

    # the monitor
    def check_rollout(self, scored):
        self.note_call("check_rollout", len(scored))

    def check_weights(self, version):
        self.note_call("check_weights", version)

    def observe(self, scored, metrics):
        self.note_call("observe", dict(metrics))

    def finish(self):
        self.note_call("finish")

    # the logger
    def phase(self, name, total, done=0):
        import contextlib

        return contextlib.nullcontext()

    def keep_config(self):
        pass

    def measure(self, scored, stats, *, local, shared):
        return {"reward": 0.5, **local, **shared}

    def log(self, step, metrics):
        self.note_call("log", step)

    def write_completions(self, step, scored, advantages):
        self.note_call("completions", step)

    def write_evaluation(self, found):
        self.note_call("write_evaluation", found.step)

    def read_evaluation(self, step):
        return Found(step, 0.25)

    # the evaluator
    def evaluate(self, step):
        self.note_call("evaluate", step)
        return Found(step, next(self.evaluations))

    # checkpoints
    def begin_step(self):
        self.note_call("begin_step")

    def end_step(self):
        self.note_call("end_step")

    def save(self, run, again=False):
        if again or run.saved_step != run.step:
            self.note_call("save", run.step, run.best_step)
            run.saved_step = run.step

    def save_after_failure(self, run):
        self.note_call("save_after_failure", run.step)

    def restore(self, run):
        self.note_call("restore")
        run.step = run.saved_step = 3

    def components(self, on_step=None, **changed):
        roles = ("policy", "engine", "loader", "rewards", "learner", "monitor", "logger", "checkpoints")
        parts = Components(
            **dict.fromkeys(roles, self),
            advantages=GroupAdvantages("none"),
            dist=Single(),
            clock=self.clock,
            new_quota=lambda: Quota(prompts=2, completions=2),
            sampling=SAMPLING,
            warm_start=None,
            evaluator=self,
            on_step=StepCallback(on_step, Single()),
        )
        return replace(parts, **changed)


class Supervised:
    """A warm start that is finished, or stopped."""

    def __init__(self, world, finished=True):
        self.world, self.finished = world, finished

    def run(self, stop):
        self.world.note_call("warm_start")
        return self.finished


@pytest.fixture
def world(make_scored):
    return World(make_scored)


def state_of(total=1, **intervals):
    return RunState(num_steps=total, intervals=Intervals(**{"log": 5, **intervals}), stop=NoStop())


def test_a_step_reads_as_the_sentence_says(world):
    run_training(world.components(evaluator=None), state_of())
    assert world.calls == [
        ("learner.start", 1),
        ("keep_reference",),
        ("engine.start", 0),
        ("begin_step",),
        ("take", 2),
        ("generate", ["0", "1"], [2, 2], SAMPLING),
        ("score", 0),
        ("feedback", [0.5, 0.5]),
        ("check_rollout", 2),
        ("release",),
        ("learn", ["0", "1"], [[-0.5, 0.5], [-0.5, 0.5]]),
        ("end_step",),
        ("load_weights", ["w"], 1),
        ("reacquire",),
        ("check_weights", 1),
        ("observe", {"reward": 0.5}),
        ("completions", 1),
        ("log", 1),
        ("finish",),
        ("save", 1, None),
    ]


def test_without_held_out_rows_nothing_is_evaluated(world):
    run = state_of(total=2)
    run_training(world.components(evaluator=None), run)
    assert world.called("evaluate") == [] and (run.before, run.after) == (None, None)
    assert world.called("save") == [(2, None)]


def test_a_run_is_evaluated_before_when_due_and_after(make_scored):
    world = World(make_scored, evaluations=[0.1, 0.2, 0.3])
    run = state_of(total=4, evaluate=2, at_start=True)
    run_training(world.components(), run)
    assert world.called("evaluate") == [(0,), (2,), (4,)]
    assert (run.before.accuracy, run.after.accuracy) == (0.1, 0.3)


def test_things_happen_when_they_are_due(make_scored):
    world = World(make_scored, evaluations=[0.1, 0.2, 0.3])
    run_training(world.components(), state_of(total=5, log=2, evaluate=2, save=3))
    assert world.called("log") == [(1,), (2,), (3,), (4,), (5,)]
    assert world.called("completions") == [(2,), (4,), (5,)]  # and always the last
    assert world.called("evaluate") == [(2,), (4,), (5,)]
    assert world.called("save") == [(3, None), (5, None)]


def test_metrics_are_written_before_the_evaluation_that_may_fail(make_scored):
    world = World(make_scored, evaluations=[0.5, 0.5])
    run_training(world.components(), state_of(total=2, evaluate=1, save=1))
    assert world.order("log", "evaluate", "save") == ["log", "evaluate", "save", "log", "save", "evaluate"]


def test_the_best_checkpoint_is_saved_when_it_comes(make_scored):
    world = World(make_scored, evaluations=[0.5, 0.7, 0.6, 0.8])
    run_training(world.components(), state_of(total=4, evaluate=1, best_metric="eval/accuracy"))
    assert world.called("save") == [(1, 1), (2, 2), (4, 2), (4, 4)]  # the last evaluation comes after the last save


def test_a_warm_start_comes_first_and_is_saved(world):
    run_training(world.components(warm_start=Supervised(world), evaluator=None), state_of(save=1))
    assert world.order("warm_start", "learner.start", "engine.start", "save", "take") == [
        "warm_start",
        "learner.start",
        "engine.start",
        "save",
        "take",
        "save",
    ]


def test_a_warm_start_that_is_stopped_ends_the_run_without_a_checkpoint(world):
    run = state_of()
    run.stop = type("Stop", (), {"reason": "SIGINT"})()
    run_training(world.components(warm_start=Supervised(world, finished=False)), run)
    assert world.calls == [("warm_start",)] and run.stopped == "SIGINT"


def test_a_resumed_run_reads_its_checkpoint_and_hands_those_weights_to_the_engine(world, tmp_path):
    run = state_of(total=4)
    run.resumed_from = tmp_path
    run_training(world.components(evaluator=None), run)
    assert world.calls[:3] == [("learner.start", 4), ("restore",), ("engine.start", 3)]
    assert world.called("keep_reference") == []
    assert world.called("score") == [(3,)]


def test_the_callback_sees_the_steps_metrics_with_the_evaluation(make_scored):
    world = World(make_scored, evaluations=[0.5, 0.6])
    seen = []
    run_training(
        world.components(lambda step, metrics: seen.append((step, dict(metrics)))), state_of(total=2, evaluate=1)
    )
    assert seen == [(1, {"reward": 0.5, "eval/accuracy": 0.5}), (2, {"reward": 0.5})]


def test_the_callback_gets_what_its_signature_asks_for(world):
    seen = {}

    def on_step(step, metrics, *, groups, policy, stats):
        seen.update(groups=len(groups), policy=policy, steps=stats.optimizer_steps)

    run_training(world.components(on_step, evaluator=None), state_of())
    assert seen == {"groups": 2, "policy": world, "steps": 1}
    assert callback_names(lambda step, metrics, **everything: None) == ("policy", "groups", "stats")


@pytest.mark.parametrize(("returned", "steps"), [(False, 2), (None, 3), (True, 3), (0, 3), ("no", 3)])
def test_a_callback_stops_the_run_by_returning_false_and_by_nothing_else(world, returned, steps):
    run = state_of(total=3)
    run_training(world.components(lambda step, metrics: returned if step == 2 else None, evaluator=None), run)
    assert run.step == steps
    assert run.stopped == ("the on_step callback" if steps == 2 else None)


def test_a_callback_cannot_stop_a_run_that_is_at_its_end(world):
    run = state_of(total=2)
    run_training(world.components(lambda step, metrics: step < 2, evaluator=None), run)
    assert (run.step, run.stopped) == (2, None)


@pytest.mark.parametrize("part", ["take", "generate", "score", "check_rollout", "learn"])
def test_a_part_that_raises_ends_the_run_before_the_step_counts_and_what_is_whole_is_saved(world, part):
    world.failing[part] = RewardError("no")
    run = state_of(total=2)
    with pytest.raises(RewardError):
        run_training(world.components(), run)
    assert run.step == 0 and world.called("end_step") == []
    assert world.calls[-1] == ("save_after_failure", 0)


@pytest.mark.parametrize("part", ["load_weights", "check_weights", "observe", "log", "completions"])
def test_a_part_that_raises_after_the_update_ends_a_run_whose_step_counts(world, part):
    world.failing[part] = TrainingError("no")
    run = state_of(total=1)
    with pytest.raises(TrainingError):
        run_training(world.components(), run)
    assert world.called("end_step") == [()] and world.calls[-1] == ("save_after_failure", 1)


def test_an_error_while_saving_does_not_hide_the_first_one(world):
    world.failing = {"score": RewardError("first"), "save_after_failure": CheckpointError("the disk is full")}
    with pytest.raises(RewardError, match="first"):
        run_training(world.components(), state_of())


def test_collect_asks_once_where_the_quota_is_fixed(world):
    scored = collect(world.components(), Quota(prompts=3, completions=2), step=0)
    assert [s.group.prompt.sample.id for s in scored] == ["0", "1", "2"]
    assert [call[0] for call in world.calls] == ["take", "generate", "score", "feedback"]


def graded(world, equal):
    """Score the completions of these prompts alike, and those of others not."""

    class Graded:
        def score(self, groups, step):
            ids = [g.prompt.sample.id for g in groups]
            return [world.make_scored(n, [1.0, 1.0] if int(n) in equal else [0.0, 1.0]) for n in ids]

    return world.components(rewards=Graded())


def test_groups_without_a_reward_signal_are_replaced_until_the_step_is_full(world):
    quota = DynamicSampling(prompts=3, completions=2, resamples=3)
    scored = collect(graded(world, {0, 2, 3, 4}), quota, step=0)
    assert [s.group.prompt.sample.id for s in scored] == ["1", "5", "6"]
    assert [call[1] for call in world.calls if call[0] == "take"] == [3, 2, 2]
    assert quota.metrics() == {
        "dynamic_sampling/rollouts": 3.0,
        "dynamic_sampling/replaced_groups": 4.0,
        "dynamic_sampling/reward_all": pytest.approx((4 * 1.0 + 3 * 0.5) / 7),
    }


def test_replacing_ends_after_the_last_time_and_the_step_keeps_its_size(world):
    quota = DynamicSampling(prompts=3, completions=2, resamples=1)
    scored = collect(graded(world, {0, 2, 3, 4, 5}), quota, step=0)
    assert [s.group.prompt.sample.id for s in scored] == ["1", "3", "4"]
    assert quota.metrics()["dynamic_sampling/replaced_groups"] == 2
    assert [has_reward_signal(s) for s in scored] == [True, False, False]


def test_groups_without_a_reward_have_no_signal(make_scored):
    nan = float("nan")
    assert not has_reward_signal(make_scored("a", [nan, nan]))
    assert not has_reward_signal(make_scored("a", [nan, 1.0]))
    assert has_reward_signal(make_scored("a", [nan, 1.0, 0.0]))


def test_processes_ask_for_their_fraction_of_what_is_missing(make_scored):
    quota = DynamicSampling(prompts=6, completions=2, world=2, resamples=3)
    assert quota.request([]) == RolloutRequest(prompts=3, completions=2)
    assert quota.request([make_scored(n, [0.0, 1.0]) for n in "abc"]) == RolloutRequest(prompts=2, completions=2)
    seven = [make_scored(n, [0.0, 1.0]) for n in "abcdefg"]
    assert quota.request(seven) is None, "nothing that was scored is thrown away"


def test_a_quota_requests_what_is_missing(make_scored):
    quota = Quota(prompts=3, completions=4)
    assert quota.request([]) == RolloutRequest(prompts=3, completions=4)
    assert quota.request([make_scored("a", [0.0])]).counts == [4, 4]
    assert quota.request([make_scored(n, [0.0]) for n in "abc"]) is None


def test_l01_advantages_are_those_of_each_group(make_scored):
    scored = [make_scored("a", [1.0, 1.0, 1.0, 0.0]), make_scored("b", [0.0, 0.0, 0.0, 1.0])]
    first, second = GroupAdvantages("none").compute(scored)
    assert first.tolist() == [0.25, 0.25, 0.25, -0.75]
    assert second.tolist() == [-0.25, -0.25, -0.25, 0.75]


def test_l02_groups_are_formed_by_place_not_by_name(make_scored):
    same = [make_scored("a", [0.0, 1.0]), make_scored("a", [2.0, 4.0])]
    assert [a.tolist() for a in GroupAdvantages("none").compute(same)] == [[-0.5, 0.5], [-1.0, 1.0]]


def test_groups_of_different_sizes_keep_their_own(make_scored):
    groups = [make_scored("a", [0.0, 1.0]), make_scored("b", [3.0, 0.0, 0.0])]
    assert [a.tolist() for a in GroupAdvantages("none").compute(groups)] == [[-0.5, 0.5], [2.0, -1.0, -1.0]]


def test_the_scale_is_that_of_the_group_by_default(make_scored):
    (by_group,) = GroupAdvantages().compute([make_scored("a", [0.0, 2.0])])
    assert by_group.tolist() == pytest.approx([-1 / (2**0.5 + 1e-4), 1 / (2**0.5 + 1e-4)])


def test_groups_of_which_a_reward_said_different_things_are_compared_by_all_of_them(make_scored):
    groups = [make_scored("a", [1.0, 2.0], rewards={"r": [1.0, 2.0], "r/odd": [3.0, 3.0]}), make_scored("b", [0.0])]
    groups[1] = replace(groups[1], rewards={"r": torch.zeros(1)})
    found = with_equal_names(groups)
    assert [list(group.rewards) for group in found] == [["r", "r/odd"]] * 2
    assert found[1].rewards["r/odd"].isnan().all()
    assert reward_metrics(found)["rewards/r/odd/mean"] == 3.0
