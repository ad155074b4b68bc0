import doctest
import importlib
from pathlib import Path

import pytest

from mmgrpo.config.paths import shipped_rewards
from mmgrpo.plugins import import_file

ROOM = Path(__file__).parents[3] / "mmgrpo" / "reward"


@pytest.mark.parametrize("name", sorted(p.stem for p in ROOM.glob("*.py") if p.stem not in ("__init__", "process")))
def test_examples_of_the_room_run(name):
    module = importlib.import_module(f"mmgrpo.reward.{name}")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("path", sorted(shipped_rewards().glob("*.py")), ids=lambda p: p.stem)
def test_examples_of_shipped_rewards_run(path):
    result = doctest.testmod(import_file(path))
    assert result.failed == 0
