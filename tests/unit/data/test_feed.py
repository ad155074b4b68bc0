"""The order of rows is a function of the position, resuming continues it, and bad media never shift answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.opening import check_media
from mmgrpo.data.prompt_loader import PromptLoader
from mmgrpo.data.sampler import RowOrder
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.data.synthetic.scenes import scene_rows
from mmgrpo.errors import DatasetError, MediaError, PromptTooLong
from mmgrpo.types import Media, Prompt, Sample
from tests.conftest import loader_of
from tests.decoding import decode, verify


def encode(sample: Sample, draw_index: int) -> Prompt:
    return Prompt(
        sample=sample,
        text="",
        token_ids=torch.tensor([1]),
        model_inputs={},
        media=tuple(decode(m) for m in sample.media),
        draw_index=draw_index,
    )


def numbered(count: int) -> Samples:
    rows = rows_from_python([{"problem": str(i), "solution": i} for i in range(count)])
    return Samples(rows, columns=Columns(image=None), template=Template())


def pictured(folder: Path, *, bad: dict[int, Callable[[bytes], bytes] | None], count: int = 6) -> Samples:
    """Rows of flat pictures whose colour is their answer; a bad row's file is damaged, or missing (None)."""
    rows = []
    for i in range(count):
        path = folder / f"{i}.png"
        Image.new("RGB", (32, 32), (i * 10, 0, 0)).save(path)
        if i in bad:
            damage = bad[i]
            path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))
        rows.append({"image": path.name, "problem": "?", "solution": str(i * 10)})
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return Samples(open_rows(Files(path="rows.jsonl"), base=folder), columns=Columns(), template=Template())


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


# Order


@given(st.integers(1, 40), st.integers(0, 2**40), st.integers(0, 5))
def test_each_epoch_holds_every_row_once(num_rows: int, seed: int, epoch: int):
    order = RowOrder(num_rows, seed=seed)
    drawn = [order.row(epoch * num_rows + i) for i in range(num_rows)]
    assert sorted(drawn) == list(range(num_rows))


def test_epochs_and_seeds_have_orders_of_their_own():
    order = RowOrder(50, seed=1)
    first, second = ([order.row(e * 50 + i) for i in range(50)] for e in range(2))
    other = [RowOrder(50, seed=2).row(i) for i in range(50)]
    far = [RowOrder(50, seed=1 + 2**32).row(i) for i in range(50)]
    assert len({tuple(x) for x in (first, second, other, far)}) == 4


