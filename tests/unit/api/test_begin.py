"""How a run begins: which configuration counts."""

import pytest
import yaml

import mmgrpo
from mmgrpo.api.begin import begin, joined
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.observe.runfolder import create_run_folder

MODEL = {"model": {"name": "tiny:qwen2_5_vl"}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "count.yaml"
    content = {**MODEL, "loss": {"beta": 0.5}, "train": {"num_steps": 9, "output_dir": str(tmp_path / "runs/{name}")}}
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def folder(tmp_path, file):
    """A run folder as a start leaves it."""
    made = create_run_folder(str(tmp_path / "runs/{name}"), "count")
    config = mmgrpo.load_config(file, ["train.num_steps=7"])
    from mmgrpo.config.show import render

    made.write_start(config=render(config), folder=tmp_path, source=file, facts={})
    return made


def test_sections_alone_make_a_configuration():
    loaded, folder = begin(None, (), {**MODEL, "train": {"num_steps": 3}}, False)
    assert loaded.config.train.num_steps == 3
    assert (loaded.name, folder) == ("run", None)


def test_sections_lie_over_overrides_and_these_over_the_yaml(file):
    texts = ["train.num_steps=5", "loss.beta=0.1", "train.seed=1"]
    loaded, _ = begin(file, texts, {"train": {"num_steps": 3}, "loss": {"beta": 0.2}}, False)
    assert (loaded.config.train.num_steps, loaded.config.train.seed, loaded.config.loss.beta) == (3, 1, 0.2)
    assert loaded.name == "count"


@pytest.mark.parametrize(
    "overrides",
    [["rewards.0.weight=2", "train.seed=3"], {"rewards.0.weight": 2, "train": {"seed": 3}}, "train.seed=3"],
)
def test_overrides_of_any_form_are_joined_with_sections(overrides):
    found = joined(overrides, {"train": {"num_steps": 4}, "rollout": {"chat_template_kwargs": {"thinking": False}}})
    assert found["train.seed"] == 3
    assert found["train.num_steps"] == 4
    assert found["rollout.chat_template_kwargs.thinking"] is False
    assert isinstance(overrides, str) or found["rewards.0.weight"] == 2


def test_overrides_without_sections_are_left_as_they_are():
    assert joined(["a=1"], {}) == ["a=1"]


def test_a_section_that_does_not_exist_is_told():
    with pytest.raises(ConfigError, match="reward"):
        begin(None, (), {**MODEL, "reward": [len]}, False)


def test_on_resume_the_folders_own_configuration_counts_with_what_is_said_now_on_top(file, folder):
    loaded, found = begin(file, ["train.max_seconds=5"], {}, folder.path)
    assert found == folder
    assert (loaded.config.train.num_steps, loaded.config.train.max_seconds) == (7, 5.0)
    assert loaded.config.loss.beta == 0.5
    assert (loaded.name, loaded.folder) == ("count", file.parent)


def test_true_resumes_the_newest_of_the_name(file, folder):
    later = create_run_folder(str(folder.path), "count")
    later.write_start(config=folder.config.read_text(), folder=file.parent, source=file, facts={})
    assert begin(file, (), {}, True)[1] == later


def test_true_without_a_run_says_so(file):
    with pytest.raises(CheckpointError, match="no run to resume"):
        begin(file, (), {}, True)
