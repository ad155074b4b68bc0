"""What a processor calls its tensors is known to the family records alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.policy.families.registry import all_families

PACKAGE = Path(mmgrpo.__file__).resolve().parent
KEYS = {key for family in all_families() for key in family.keys}
FILES = sorted(set(PACKAGE.rglob("*.py")) - set((PACKAGE / "policy" / "families").rglob("*.py")))


def keys_in(source: str) -> set[str]:
    return {word for word in re.findall(r"""["'](\w+)["']""", source) if word in KEYS}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_outside_the_families_names_no_key_of_a_processor(file: Path):
    assert keys_in(file.read_text(encoding="utf-8")) == set()


def test_a_named_key_is_found():
    assert {"pixel_values", "image_grid_thw", "input_features", "batch_num_images"} <= KEYS
    assert keys_in("inputs['image_grid_thw'].prod()") == {"image_grid_thw"}
