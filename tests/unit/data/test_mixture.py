"""Several sources in one: each in its own form and folder, with unique names and the columns of all."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mmgrpo.config.load import load_config
from mmgrpo.data.mixture import MixedSamples
from mmgrpo.data.opening import open_samples
from mmgrpo.errors import ConfigError

TINY = {"model": {"name": "tiny:qwen2_5_vl"}}


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def mixed(folder: Path, *parts: dict, **keys: object) -> MixedSamples:
    data = load_config(None, {"data": {"train": {"mixture": list(parts), **keys}}}, base=TINY).data
    samples = open_samples(data, data.train, base=folder, needed="data.train")
    assert isinstance(samples, MixedSamples)
    return samples


def test_sources_of_several_forms_and_folders_are_one_sequence(tmp_path: Path):
    write(tmp_path / "a/rows.jsonl", [{"image": "x.png", "problem": "?", "solution": "1", "hint": "h"}] * 2)
    write(
        tmp_path / "b/rows.jsonl", [{"messages": [{"role": "user", "content": "<image>?"}], "images": ["x.png"]}] * 3
    )
    samples = mixed(
        tmp_path,
        {"source": {"path": "a/rows.jsonl"}},
        {"source": {"path": "b/rows.jsonl#2"}},
        {"source": {"synthetic": "counting", "rows": 4}},
    )
    assert (len(samples), samples.sizes) == (8, (2, 2, 4))
    assert [samples[i].media[0].source.parent.name for i in (0, 3)] == ["a", "b"]
    assert len({s.id for s in samples}) == 8
    assert {tuple(sorted(s.extras)) for s in samples} == {tuple(sorted(samples.columns))}
    assert [samples[i].extras["hint"] for i in (0, 2)] == ["h", None]
    assert "b/rows.jsonl:" in samples.where(3)
    assert list(samples.checkable()) == [0, 1, 2, 3]
    assert list(samples.forms().values()) == ["r1v", "swift", "r1v"]
    assert samples[-1].id == samples[7].id


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([{"source": {"path": "a"}, "weight": 1}, {"source": {"path": "b"}}], "every source"),
        ([{"source": {"path": "a"}, "weight": 0}], "all 0"),
        ([{"source": {"path": "a"}, "weight": 1, "end_weight": 2}], "over_steps"),
        ([], "mixture"),
        ([{"source": {"mixture": []}}], "path"),
    ],
)
def test_weights_that_mean_nothing_are_refused(parts: list[dict], says: str):
    with pytest.raises(ConfigError, match=says):
        load_config(None, {"data": {"train": {"mixture": parts}}}, base=TINY)


def test_a_mixture_may_be_changed_from_the_command_line():
    parts = [{"source": {"path": "a"}, "weight": 1}, {"source": {"path": "b"}, "weight": 1}]
    words = ["data.train.mixture.1.weight=3", "data.train.mixture.0.source.limit=7"]
    train = load_config(None, words, base={**TINY, "data": {"train": {"mixture": parts}}}).data.train
    assert [part.weight for part in train.mixture] == [1, 3]
    assert train.mixture[0].source.limit == 7


_COUNT = """
import resource, sys
from pathlib import Path
from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.sources import open_rows
from mmgrpo.data.samples import Samples
samples = Samples(open_rows(Files(path=sys.argv[1]), base=Path.cwd()), columns=Columns(), template=Template())
assert len(samples) == 100_000
for i in range(0, 100_000, 10):
    samples[i]
status = Path("/proc/self/status")  # Linux counts in ru_maxrss what the parent held when it forked
lines = status.read_text().splitlines() if status.exists() else []
peaks = [line.split()[1] for line in lines if line.startswith("VmHWM")]
print(peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_hundred_thousand_rows_stay_under_a_gigabyte(tmp_path: Path):
    picture = "data:image/png;base64," + "A" * 12_000
    line = json.dumps({"image": picture, "problem": "How many?" * 20, "solution": "3"}) + "\n"
    with (tmp_path / "rows.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(100_000):
            file.write(line)
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, str(tmp_path / "rows.jsonl")], capture_output=True, text=True, check=True
    )
    kilobytes = int(done.stdout) // (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 1_000_000
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
