"""The rules and the format of `make check`, without pyright."""

import subprocess
import sys
from pathlib import Path

import pytest

import mmgrpo

ROOT = Path(mmgrpo.__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_has_nothing_to_say(words):
    done = subprocess.run([sys.executable, "-m", "ruff", *words, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
