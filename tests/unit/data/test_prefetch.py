"""Prompts made ahead: the same prompts, order and errors at the same call, and never more than asked for."""

from __future__ import annotations

import re
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmgrpo.config.data import Columns, Template
from mmgrpo.data.prompt_loader import PromptLoader, prompt_batches
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import rows_from_python
from mmgrpo.errors import MediaError, ProcessorError
from mmgrpo.types import Prompt, Sample
from tests.conftest import loader_of
from tests.decoding import decode

with_and_without = pytest.mark.parametrize("threads", [0, 1, 3])


def encode(sample: Sample, draw_index: int) -> Prompt:
    media = tuple(decode(medium) for medium in sample.media)
    ids = torch.tensor([1])
    return Prompt(sample=sample, text="", token_ids=ids, model_inputs={}, media=media, draw_index=draw_index)


def numbered(count: int) -> Samples:
    rows = rows_from_python([{"problem": str(i), "solution": i} for i in range(count)])
    return Samples(rows, columns=Columns(), template=Template())


def pictured(folder: Path, bad: set[int], count: int = 8) -> Samples:
    for i in range(count):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i}.png")
        if i in bad:
            (folder / f"{i}.png").write_bytes(b"junk")
    rows = [{"image": f"{i}.png", "problem": "?", "solution": i} for i in range(count)]
    return Samples(rows_from_python(rows, base=folder), columns=Columns(), template=Template())


@with_and_without
def test_an_unreadable_medium_stops_the_very_call_that_needs_it(threads: int, tmp_path: Path):
    feed = loader_of(pictured(tmp_path, {3}), encode, shuffle=False, threads=threads)
    assert [p.sample.answer for p in feed.take(2)] == [0, 1]
    position = feed.state()["position"]
    assert position == 2
    for _ in range(2):
        with pytest.raises(MediaError, match=r"3\.png"):
            feed.take(2)
    feed.close()


@with_and_without
def test_an_error_of_a_held_out_row_names_it(threads: int, tmp_path: Path):
    samples = pictured(tmp_path, {3})
    batches = prompt_batches(samples, encode, size=2, threads=threads)
    assert [prompt.sample.answer for prompt in next(batches)] == [0, 1]
    with pytest.raises(MediaError, match=re.escape(f"row: {samples.where(3)}")):
        next(batches)


@with_and_without
def test_any_other_error_comes_from_the_call_that_needs_the_prompt(threads: int):
    def refuse(sample: Sample, draw_index: int) -> Prompt:
        if sample.answer == 4:
            raise ProcessorError("too long")
        return encode(sample, draw_index)

    feed = loader_of(numbered(8), refuse, shuffle=False, threads=threads)
    feed.take(2)
    feed.take(2)
    with pytest.raises(ProcessorError, match="too long"):
        feed.take(2)
    feed.close()


@with_and_without
def test_skipped_rows_are_the_same_and_warned_of_in_the_call_that_meets_them(threads: int, tmp_path: Path):
    samples = pictured(tmp_path, {2, 5})
    feed = loader_of(samples, encode, shuffle=False, skip_errors=(MediaError,), threads=threads)
    told, taken = [], []
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            taken.append([(p.sample.answer, p.draw_index) for p in feed.take(2)])
        told.append(len(caught))
    feed.close()
    assert taken == [[(0, 0), (1, 1)], [(3, 3), (4, 4)], [(6, 6), (7, 7)], [(0, 8), (1, 9)]]
    assert told == [0, 1, 1, 0]
    assert feed.skipped_rows == {2, 5}


def test_prompts_of_the_next_call_are_made_while_the_caller_works():
    made: list[int] = []

    def note(sample: Sample, draw_index: int) -> Prompt:
        made.append(draw_index)
        return encode(sample, draw_index)

    feed = loader_of(numbered(50), note, shuffle=False, threads=1)
    feed.take(4)
    deadline = time.monotonic() + 5
    while len(made) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == list(range(8)), "as many as the last call asked for, and no more"
    assert feed.state()["position"] == 4
    feed.close()


def test_without_threads_nothing_is_made_ahead():
    made: list[int] = []
    feed = PromptLoader(numbered(9), lambda s, o: made.append(o) or encode(s, o), threads=0)
    feed.take(3)
    assert made == [0, 1, 2]


def test_threads_work_side_by_side():
    both = threading.Barrier(2, timeout=10)

    def meet(sample: Sample, draw_index: int) -> Prompt:
        both.wait()
        return encode(sample, draw_index)

    feed = PromptLoader(numbered(4), meet, threads=2)
    assert len(feed.take(2)) == 2
    feed.close()


def test_a_closed_feed_goes_on_where_it_stood():
    feed = loader_of(numbered(9), encode, shuffle=False, threads=2)
    feed.take(3)
    feed.close()
    assert [p.sample.answer for p in feed.take(3)] == [3, 4, 5]
    feed.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("mmgrpo-prompts")]
