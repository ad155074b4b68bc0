"""Clips that come twice, in order and shuffled: the same frames, one pair, one behind the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmgrpo.config.data import Clips, Columns, Curriculum, Data, Files, Template
from mmgrpo.data.opening import open_samples
from mmgrpo.data.sampler import RowOrder, open_sampler
from mmgrpo.data.samples import Samples
from mmgrpo.data.shuffled_pairs import ShuffledPairRows
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import MediaError
from mmgrpo.media.serialize import serialize_media
from mmgrpo.media.video_files import with_audio_tracks
from tests.decoding import decode

SHIPPED = Path(__file__).parents[2] / "data_samples"


def made(rows: int = 6) -> Samples:
    source = Clips(synthetic="clips", rows=rows, question="motion", shuffled_twins=True)
    return Samples(open_rows(source, base=SHIPPED), columns=Columns(), template=Template())


def test_a_twin_has_the_same_frames_in_another_order_and_all_else_alike():
    samples = made()
    assert len(samples) == 12
    for ordered, mixed in zip(samples[::2], samples[1::2], strict=True):
        assert (ordered.messages, ordered.answer) == (mixed.messages, mixed.answer)
        assert ordered.extras["pair"] == mixed.extras["pair"]
        assert (ordered.extras["shuffled"], mixed.extras["shuffled"]) == (False, True)
        one, two = (decode(s.media[0]) for s in (ordered, mixed))
        assert not np.array_equal(one.data, two.data)
        assert sorted(f.tobytes() for f in one.data) == sorted(f.tobytes() for f in two.data)
        assert (one.rate, one.times) == (two.rate, two.times)
        assert np.array_equal(two.data, decode(mixed.media[0]).data), "the same order every time"
    assert len({s.id for s in samples}) == len(samples)
    assert len({s.extras["pair"] for s in samples}) == 6


def test_files_of_clips_have_twins_too_and_rows_without_a_clip_belong_to_no_pair(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(
        '{"video": "media/flashes.gif", "problem": "?", "solution": "1"}\n{"problem": "1 + 1?", "solution": "2"}\n'
        '{"video": {"frames": ["media/frame0.png", "media/frame2.png"], "fps": 1}, "problem": "?", "solution": "1"}\n'
    )
    source = Files(path="rows.jsonl", media_root=str(SHIPPED), shuffled_twins=True)
    samples = Samples(open_rows(source, base=tmp_path), columns=Columns(), template=Template())
    assert [s.extras["pair"] for s in samples] == ["0", "0", None, None, "2", "2"]
    assert [s.extras["shuffled"] for s in samples] == [False, True, False, False, False, True]
    for ordered, mixed in ((samples[0], samples[1]), (samples[4], samples[5])):
        assert not np.array_equal(decode(ordered.media[0]).data, decode(mixed.media[0]).data)
    assert "rows.jsonl:1 (frames shuffled)" in samples.where(1)
    outside = Files(path="rows.jsonl", media_root=str(tmp_path), shuffled_twins=True)
    (tmp_path / "rows.jsonl").write_text('{"video": "../a.mp4", "problem": "?", "solution": "1"}')
    with pytest.raises(MediaError, match="climbs out"):
        Samples(open_rows(outside, base=tmp_path), columns=Columns(), template=Template())[1]


@pytest.mark.parametrize("curriculum", [Curriculum(), Curriculum(kind="easy_first", column="level")])
@pytest.mark.parametrize("shuffle", [True, False])
def test_twins_are_drawn_behind_one_another(curriculum: Curriculum, shuffle: bool, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"problem": "{i}?", "solution": "1", "level": {i % 3}}}\n' for i in range(10))
    )
    train = Files(path="rows.jsonl", shuffled_twins=True)
    data = Data(train=train, curriculum=curriculum, shuffle=shuffle)
    samples = open_samples(data, train, base=tmp_path, needed="x")
    assert samples is not None
    draws = open_sampler(samples, data)
    found = [draws.draw().row for _ in range(40)]
    assert [row + 1 for row in found[::2]] == found[1::2]
    assert sorted(found[:20]) == sorted(found[20:]) == list(range(20))
    if curriculum.kind == "none":
        assert (found[:20] == found[20:]) is (not shuffle)


def test_the_order_of_rows_without_twins_is_what_it_was():
    state = np.random.RandomState([3, 0, 0])
    assert RowOrder(7, seed=3).permutation(0).tolist() == state.permutation(7).tolist()


def test_the_sound_of_a_twin_is_that_of_its_clip(make_clip: Any):
    wave = np.sin(np.arange(16000) / 5).astype(np.float32)
    rows = rows_from_python([{"video": make_clip(sound=wave), "problem": "?", "solution": "1"}])
    samples = Samples(ShuffledPairRows(rows), columns=Columns(), template=Template())
    one, two = (with_audio_tracks(sample).media[1] for sample in samples)
    assert np.array_equal(decode(one).data, decode(two).data)


def test_a_shuffled_clip_is_not_written_as_if_it_were_the_clip():
    with pytest.raises(MediaError, match="shuffled"):
        serialize_media(made(1)[1].media[0])
