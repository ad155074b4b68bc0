"""Feeds of several processes when rows turn out to be unusable on the way: nothing comes twice, nothing is lost."""

from __future__ import annotations

import json
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgrpo.config.data import Columns, Template
from mmgrpo.data.opening import check_media
from mmgrpo.data.prompt_loader import DataShard, PromptLoader
from mmgrpo.data.sampler import ByPassRate, InOrder, RowOrder, Sampler
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import rows_from_python
from mmgrpo.errors import MediaError, PromptTooLong
from mmgrpo.types import Media, Prompt, Sample

ROWS = 11


class Meeting:
    """Stands in for the processes of a run: each is a thread, and all meet where one asks for the others' values."""

    def __init__(self, world: int) -> None:
        self.world, self._values = world, [None] * world
        self._here = threading.Barrier(world, timeout=20)

    def shard(self, rank: int) -> DataShard:
        def gather(value: Any) -> list[Any]:
            self._values[rank] = value
            self._here.wait()
            found = list(self._values)
            self._here.wait()
            return found

        return DataShard(rank=rank, world_size=self.world, all_gather=gather)


class Pictured:
    """Rows with a medium each (``data.mixture.AnySamples``)."""

    name = "rows"

    def checkable(self) -> range:
        return range(ROWS)

    def where(self, row: int) -> str:
        return f"row {row}"

    def __getitem__(self, row: int) -> Sample:
        return Sample(id=str(row), messages=(), media=(Media(kind="image", source=b"", name=f"a {row}"),))


def samples() -> Samples:
    rows = [{"problem": str(i), "solution": i} for i in range(ROWS)]
    return Samples(rows_from_python(rows), columns=Columns(), template=Template())


class Flaky:
    """A row whose medium cannot be read, for one of the processes alone."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __call__(self, medium: Media) -> None:
        if medium.name == "a 4" and self.rank == 4 % 2:
            raise MediaError("A medium cannot be read.")


def test_what_one_process_cannot_read_is_left_out_in_all_and_told_once():
    meeting, rows = Meeting(2), Pictured()

    def look(rank: int) -> frozenset[int]:
        return frozenset(check_media(rows, Flaky(rank), on_bad_media="skip", shard=meeting.shard(rank)).left_out)

    with warnings.catch_warnings(record=True) as told, ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("always")
        assert list(pool.map(look, range(2))) == [frozenset({4})] * 2
    assert len(told) == 1, "one line, of one process"


def order(learning: bool) -> Sampler:
    rows = RowOrder(ROWS, seed=2)
    return ByPassRate(rows, low=0.0, high=1.0, revisit_epochs=1) if learning else InOrder(rows)


def walk(world: int, steps: int, each: int, bad: set[int], *, learning: bool, state: Any = None) -> tuple[list, Any]:
    """Take so many steps in so many processes; what each process took in each step, and where they stand."""

    def encode(sample: Sample, draw_index: int) -> Prompt:
        if sample.answer in bad:
            raise PromptTooLong("A prompt is too long.")
        return Prompt(sample=sample, text="", token_ids=torch.tensor([1]), model_inputs={}, draw_index=draw_index)

    meeting = Meeting(world)

    def live(rank: int) -> tuple[list[list[tuple[int, int]]], Any]:
        shard = meeting.shard(rank)
        feed = PromptLoader(
            samples(),
            encode,
            sampler=order(learning),
            skip_errors=(PromptTooLong,),
            shard=shard,
            threads=rank % 2,
        )
        if state is not None:
            feed.load_state(json.loads(json.dumps(state)))
        taken = []
        for _ in range(steps):
            own = [(p.draw_index, p.sample.answer) for p in feed.take(each)]
            taken.append(own)
            everyone = [pair for part in shard.all_gather(own) for pair in part]
            feed.apply_feedback([o for o, _ in everyone], [float(row % 2) for _, row in everyone])
        found = feed.state()
        feed.close()
        return taken, found

    with warnings.catch_warnings(), ThreadPoolExecutor(world) as pool:
        warnings.simplefilter("ignore")
        lives = list(pool.map(live, range(world)))
    assert len({json.dumps(found) for _, found in lives}) == 1, "every process can resume from any one's state"
    return [taken for taken, _ in lives], lives[0][1]


def rows_of(taken: list) -> list[int]:
    return [row for process in taken for step in process for _, row in step]


@settings(max_examples=40, deadline=None)
@given(
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    each=st.integers(1, 3),
    steps=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    bad=st.sets(st.integers(0, ROWS - 1), max_size=5),
)
def test_rows_that_cannot_be_used_cost_no_other_row_also_when_resumed(worlds, each, steps, bad):
    first, state = walk(worlds[0], steps[0], each, bad, learning=False)
    second, end = walk(worlds[1], steps[1], each, bad, learning=False, state=state)
    counts = Counter(rows_of(first) + rows_of(second))
    waiting = Counter(row for _, row in end["late"] if row not in bad)
    whole = end["position"] // ROWS
    for row in set(range(ROWS)) - bad:
        assert counts[row] + waiting[row] in (whole, whole + 1), "each row once an epoch"
    draw_indices = [o for process in first + second for step in process for o, _ in step]
    assert len(set(draw_indices)) == len(draw_indices)


@pytest.mark.parametrize("world", [2, 3])
def test_a_curriculum_that_learns_stays_the_same_in_all_processes(world: int):
    taken, state = walk(world, 8, 2, {1, 4}, learning=True)
    draw_indices = [o for process in taken for step in process for o, _ in step]
    assert len(set(draw_indices)) == len(draw_indices) == 16 * world
    assert state["position"] >= len(draw_indices)
    assert set(rows_of(taken)) == set(range(ROWS)) - {1, 4}


@pytest.mark.parametrize("each", [1, 2, 3])
def test_rows_that_stay_together_go_to_one_process_and_none_is_lost(each: int):
    def encode(sample: Sample, draw_index: int) -> Prompt:
        return Prompt(sample=sample, text="", token_ids=torch.tensor([1]), model_inputs={}, draw_index=draw_index)

    rows = rows_from_python([{"problem": str(i), "solution": i} for i in range(12)])
    meeting = Meeting(2)

    def live(rank: int) -> tuple[list[int], Any]:
        shard = replace(meeting.shard(rank), rows_per_block=2)
        pairs = InOrder(RowOrder(12, seed=1, rows_per_block=2))
        rows_of_run = Samples(rows, columns=Columns(), template=Template())
        feed = PromptLoader(rows_of_run, encode, sampler=pairs, shard=shard, threads=rank)
        taken = [p.sample.answer for _ in range(2) for p in feed.take(each)]
        state = feed.state()
        feed.close()
        return taken, state

    with ThreadPoolExecutor(2) as pool:
        (one, state), (two, _) = pool.map(live, range(2))
    for taken in (one, two):
        assert all(b == a + 1 for a, b in zip(taken[::2], taken[1::2], strict=False)), "twins behind one another"
    waiting = [row for _, row in state["late"]]
    assert len({*one, *two, *waiting}) == len(one) + len(two) + len(waiting) == state["position"]
