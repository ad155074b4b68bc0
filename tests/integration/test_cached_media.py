"""A run with the cache on is the run without it: same rewards, same weights, same evaluation."""

from __future__ import annotations

import pytest
import torch
from PIL import Image


def questions(folder, *, pictures, each):
    """Save pictures, and ask of each several questions."""
    folder.mkdir()
    rows = []
    for i in range(pictures):
        Image.new("RGB", (56, 56), (60 * i, 20, 200 - 60 * i)).save(folder / f"{i}.png")
        rows += [{"image": str(folder / f"{i}.png"), "problem": f"Question {n}?", "solution": i} for n in range(each)]
    return rows


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
