"""The sentence, read with plain functions in place of every part."""

from dataclasses import replace

import pytest
import torch

from mmgrpo.config.learn import Loss
from mmgrpo.errors import RewardError
from mmgrpo.trainer import Parts, Quota, Want, advantages, collect, fit
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
            prompts_per_step=2,
            num_generations=2,
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

    def record(self, step, scored, stats):
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


class Refill(Quota):
    """Throws groups with an odd id away, and so asks again."""

    def merge(self, scored, more):
        return [*scored, *(s for s in more if int(s.group.prompt.sample.id) % 2 == 0)]


def test_collect_asks_again_until_the_quota_is_met(world):
    scored = collect(world.parts(), Refill(prompts=3, completions=2), step=0)
    assert [s.group.prompt.sample.id for s in scored] == ["0", "2", "4"]
    assert [call[1] for call in world.calls if call[0] == "take"] == [3, 1, 1]


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
