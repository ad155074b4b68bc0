"""The walk of one sample, from its row to its gradient: which files it enters, as docs/walk.md lists them.

A real second step of a real run is traced (an image prompt, the local engine, a function as reward), without what only
looks on: checks, logging, checkpoints. After a change write the page again:
MMGRPO_WRITE_WALK=1 pytest tests/contract/test_walk.py
"""

import json
import os
import sys
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo import trainer

PACKAGE = Path(mmgrpo.__file__).resolve().parent
PAGE = PACKAGE.parent / "docs" / "walk.md"
ORDER = ("data", "media", "policy", "rollout", "reward", "parallel", "grpo", "training", "running")
"""Rooms in the order of the walk; files of no room come first."""
LIMIT = 52
"""Files that a sample may enter; lower it when a file goes, never raise it for a new one."""


class Tracer:
    """Notes the files of the package in which a function is entered."""

    def __init__(self):
        self.files = set()

    def __call__(self, frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)) and frame.f_code.co_name != "<module>":
            self.files.add(str(Path(name).relative_to(PACKAGE)))


@pytest.fixture
def walked(train, tmp_path, monkeypatch):
    """Train two steps on rows with images, and trace the second."""
    from PIL import Image

    rows = []
    for number in range(4):
        Image.new("RGB", (56, 56), (60 * number, 20, 20)).save(tmp_path / f"{number}.png")
        rows.append({"image": f"{number}.png", "problem": "How many?", "solution": f"<answer>{number}</answer>"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracer, honest = Tracer(), trainer.train_step

    def traced(function):
        def call(*arguments, **more):
            sys.setprofile(tracer)
            try:
                return function(*arguments, **more)
            finally:
                sys.setprofile(None)

        return call

    def train_step(parts, run, step):
        if step == 1:
            monkeypatch.setattr(trainer, "collect", traced(trainer.collect))
            monkeypatch.setattr(parts.advantages, "compute", traced(parts.advantages.compute), raising=True)
            monkeypatch.setattr(type(parts.learner), "learn", traced(type(parts.learner).learn))
        honest(parts, run, step)

    monkeypatch.setattr(trainer, "train_step", train_step)
    train(data={"train": {"path": str(tmp_path / "rows.jsonl")}, "eval": None, "prefetch": 0}, train={"num_steps": 2})
    return tracer.files


def in_order(files):
    def key(file):
        room = file.split("/")[0]
        return (ORDER.index(room) + 1 if room in ORDER else 0, file)

    return sorted(files, key=key)


def page(files):
    lines = [f"| `mmgrpo/{file}` | {summary(file)} |" for file in in_order(files)]
    return "\n".join(
        [
            "# The walk of one sample",
            "",
            f"From its row to its gradient a sample with an image enters {len(files)} files (local engine, a function",
            "as reward). `tests/contract/test_walk.py` traces a real step and keeps this list.",
            "",
            "| file | what it is for |",
            "|---|---|",
            *lines,
            "",
        ]
    )


def summary(file):
    first = (PACKAGE / file).read_text(encoding="utf-8").split('"""')[1].strip().split("\n\n")[0].replace("\n", " ")
    return first.rstrip(".").replace("|", "\\|")


def test_the_page_lists_the_files_that_a_sample_enters_and_they_are_few(walked):
    if os.environ.get("MMGRPO_WRITE_WALK"):
        PAGE.write_text(page(walked), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(walked)
    assert len(walked) <= LIMIT
