"""A run with the cache on is the run without it: same rewards, same weights, same evaluation."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from mmgrpo.cli import main


def questions(folder, *, pictures, each):
    """Save pictures, and ask of each several questions."""
    folder.mkdir()
    rows = []
    for i in range(pictures):
        Image.new("RGB", (56, 56), (60 * i, 20, 200 - 60 * i)).save(folder / f"{i}.png")
        rows += [{"image": str(folder / f"{i}.png"), "problem": f"Question {n}?", "solution": i} for n in range(each)]
    return rows


def test_a_check_fills_the_folder_that_the_run_reads(train, yaml_file, tmp_path):
    questions(tmp_path / "pictures", pictures=3, each=2)
    rows = [{"image": f"{i % 3}.png", "problem": "How many?", "solution": i} for i in range(4)]
    (tmp_path / "pictures" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    changes = {
        "data": {"train": {"path": str(tmp_path / "pictures" / "rows.jsonl")}, "eval": None},
        "model": {"max_pixels": 28 * 28},
        "cache": {"folder": str(tmp_path / "kept")},
        "checks": {"picture_swap": False},
    }
    assert main(["check", str(yaml_file(**changes))]) == 0
    filled = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert len(filled) == 6
    train(**changes)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()} == filled


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_cache_changes_nothing_but_the_work(train, tmp_path, prefetch):
    rows = questions(tmp_path / "pictures", pictures=3, each=3)
    found = []
    for name, cache in (("plain", {}), ("kept", {"media_bytes": 10**7, "folder": str(tmp_path / "kept")})):
        run = train(
            name, train_rows=rows, eval_rows=rows[:4], data={"prefetch": prefetch}, cache=cache,
            eval={"limit": 4, "batch_size": 2}, checks={"picture_swap": False},
        )  # fmt: skip
        weights = torch.cat([p.flatten() for _, p in run.policy.trainable()])
        found.append(([row["reward"] for row in run.metrics()], run.after.metrics(), weights))
    (rewards, report, weights), (kept_rewards, kept_report, kept_weights) = found
    assert rewards == kept_rewards
    assert report == kept_report
    assert torch.equal(weights, kept_weights)
    assert len(list((tmp_path / "kept").glob("*-decoded.pt"))) == 3, "one file for each picture, not for each question"
    assert len(list((tmp_path / "kept").glob("*-processed.pt"))) == 3
