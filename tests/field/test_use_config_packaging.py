"""Faults found in use: promises of the packaging that no code keeps."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
IMPORTED_AS = {"open_clip_torch": "open_clip", "math-verify": "math_verify"}
CODE = "\n".join(
    file.read_text(encoding="utf-8") for room in ("mmgrpo", "rewards") for file in sorted((ROOT / room).rglob("*.py"))
)
REQUIREMENTS = [(extra, line) for extra, lines in EXTRAS.items() if extra != "dev" for line in lines]


@pytest.mark.parametrize(("extra", "requirement"), REQUIREMENTS)
def test_w23_an_extra_exists_only_where_something_uses_it(extra, requirement):
    name = re.match(r"[\w-]+", requirement)[0]
    module = IMPORTED_AS.get(name, name)
    uses = rf"\b(?:import|from) (?:[\w.]+\.)?{module}\b|[\"']{module}[\"']|processor needs {name}"
    assert re.search(uses, CODE), f"{extra} installs {name}, which nothing uses"


def test_w23_extras_that_messages_name_exist():
    named = {extra for names in re.findall(r"mmgrpo\[([\w,]+)\]", CODE) for extra in names.split(",")}
    assert named
    assert named <= set(EXTRAS)