def test_without_shuffling_the_order_is_the_sources():
    order = RowOrder(3, seed=9, shuffle=False)
    assert [order.row(i) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@given(st.lists(st.integers(0, 199), min_size=1, max_size=30))
def test_a_row_depends_on_its_position_alone(positions: list[int]):
    straight = RowOrder(7, seed=3)
    expected = [straight.row(i) for i in range(200)]
    jumping = RowOrder(7, seed=3)
    assert [jumping.row(p) for p in positions] == [expected[p] for p in positions]


def test_the_order_never_changes_between_versions():
    assert [RowOrder(8, seed=0).row(i) for i in range(8)] == [2, 6, 0, 4, 1, 3, 5, 7]


# Feed


def test_prompts_come_in_order_with_their_position_as_draw_index():
    feed = loader_of(numbered(4), encode, shuffle=False)
    taken = feed.take(6)
    assert [p.sample.answer for p in taken] == [0, 1, 2, 3, 0, 1]
    assert [p.draw_index for p in taken] == list(range(6))


@pytest.mark.parametrize("stop", [0, 1, 3, 7, 11])
def test_resuming_at_any_position_continues_as_if_never_stopped(stop: int):
    straight = loader_of(numbered(5), encode, seed=4).take(20)
    before = loader_of(numbered(5), encode, seed=4)
    before.take(stop)
    saved = json.loads(json.dumps(before.state()))
    after = loader_of(numbered(5), encode, seed=4)
    after.load_state(saved)
    rest = after.take(20 - stop)
    assert [(p.sample.id, p.draw_index) for p in rest] == [(p.sample.id, p.draw_index) for p in straight[stop:]]


def test_resuming_on_other_data_warns():
    saved = PromptLoader(numbered(5), encode).state()
    with pytest.warns(UserWarning, match="5 rows when the run was saved and have 6"):
        PromptLoader(numbered(6), encode).load_state(saved)


def test_bad_media_stop_the_feed_and_name_row_and_file(tmp_path: Path):
    feed = loader_of(pictured(tmp_path, bad={2: cut}), encode, shuffle=False)
    feed.take(2)
    with pytest.raises(MediaError) as caught:
        feed.take(1)
    assert str(tmp_path / "2.png") in str(caught.value)
    assert f"{tmp_path / 'rows.jsonl'}:3" in str(caught.value)


def test_skipping_bad_media_never_shifts_answers(tmp_path: Path):
    feed = loader_of(pictured(tmp_path, bad={2: cut, 4: None}), encode, shuffle=False, skip_errors=(MediaError,))
    with pytest.warns(UserWarning) as caught:
        prompts = feed.take(12)
    (line,) = [str(w.message) for w in caught if "left out" in str(w.message)]
    assert "2 of 6 rows left out" in line, "one line, whatever the number of rows and draws"
    assert [p.sample.id for p in prompts] == ["0", "1", "3", "5"] * 3
    for prompt in prompts:
        assert prompt.media[0].data.getpixel((0, 0))[0] == int(prompt.sample.answer)
    assert feed.skipped_rows == {2, 4}


def long_and_short(sample: Sample, draw_index: int) -> Prompt:
    """Refuse every third row as too long."""
    if int(sample.answer) % 3 == 2:
        raise PromptTooLong("A prompt is too long.")
    return encode(sample, draw_index)


@pytest.mark.parametrize("threads", [0, 2])
def test_prompts_that_are_too_long_are_left_out_or_stop_the_run_by_row(threads: int):
    feed = loader_of(numbered(6), long_and_short, shuffle=False, skip_errors=(PromptTooLong,), threads=threads)
    with pytest.warns(UserWarning, match=r"Row left out: A prompt is too long; row: .*row 2"):
        prompts = feed.take(4)
    assert [int(p.sample.answer) for p in prompts] == [0, 1, 3, 4]
    feed.close()
    feed = loader_of(numbered(6), long_and_short, shuffle=False, skip_errors=(MediaError,), threads=threads)
    with pytest.raises(PromptTooLong, match="row 2"):
        feed.take(4)
    feed.close()


def test_when_nothing_can_be_read_the_feed_stops(tmp_path: Path):
    feed = PromptLoader(pictured(tmp_path, bad={0: cut, 1: cut}, count=2), encode, skip_errors=(MediaError,))
    with pytest.warns(UserWarning), pytest.raises(DatasetError, match="No row is left"):
        feed.take(1)


def test_rows_found_bad_before_are_passed_over_silently(tmp_path: Path):
    feed = loader_of(pictured(tmp_path, bad={2: cut}), encode, shuffle=False, skip_errors=(MediaError,), skip_rows=[2])
    assert [p.sample.id for p in feed.take(3)] == ["0", "1", "3"]


# The check before a run


def test_the_check_finds_cut_off_missing_and_junk_files(tmp_path: Path):
    samples = pictured(tmp_path, bad={1: cut, 3: None, 4: lambda data: b"junk"})
    with pytest.warns(UserWarning, match="left out") as caught:
        report = check_media(samples, verify, on_bad_media="skip")
    assert set(report.left_out) == {1, 3, 4}
    assert (report.rows, report.media) == (6, 6)
    assert len(caught) == 1, "one line for all"
    assert "3 of 6 rows left out" in str(caught[-1].message)
    for row, skipped in report.left_out.rows.items():
        assert f"{row}.png" in skipped.message
        assert f"rows.jsonl:{row + 1}" in skipped.where


def test_the_check_lists_everything_it_found_before_it_stops(tmp_path: Path):
    samples = pictured(tmp_path, bad={1: cut, 3: None})
    with pytest.raises(MediaError, match="2 of 6 rows") as caught:
        check_media(samples, verify)
    assert "1.png" in str(caught.value)
    assert "3.png" in str(caught.value)


def test_sound_data_pass_the_check_silently(tmp_path: Path):
    report = check_media(pictured(tmp_path, bad={}), verify)
    assert not report.left_out


def test_the_check_finds_malformed_rows_too():
    rows = rows_from_python([{"problem": "?", "solution": 1}, {"problem": None, "solution": 2}])
    with pytest.raises(DatasetError, match="row 1"):
        check_media(Samples(rows, columns=Columns(image=None), template=Template()), verify)


def test_one_file_named_by_many_rows_is_read_once(tmp_path: Path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = rows_from_python([{"image": "a.png", "problem": "?", "solution": 1}] * 50, base=tmp_path)
    read: list[Media] = []
    samples = Samples(rows, columns=Columns(), template=Template())
    report = check_media(samples, read.append, threads=1)
    assert (len(read), report.media, report.rows) == (1, 1, 50)


def test_one_file_as_a_clip_and_as_a_sound_is_read_as_both(tmp_path: Path):
    (tmp_path / "a.mp4").write_bytes(b"0")
    rows = rows_from_python([{"video": "a.mp4", "audio": "a.mp4", "problem": "?", "solution": 1}] * 9, base=tmp_path)
    read: list[str] = []

    def hears_nothing(medium: Media) -> None:
        read.append(medium.kind)
        if medium.kind == "audio":
            raise MediaError("No sound.")

    samples = Samples(rows, columns=Columns(), template=Template())
    with pytest.raises(MediaError, match="9 of 9 rows"):
        check_media(samples, hears_nothing, threads=1)
    assert sorted(read) == ["audio", "video"]


def test_only_the_rows_asked_for_are_checked(tmp_path: Path):
    samples = pictured(tmp_path, bad={5: cut})
    assert check_media(samples, verify, rows=[0, 1, 2]).rows == 3


def test_scenes_need_no_check():
    samples = Samples(scene_rows(10**9), columns=Columns(), template=Template())
    assert check_media(samples, verify).rows == 0


def test_nothing_readable_at_all_is_an_error_even_when_skipping(tmp_path: Path):
    with pytest.warns(UserWarning), pytest.raises(DatasetError, match="No row is left"):
        check_media(pictured(tmp_path, bad={0: cut, 1: None}, count=2), verify, on_bad_media="skip")


def test_progress_is_told(tmp_path: Path):
    told: list[tuple[int, int]] = []
    check_media(pictured(tmp_path, bad={}), verify, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (6, 6)


def test_pictures_in_memory_pass_through(tmp_path: Path):
    rows = rows_from_python([{"image": np.zeros((4, 4, 3), np.uint8), "problem": "?", "solution": 1}])
    assert check_media(Samples(rows, columns=Columns(), template=Template()), verify).media == 1
