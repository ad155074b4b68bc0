"""The sentence, read with plain functions in place of every part."""

from dataclasses import replace

import pytest
import torch

from mmgrpo.config.loss import Loss
from mmgrpo.errors import RewardError
from mmgrpo.running.figures import reward_figures
from mmgrpo.running.quota import Quota, Refill, Want, teaches, with_equal_names
from mmgrpo.trainer import Parts, advantages, collect, fit
from mmgrpo.types import Prompt, Sample, Sampling, UpdateStats

SAMPLING = Sampling(max_completion_length=4)


class World:
    """Every part of the loop, as functions that write down what they were given."""

    def __init__(self, make_scored):
        self.make_scored = make_scored
        self.calls = []
        self.drawn = 0

    def take(self, count):
        self.calls.append(("take", count))
        self.drawn += count
        numbers = range(self.drawn - count, self.drawn)
        return [
            Prompt(sample=Sample(id=str(n), messages=()), text="", token_ids=torch.zeros(1), model_inputs={})
            for n in numbers
        ]

    def generate(self, prompts, counts, sampling):
        self.calls.append(("generate", [p.sample.id for p in prompts], list(counts), sampling))
        return [self.make_scored(p.sample.id, [0.0, 1.0]).group for p in prompts]

    def score(self, groups, step):
        self.calls.append(("score", step))
        return [self.make_scored(g.prompt.sample.id, [0.0, 1.0]) for g in groups]

    def pack(self, scored, advantages):
        self.calls.append(("pack", [s.group.prompt.sample.id for s in scored], [a.tolist() for a in advantages]))
        return ["packed"]

    def update(self, batches):
        self.calls.append(("update", batches))
        return UpdateStats(metrics={}, optimizer_steps=1, skipped_optimizer_steps=0, num_tokens=0, seconds=0.0)

    def parts(self, **changed):
        parts = Parts(
            share=list,
            take=self.take,
            generate=self.generate,
            score=self.score,
            pack=self.pack,
            update=self.update,
            sync=lambda version: self.calls.append(("sync", version)),
            first_step=lambda groups: self.calls.append(("first", len(groups))),
            quota=lambda: Quota(prompts=2, completions=2),
            sampling=SAMPLING,
            loss=Loss(scale_rewards="none"),
        )
        return replace(parts, **changed)


class FakeRun:
    """Steps 3 and 4 of a run."""

    def __init__(self, world):
        self.world = world

    def steps(self):
        yield from (3, 4)

    def record(self, step, scored, stats, collected):
        self.world.calls.append(("record", step, len(scored), stats.optimizer_steps))


@pytest.fixture
def world(make_scored):
    return World(make_scored)


def test_a_step_reads_as_the_sentence_says(world):
    fit(world.parts(), FakeRun(world))
    assert world.calls[:8] == [
        ("take", 2),
        ("generate", ["0", "1"], [2, 2], SAMPLING),
        ("score", 3),
        ("first", 2),
        ("pack", ["0", "1"], [[-0.5, 0.5], [-0.5, 0.5]]),
        ("update", ["packed"]),
        ("sync", 4),
        ("record", 3, 2, 1),
    ]


def test_the_first_rollout_of_a_process_is_checked_before_it_is_learned_from_and_no_other(world):
    fit(world.parts(), FakeRun(world))
    names = [call[0] for call in world.calls]
    assert names.count("first") == 1
    assert names.index("first") < names.index("update")
    assert names.count("update") == 2


def test_a_part_that_raises_ends_the_run_before_anything_is_recorded(world):
    def broken(groups, step):
        raise RewardError("no")

    with pytest.raises(RewardError):
        fit(world.parts(score=broken), FakeRun(world))
    assert not {"update", "sync", "record"} & {call[0] for call in world.calls}


def test_collect_asks_once_where_the_quota_is_fixed(world):
    scored = collect(world.parts(), Quota(prompts=3, completions=2), step=0)
    assert [s.group.prompt.sample.id for s in scored] == ["0", "1", "2"]
    assert [call[0] for call in world.calls] == ["take", "generate", "score"]


def graded(world, equal):
    """Score the completions of these prompts alike, and those of others not."""

    def score(groups, step):
        ids = [g.prompt.sample.id for g in groups]
        return [world.make_scored(n, [1.0, 1.0] if int(n) in equal else [0.0, 1.0]) for n in ids]

    return world.parts(score=score)


