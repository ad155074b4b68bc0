"""Positions after videos follow the rule that the checkpoints were trained with."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.policy.families.qwen_vl import resume_after_videos, scale_video_times
from mmgrpo.policy.families.registry import family_of


def by_the_paper(spans, per_second=None):
    """Positions from spans ("text", n) and ("image" | "video", t, h, w, seconds): each begins at the largest + 1."""
    rows = []
    start = 0
    for kind, *sizes in spans:
        if kind == "text":
            rows += [[start + i] * 3 for i in range(sizes[0])]
        else:
            steps, high, wide, seconds = sizes
            pace = per_second * seconds if kind == "video" and per_second else 1
            rows += [
                [start + int(t * pace), start + y, start + x]
                for t in range(steps)
                for y in range(high)
                for x in range(wide)
            ]
        start = max(max(row) for row in rows) + 1
    return torch.tensor(rows).T


SPANS = {
    "long film": [("text", 3), ("video", 8, 2, 2, 1.0), ("text", 5)],
    "short film": [("text", 3), ("video", 2, 4, 6, 0.5), ("text", 5)],
    "two films and a picture": [
        ("text", 1), ("video", 6, 2, 3, 2.0), ("text", 1), ("image", 1, 3, 2, 0), ("text", 2), ("video", 3, 2, 2, 0.7),
        ("text", 4),
    ],
    "picture": [("text", 2), ("image", 1, 4, 3, 0), ("text", 2)],
}  # fmt: skip


@pytest.mark.parametrize("shape", SPANS)
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_text_goes_on_behind_the_last_moment_of_a_film(family, shape):
    record = family_of(family)
    model, _ = record.tiny({}, 0)
    spans = SPANS[shape]
    kinds = {"text": 0, "image": 1, "video": 2}
    types = [kinds[kind] for kind, *sizes in spans for _ in range(torch.tensor(sizes[:3]).prod())]
    grids = {}
    for kind in ("image", "video"):
        sizes = [[span[1], 2 * span[2], 2 * span[3]] for span in spans if span[0] == kind]
        grids[kind] = torch.tensor(sizes) if sizes else None
    seconds = [s[4] for s in spans if s[0] == "video"]
    arguments = {"second_per_grid_ts": torch.ones(len(seconds))} if family == "qwen2_5_vl" else {}
    theirs, _ = model.model.get_rope_index(
        torch.zeros(1, len(types), dtype=torch.long),
        mm_token_type_ids=torch.tensor(types)[None],
        image_grid_thw=grids["image"],
        video_grid_thw=grids["video"],
        **arguments,
    )
    per_second = model.config.vision_config.tokens_per_second if family == "qwen2_5_vl" else None
    ours = theirs[:, 0] if per_second is None else scale_video_times(theirs[:, 0], tuple(types), seconds, per_second)
    assert torch.equal(resume_after_videos(ours, tuple(types)), by_the_paper(spans, per_second))
