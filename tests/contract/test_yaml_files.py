"""Every YAML that the repository ships loads, and the page of all keys is up to date."""

from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.config.load import load_config
from mmgrpo.config.show import schema_markdown

ROOT = Path(mmgrpo.__file__).resolve().parent.parent
TINY = {"model": {"name": "tiny:qwen2_5_vl"}}
EXAMPLES = sorted((ROOT / "examples").glob("**/*.yaml"))
DATASETS = sorted((ROOT / "datasets_configs").glob("**/*.yaml"))


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_every_example_loads_from_anywhere(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(name_of(path)) == load_config(path)


@pytest.mark.parametrize("path", DATASETS, ids=name_of)
def test_every_dataset_file_loads(path):
    config = load_config(None, {"data.config": str(path)}, base=TINY)
    assert config.data.config is None
    assert config.data != load_config(None, base=TINY).data


def test_the_repository_ships_examples_and_dataset_files():
    assert {"quickstart.yaml", "clevr_70k_counting.yaml"} <= {path.name for path in EXAMPLES}
    assert DATASETS


def test_no_yaml_of_the_repository_ends_in_yml():
    assert [path for folder in ("examples", "datasets_configs") for path in (ROOT / folder).glob("**/*.yml")] == []


def test_the_page_of_all_keys_is_up_to_date():
    page = ROOT / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == schema_markdown(), "run `make docs`"
