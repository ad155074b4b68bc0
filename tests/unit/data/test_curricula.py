"""Which rows come: easy ones first, passed over while they teach nothing, mixed by weight, shared by processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgrpo.config.data import Columns, Curriculum, Data, Template
from mmgrpo.data.mixture import MixedSamples
from mmgrpo.data.prompt_loader import DataShard, PromptLoader
from mmgrpo.data.sampler import (
    ByPassRate,
    Feedback,
    InOrder,
    MixedSampler,
    MixtureWeights,
    RowOrder,
    Sampler,
    open_sampler,
)
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import rows_from_python
from mmgrpo.errors import DatasetError
from mmgrpo.types import Prompt, Sample
from tests.conftest import loader_of


def encode(sample: Sample, draw_index: int) -> Prompt:
    return Prompt(sample=sample, text="", token_ids=torch.tensor([1]), model_inputs={}, draw_index=draw_index)


def numbered(count: int, **column: list[Any]) -> Samples:
    rows = [
        {"problem": str(i), "solution": i, **{name: values[i] for name, values in column.items()}}
        for i in range(count)
    ]
    return Samples(rows_from_python(rows), columns=Columns(), template=Template())


def answers(prompts: list[Prompt]) -> list[int]:
    return [prompt.sample.answer for prompt in prompts]


def by_pass_rate(count: int, *, seed: int = 0, shuffle: bool = True, revisit: int = 2) -> Sampler:
    return ByPassRate(RowOrder(count, seed=seed, shuffle=shuffle), revisit_epochs=revisit)


KINDS: dict[str, Callable[[], Sampler]] = {
    "none": lambda: InOrder(RowOrder(12, seed=5)),
    "by_pass_rate": lambda: by_pass_rate(12, seed=5),
    "mixed": lambda: MixedSampler(
        [InOrder(RowOrder(5, seed=1)), by_pass_rate(7, seed=2)],
        MixtureWeights(start=(3, 1), end=(1, 3), over=20),
        seed=4,
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def worth(prompt: Prompt) -> float:
    """Some rows are always right, some always wrong, the others in between."""
    return {0: 0.0, 1: 1.0}.get(prompt.sample.answer % 4, 0.5)


def step(feed: PromptLoader, count: int) -> list[tuple[int, int]]:
    """Take prompts and say what they were worth, as a run does."""
    prompts = feed.take(count)
    feed.apply_feedback([p.draw_index for p in prompts], [worth(p) for p in prompts])
    return [(p.sample.answer, p.draw_index) for p in prompts]


# easy first


def test_easy_rows_come_first_and_equal_ones_in_a_seeded_order():
    levels = [3, 1, 2, 1, 1, 3, 2, 1]
    data = Data(curriculum=Curriculum(kind="easy_first", column="level"))
    for _ in (0, 1):
        feed = PromptLoader(samples := numbered(8, level=levels), encode, sampler=open_sampler(samples, data))
        drawn = answers(feed.take(8))
        assert [levels[i] for i in drawn] == sorted(levels)
        assert sorted(drawn) == list(range(8))
    orders = {tuple(answers(PromptLoader(samples, encode, sampler=open_sampler(samples, d)).take(8)))
              for d in (data.model_copy(update={"seed": s}) for s in range(5))}  # fmt: skip
    assert len(orders) > 1


def test_after_the_easy_epochs_rows_are_shuffled():
    samples = numbered(30, level=list(range(30)))
    data = Data(curriculum=Curriculum(kind="easy_first", column="level", epochs=2))
    drawn = answers(PromptLoader(samples, encode, sampler=open_sampler(samples, data)).take(90))
    assert drawn[:60] == [*range(30), *range(30)]
    assert drawn[60:] != list(range(30))
    assert sorted(drawn[60:]) == list(range(30))


@pytest.mark.parametrize("value", [None, "hard", float("nan")])
def test_a_row_without_difficulty_is_named(value: Any):
    samples = numbered(3, level=[1, value, 2])
    with pytest.raises(DatasetError, match=r"row 1, column level"):
        open_sampler(samples, Data(curriculum=Curriculum(kind="easy_first", column="level")))


# by pass rate


def test_rows_that_teach_nothing_are_passed_over_and_tried_again_later():
    feed = PromptLoader(numbered(8), encode, sampler=by_pass_rate(8, shuffle=False, revisit=2))
    epochs = [[row for row, _ in step(feed, 8)]]
    teaching = [i for i in range(8) if i % 4 > 1]
    step_of: list[int] = []
    for _ in range(20):
        step_of += [row for row, _ in step(feed, 4)]
    assert epochs[0] == list(range(8))
    # What was noted before a step counts from the step after it: the first four of the second pass are drawn unaware.
    assert step_of[:4] == [0, 1, 2, 3]
    assert step_of[4:8] == [6, 7, 2, 3]
    counts = Counter(step_of)
    assert min(counts[i] for i in teaching) > 2 * max(counts[i] for i in range(8) if i % 4 < 2)
    assert set(step_of[12:]) == set(range(8)), "every row is tried again"


def test_where_every_row_would_be_passed_over_none_is():
    order = by_pass_rate(4, shuffle=False)
    order.learn([Feedback(row, 0, 1.0) for row in range(4)])
    order.move(4)
    assert [order.draw().row for _ in range(4)] == [0, 1, 2, 3]


def test_a_reward_between_the_bounds_never_passes_a_row_over():
    order = ByPassRate(RowOrder(3, shuffle=False), low=0.0, high=2.0)
    order.learn([Feedback(0, 0, 1.9), Feedback(1, 0, 0.1), Feedback(2, 0, 2.0)])
    order.move(3)
    assert [order.draw().row for _ in range(4)] == [0, 1, 0, 1]


def test_notes_of_unknown_prompts_and_of_no_reward_are_ignored():
    feed = PromptLoader(numbered(4), encode, sampler=by_pass_rate(4))
    feed.take(2)
    feed.apply_feedback([0, 1, 77], [float("nan"), 0.0, 1.0])
    assert len(feed.state()["results"]) == 1


# mixtures


def test_sources_are_drawn_by_weight_each_row_once_before_one_comes_again():
    draws = MixedSampler(
        [InOrder(RowOrder(10)), InOrder(RowOrder(1000))], MixtureWeights(start=(1, 1), end=(1, 1)), seed=0
    )
    rows = [draws.draw().row for _ in range(2000)]
    small = [row for row in rows if row < 10]
    assert abs(len(small) - 1000) < 100
    for start in range(0, len(small) - 10, 10):
        assert sorted(small[start : start + 10]) == list(range(10))
    large = [row for row in rows if row >= 10]
    assert len(set(large[:1000])) == len(large[:1000])


def test_weights_move_to_their_end_and_stay_there():
    draws = MixedSampler(
        [InOrder(RowOrder(50)), InOrder(RowOrder(50))], MixtureWeights(start=(1, 0), end=(0, 1), over=1000), seed=0
    )
    first = [draws.draw().row < 50 for _ in range(1500)]
    assert sum(first[:100]) > 85
    assert 35 < sum(first[450:550]) < 65
    assert sum(first[1000:]) == 0


def test_a_source_of_weight_nothing_is_never_drawn():
    draws = MixedSampler(
        [InOrder(RowOrder(5)), InOrder(RowOrder(5))], MixtureWeights(start=(0, 1), end=(0, 1)), seed=0
    )
    assert all(draws.draw().row >= 5 for _ in range(300))


def test_without_weights_each_row_of_the_mixture_comes_once_an_epoch():
    mixed = MixedSamples([numbered(4), numbered(6)])
    feed = PromptLoader(
        mixed, encode, sampler=open_sampler(mixed, Data(train={"mixture": [{"source": {"path": "a"}}] * 2}))
    )
    assert len({p.sample.id for p in feed.take(10)}) == 10


def test_weights_of_the_configuration_reach_the_draws():
    mixed = MixedSamples([numbered(4), numbered(6)])
    parts = [{"source": {"path": "a"}, "weight": 1}, {"source": {"path": "b"}, "weight": 0, "end_weight": 1}]
    data = Data(train={"mixture": parts, "over_steps": 10})
    feed = PromptLoader(mixed, encode, sampler=open_sampler(mixed, data, prompts_per_step=4))
    sources = [p.sample.id[0] for p in feed.take(4000)]
    assert set(sources[:1]) == {"0"}
    assert 0.4 < sources[40:].count("1") / len(sources[40:]) < 0.6


def test_another_mixture_than_that_of_the_saved_run_is_refused():
    saved = json.loads(json.dumps(PromptLoader(numbered(12), encode, sampler=KINDS["mixed"]()).state()))
    other = MixedSampler([InOrder(RowOrder(12))], MixtureWeights(start=(1,), end=(1,)))
    with pytest.raises(DatasetError, match="other sources"):
        PromptLoader(numbered(12), encode, sampler=other).load_state(saved)


# resuming, processes, threads


@every_kind
@settings(max_examples=25, deadline=None)
@given(
    stop=st.integers(0, 12), counts=st.lists(st.integers(1, 7), min_size=13, max_size=13), threads=st.integers(0, 2)
)
def test_a_resumed_run_with_other_threads_draws_what_a_straight_one_draws(
    kind: str, stop: int, counts: list[int], threads: int
):
    straight = PromptLoader(numbered(12), encode, sampler=KINDS[kind]())
    expected = [step(straight, count) for count in counts]
    before = PromptLoader(numbered(12), encode, sampler=KINDS[kind](), threads=threads)
    seen = [step(before, count) for count in counts[:stop]]
    saved = json.loads(json.dumps(before.state()))
    before.close()
    after = PromptLoader(numbered(12), encode, sampler=KINDS[kind](), threads=2 - threads)
    after.load_state(saved)
    seen += [step(after, count) for count in counts[stop:]]
    after.close()
    assert seen == expected


@every_kind
@pytest.mark.parametrize("world", [2, 3])
def test_processes_see_other_draws_which_together_are_those_of_one(kind: str, world: int):
    one = PromptLoader(numbered(12), encode, sampler=KINDS[kind]())
    expected = [(p.sample.answer, p.draw_index) for p in one.take(24 * world)]
    feeds = [
        PromptLoader(numbered(12), encode, sampler=KINDS[kind](), shard=DataShard(rank=rank, world_size=world))
        for rank in range(world)
    ]
    taken = [[(p.sample.answer, p.draw_index) for p in feed.take(24)] for feed in feeds]
    assert sorted((pair for share in taken for pair in share), key=lambda pair: pair[1]) == expected
    for rank, share in enumerate(taken):
        assert [draw_index % world for _, draw_index in share] == [rank] * 24
    assert len({json.dumps(feed.state()) for feed in feeds}) == 1, "every process can resume from any one's state"


def test_two_processes_cover_every_row_of_an_epoch_once():
    shares = [loader_of(numbered(10), encode, seed=3, shard=DataShard(rank=r, world_size=2)).take(5) for r in range(2)]
    rows = [set(answers(share)) for share in shares]
    assert rows[0].isdisjoint(rows[1])
    assert rows[0] | rows[1] == set(range(10))


def test_a_run_of_two_processes_goes_on_with_three():
    two = [loader_of(numbered(12), encode, seed=1, shard=DataShard(rank=r, world_size=2)) for r in range(2)]
    seen = [answer for feed in two for answer in answers(feed.take(3))]
    saved = json.loads(json.dumps(two[1].state()))
    three = [loader_of(numbered(12), encode, seed=1, shard=DataShard(rank=r, world_size=3)) for r in range(3)]
    for feed in three:
        feed.load_state(saved)
        seen += answers(feed.take(2))
    assert sorted(seen) == list(range(12))


def test_rows_left_out_are_left_out_in_every_process():
    feeds = [
        loader_of(numbered(8), encode, shuffle=False, skip_rows=[1, 2], shard=DataShard(rank=r, world_size=2))
        for r in range(2)
    ]
    assert [answers(feed.take(3)) for feed in feeds] == [[0, 4, 6], [3, 5, 7]]
