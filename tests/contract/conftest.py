"""Small whole runs for the field cases: the fixtures of the integration tests."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("small_runs", Path(__file__).parents[1] / "integration" / "conftest.py")
_small_runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_small_runs)

reward_file, sections, train, yaml_file = (
    getattr(_small_runs, name) for name in ("reward_file", "sections", "train", "yaml_file")
)
