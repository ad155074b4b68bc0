"""Synthetic sounds and clips: seeded, and of a truth that can be measured in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmgrpo.config.data import Beeps, Clips, Columns, Template
from mmgrpo.config.load import load_config
from mmgrpo.data.rows import Rows
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows
from mmgrpo.errors import ConfigError
from tests.decoding import decode


def beeps(**settings: Any) -> Rows:
    return open_rows(Beeps(synthetic="beeps", rows=40, **settings), base=Path())


def clips(**settings: Any) -> Rows:
    return open_rows(Clips(synthetic="clips", rows=40, **settings), base=Path())


def heard(samples: np.ndarray) -> int:
    """Count beeps by the loudness of stretches of 20 ms."""
    loud = np.sqrt((samples[: len(samples) // 320 * 320].reshape(-1, 320) ** 2).mean(axis=1)) > 0.1
    return int((np.diff(np.concatenate([[0], loud.astype(int)])) == 1).sum())


@pytest.mark.parametrize("settings", [{}, {"noise": 0.05}, {"seconds": 1.0, "max_beeps": 5}, {"min_beeps": 0}])
def test_the_number_of_beeps_is_the_one_that_is_heard(settings: dict[str, Any]):
    rows = beeps(**settings)
    counts = set()
    for row in rows:
        samples = row["audio"]["array"]
        assert len(samples) == round(settings.get("seconds", 2.0) * 16000)
        assert np.abs(samples).max() <= 1
        assert heard(samples) == row["count"] == len(row["starts"])
        assert row["solution"] == f"<answer> {row['count']} </answer>"
        for start in row["starts"]:
            at = round(start * 16000)
            assert np.abs(samples[at + 400 : at + 1200]).max() > 0.2
        counts.add(row["count"])
    assert counts == set(range(settings.get("min_beeps", 1), 6))


def test_the_number_of_blinks_is_the_one_that_is_seen():
    counts = set()
    for row in clips():
        film = row["video"]["frames"]
        assert film.shape == (16, 56, 56, 3)
        lit = (film.max(axis=(1, 2, 3)) == 255).astype(int)
        assert int((np.diff(np.concatenate([[0], lit])) == 1).sum()) == lit.sum() == row["count"]
        assert not lit[0]
        assert not lit[-1]
        counts.add(row["count"])
    assert counts == {1, 2, 3, 4}


def test_the_direction_is_the_one_in_which_the_square_moves():
    found = set()
    assert clips(question="motion", frames=4)[0]["video"]["frames"].shape[0] == 4, "blinks need more, motion does not"
    for row in clips(question="motion"):
        film = row["video"]["frames"].astype(float).sum(axis=3)
        bright = film > film.min() + 100
        places = np.array([np.argwhere(frame).mean(axis=0) for frame in bright])
        (down, right) = places[-1] - places[0]
        seen = max({"down": down, "up": -down, "right": right, "left": -right}.items(), key=lambda way: way[1])[0]
        assert seen == row["direction"]
        assert min(abs(down), abs(right)) < 1
        assert max(abs(down), abs(right)) > 20
        found.add(seen)
    assert found == {"left", "right", "up", "down"}


@pytest.mark.parametrize("make", [beeps, clips])
def test_rows_follow_from_seed_and_number_alone(make: Any):
    def content(row: Any) -> bytes:
        return row.get("audio", {}).get("array", row.get("video", {}).get("frames")).tobytes()

    first, again, other = make(seed=1), make(seed=1), make(seed=2)
    assert content(first[7]) == content(again[7])
    assert content(first[7]) != content(other[7])
    assert len({content(row) for row in first}) == len(first)
    assert first.id(3) != other.id(3)


def test_they_become_media_of_their_kind():
    (sound,) = Samples(beeps(), columns=Columns(), template=Template())[0].media
    assert sound.kind == "audio"
    heard_samples = decode(sound)
    assert (heard_samples.rate, len(heard_samples.data)) == (16000, 32000)
    (film,) = Samples(clips(), columns=Columns(), template=Template())[0].media
    seen = decode(film)
    assert film.kind == "video"
    assert seen.data.shape == (16, 56, 56, 3), "at the default of two frames a second none is left out"
    assert seen.rate == 2.0


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"synthetic": "beeps", "rows": 4, "max_beeps": 50}, "50 beeps need 10 seconds"),
        ({"synthetic": "beeps", "rows": 4, "min_beeps": 9}, "larger than max_beeps"),
        ({"synthetic": "clips", "rows": 4, "max_blinks": 9}, "9 blinks need 19 frames"),
        ({"synthetic": "clips", "rows": 4, "beeps": 9}, "beeps"),
        ({"synthetic": "smells", "rows": 4}, "counting, beeps or clips"),
    ],
)
def test_what_does_not_fit_is_refused(source: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told):
        load_config(None, {"data.train": source}, base={"model": {"name": "tiny:qwen2_5_vl"}})


def test_the_yaml_chooses_between_them():
    base = {"model": {"name": "tiny:qwen2_5_vl"}}
    config = load_config(
        None,
        {
            "data.train": {"synthetic": "clips", "rows": 4, "question": "motion"},
            "data.eval": {"synthetic": "beeps", "rows": 4},
        },
        base=base,
    )
    assert isinstance(config.data.train, Clips)
    assert isinstance(config.data.eval, Beeps)
