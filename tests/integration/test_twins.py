"""T-GRPO's comparison in a whole run: clips with their frames in order beside the same clips shuffled."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

import mmgrpo

VIDEO = Path(__file__).parents[2] / "rewards/video.py"
ALL_RIGHT = """
def all_right(completions, answer):
    return [1.0] * len(completions)
"""


def test_the_frame_order_bonus_sees_both_versions_of_a_clip_in_one_step(sections, reward_file, tmp_path):
    (tmp_path / "right.py").write_text(ALL_RIGHT)
    bonus = {"fn": f"{VIDEO}:FrameOrderBonus", "args": {"accuracy": f"{tmp_path / 'right.py'}:all_right"}}
    clips = {"synthetic": "clips", "rows": 5, "frames": 8, "max_blinks": 2, "shuffled_twins": True}
    given = sections(
        data={"train": clips, "eval": None, "video": {"min_pixels": 3136, "max_pixels": 3136}},
        rewards=[{"fn": reward_file}, bonus],
        train={"prompts_per_step": 4, "max_batch_tokens": 4000},
    )
    run = mmgrpo.train(mmgrpo.load_config(None, given), console=Console(file=io.StringIO()))
    files = sorted((run.path / "completions").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 3 * 4 * 3
    for row in rows:
        shuffled = row["sample"].endswith("-shuffled")
        assert row["rewards"]["frame_order_bonus"] == (0.0 if shuffled else 0.3), "never without its twin"