def test_groups_that_teach_nothing_are_replaced_until_the_step_is_full(world):
    quota = Refill(prompts=3, completions=2, resamples=3)
    scored = collect(graded(world, {0, 2, 3, 4}), quota, step=0)
    assert [s.group.prompt.sample.id for s in scored] == ["1", "5", "6"]
    assert [call[1] for call in world.calls if call[0] == "take"] == [3, 2, 2]
    assert quota.metrics() == {
        "dynamic_sampling/rollouts": 3.0,
        "dynamic_sampling/replaced_groups": 4.0,
        "dynamic_sampling/reward_all": pytest.approx((4 * 1.0 + 3 * 0.5) / 7),
    }


def test_replacing_ends_after_the_last_time_and_the_step_keeps_its_size(world):
    quota = Refill(prompts=3, completions=2, resamples=1)
    scored = collect(graded(world, {0, 2, 3, 4, 5}), quota, step=0)
    assert [s.group.prompt.sample.id for s in scored] == ["1", "3", "4"]
    assert quota.metrics()["dynamic_sampling/replaced_groups"] == 2
    assert [teaches(s) for s in scored] == [True, False, False]


def test_groups_without_a_reward_teach_nothing(make_scored):
    nan = float("nan")
    assert not teaches(make_scored("a", [nan, nan]))
    assert not teaches(make_scored("a", [nan, 1.0]))
    assert teaches(make_scored("a", [nan, 1.0, 0.0]))


def test_processes_ask_for_their_share_of_what_is_missing(make_scored):
    quota = Refill(prompts=6, completions=2, world=2, resamples=3)
    assert quota.open([]) == Want(prompts=3, completions=2)
    assert quota.open([make_scored(n, [0.0, 1.0]) for n in "abc"]) == Want(prompts=2, completions=2)
    seven = [make_scored(n, [0.0, 1.0]) for n in "abcdefg"]
    assert quota.open(seven) is None, "nothing that was scored is thrown away"


def test_a_quota_wants_what_is_missing(make_scored):
    quota = Quota(prompts=3, completions=4)
    assert quota.open([]) == Want(prompts=3, completions=4)
    assert quota.open([make_scored("a", [0.0])]).counts == [4, 4]
    assert quota.open([make_scored(n, [0.0]) for n in "abc"]) is None


def test_l01_advantages_are_those_of_each_group(make_scored):
    scored = [make_scored("a", [1.0, 1.0, 1.0, 0.0]), make_scored("b", [0.0, 0.0, 0.0, 1.0])]
    first, second = advantages(scored, Loss(scale_rewards="none"))
    assert first.tolist() == [0.25, 0.25, 0.25, -0.75]
    assert second.tolist() == [-0.25, -0.25, -0.25, 0.75]


def test_l02_groups_are_formed_by_place_not_by_name(make_scored):
    same = [make_scored("a", [0.0, 1.0]), make_scored("a", [2.0, 4.0])]
    assert [a.tolist() for a in advantages(same, Loss(scale_rewards="none"))] == [[-0.5, 0.5], [-1.0, 1.0]]


def test_groups_of_different_sizes_keep_their_own(make_scored):
    found = advantages([make_scored("a", [0.0, 1.0]), make_scored("b", [3.0, 0.0, 0.0])], Loss(scale_rewards="none"))
    assert [a.tolist() for a in found] == [[-0.5, 0.5], [2.0, -1.0, -1.0]]


def test_the_scale_is_that_of_the_loss_section(make_scored):
    scored = [make_scored("a", [0.0, 2.0])]
    (by_group,) = advantages(scored, Loss())
    assert by_group.tolist() == pytest.approx([-1 / (2**0.5 + 1e-4), 1 / (2**0.5 + 1e-4)])


def test_groups_of_which_a_reward_said_different_things_are_compared_by_all_of_them(make_scored):
    groups = [make_scored("a", [1.0, 2.0], rewards={"r": [1.0, 2.0], "r/odd": [3.0, 3.0]}), make_scored("b", [0.0])]
    groups[1] = replace(groups[1], rewards={"r": torch.zeros(1)})
    found = with_equal_names(groups)
    assert [list(group.rewards) for group in found] == [["r", "r/odd"]] * 2
    assert found[1].rewards["r/odd"].isnan().all()
    assert reward_figures(found)["rewards/r/odd/mean"] == 3.0
