"""The teaching file runs as it stands, and the policy really learns from the reward alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mmgrpo

ROOT = Path(mmgrpo.__file__).resolve().parent.parent


@pytest.mark.slow
def test_grpo_in_one_file_learns_to_name_colours(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "grpo_in_one_file.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    before, after = (float(re.search(rf"{word} GRPO: ([\d.]+)", done.stdout)[1]) for word in ("before", "after"))
    assert before < 0.5, "the supervised steps draw their words by lot and must not teach colours"
    assert after > 0.6, done.stdout
    rewards = [float(number) for number in re.findall(r"reward ([\d.]+)", done.stdout)]
    assert rewards[-1] > rewards[0] + 0.2, done.stdout
    assert list(tmp_path.iterdir()) == []
