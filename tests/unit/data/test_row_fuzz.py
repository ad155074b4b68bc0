"""Damaged rows: whatever stands in a file or a row, it loads or is refused with one of our own errors."""

from __future__ import annotations

import copy
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import MmgrpoError

SHIPPED = Path(__file__).parents[2] / "data_samples"
FILES = sorted([*SHIPPED.glob("*.jsonl"), *(SHIPPED / "datasets").glob("*.jsonl")])
LONGEST_SECONDS = 2.0
ODD: list[Any] = [
    None, True, 0, -1, 3.5, float("nan"), float("inf"), 10**30, "", " ", "\0", "\ud800", "<image>", "<image><audio>",
    "x" * 5000, "../../../../etc/hostname", "file:///etc/hostname", "file://", "data:", "data:;base64,", "http://",
    "A" * 99, "{{ problem }}", "{% for %}", b"bytes", [], {}, [[]], [None], [{}], [1], ["a", 1], [["a"]],
    {"bytes": None}, {"path": 3}, {"bytes": "text", "path": None}, {"array": "x", "sampling_rate": None},
    {"array": [[1, 2], [3]], "sampling_rate": "fast"}, {"type": "image"}, [{"role": "user"}],
    [{"role": 3, "content": "?"}], [{"role": "user", "content": [3]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 3}}]}],
    [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": None}}]}],
    [{"from": "human", "value": {"a": 1}}], [{"from": "gpt", "value": "first"}],
]  # fmt: skip


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


ROWS = [row for path in FILES for row in rows_of(path)]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List every place inside a row."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def damaged(row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Replace, remove, rename or double one to three things of a row."""
    row = copy.deepcopy(row)
    for _ in range(rng.randint(1, 3)):
        found = [place for place in places(row) if place]
        if not found:
            break
        *way, last = rng.choice(found)
        holder: Any = row
        for key in way:
            holder = holder[key]
        what = rng.random()
        if what < 0.6:
            holder[last] = copy.deepcopy(rng.choice(ODD))
        elif what < 0.75:
            del holder[last]
        elif what < 0.9 and isinstance(holder, dict):
            holder[rng.choice(["image", "images", "videos", "audio", "problem", "messages", "odd"])] = holder.pop(last)
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
    return row


def columns_for(rng: random.Random) -> Columns:
    if rng.random() < 0.7:
        return Columns()
    return Columns(prompt=rng.choice(["auto", "problem", "odd"]), image=rng.choice(["auto", None, "images"]))


def read(rows: Any, columns: Columns, template: Template) -> bool:
    """Read every row; give whether all were fine."""
    try:
        samples = Samples(
            rows_from_python(rows) if isinstance(rows, list) else rows, columns=columns, template=template
        )
        for sample in samples:
            assert all(medium.kind in ("image", "audio", "video") for medium in sample.media)
    except MmgrpoError as error:
        assert str(error)
        return False
    return True


def fuzz_values(count: int, seed: int) -> int:
    rng = random.Random(seed)
    fine = 0
    for _ in range(count):
        rows = [damaged(rng.choice(ROWS), rng) for _ in range(rng.randint(1, 2))]
        template = Template(user=rng.choice(["{{ prompt }}", "{{ prompt }} {{ solution }}", "Look."]))
        start = time.monotonic()
        fine += read(rows, columns_for(rng), template)
        assert time.monotonic() - start < LONGEST_SECONDS
    return fine


def fuzz_bytes(count: int, seed: int, folder: Path) -> int:
    rng = random.Random(seed)
    file, fine = folder / "rows.jsonl", 0
    for _ in range(count):
        content = bytearray(rng.choice(FILES).read_bytes())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            if rng.random() < 0.5:
                content[at] = rng.randrange(256)
            else:
                del content[at : at + rng.randint(1, 30)]
            content = content or bytearray(b"x")
        file.write_bytes(bytes(content))
        start = time.monotonic()
        try:
            rows = open_rows(Files(path=str(file)), base=folder)
        except MmgrpoError:
            continue
        fine += read(rows, Columns(), Template())
        assert time.monotonic() - start < LONGEST_SECONDS
    return fine


@pytest.mark.filterwarnings("ignore:.*that no prompt shows")
def test_a_thousand_damaged_rows_load_or_are_refused(tmp_path: Path):
    assert 50 < fuzz_values(600, seed=0) < 590, "some must pass and some must not, or this proves nothing"
    assert 20 < fuzz_bytes(400, 0, tmp_path) < 390


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore:.*that no prompt shows")
@pytest.mark.parametrize("seed", range(10))
def test_twenty_thousand_damaged_rows_load_or_are_refused(seed: int, tmp_path: Path):
    fuzz_values(1200, seed=100 + seed)
    fuzz_bytes(800, 100 + seed, tmp_path)
