"""How a run begins: which configuration counts."""

import pytest
import yaml

import mmgrpo
from mmgrpo.api.begin import begin, joined, written
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
    from mmgrpo.config.show import render_config

    made.write_start(config=render_config(config), folder=tmp_path, source=file, facts={})
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


def length(completions):
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize(
    ("given", "section"),
    [
        ("mine.py:f", [{"fn": "mine.py:f"}]),
        ({"fn": "mine.py:f", "weight": 2}, [{"fn": "mine.py:f", "weight": 2}]),
        (["mine.py:f"], [{"fn": "mine.py:f"}]),
    ],
)
def test_a_single_reward_needs_no_list(given, section):
    assert written(given) == ({"rewards": section}, None)


@pytest.mark.parametrize("given", [length, [length], {"fn": length}, ["mine.py:f", length]])
def test_functions_are_handed_on_as_they_are(given):
    found, rewards = written(given)
    assert found == {"rewards": []}
    assert rewards == (given if isinstance(given, list) else [given])


@pytest.mark.parametrize("given", [5, [5], [None], b"mine.py:f", {"a", "b"}])
def test_what_can_be_no_reward_is_told(given):
    with pytest.raises(ConfigError, match="These are no rewards"):
        written(given)


def test_sections_may_be_given_as_one_mapping():
    loaded, _ = begin({**MODEL, "train.seed": 3}, (), {"train": {"num_steps": 4}}, None)
    assert (loaded.config.train.seed, loaded.config.train.num_steps) == (3, 4)


@pytest.mark.parametrize(
    ("config", "overrides", "resume", "words"),
    [
        (5, (), False, "Not a configuration"),
        (None, 5, False, "These are no overrides"),
        (None, [5], False, "These are no overrides"),
        (None, (), 5, "resume names no run"),
    ],
)
def test_what_is_none_of_the_forms_is_told(config, overrides, resume, words):
    with pytest.raises(ConfigError, match=words):
        begin(config, overrides, {}, resume)
    with pytest.raises(ConfigError, match=words):
        begin(config, overrides, MODEL, resume)


@pytest.mark.parametrize("callback", [5, "stop", lambda step: None, lambda: None])
def test_a_callback_that_cannot_be_called_is_told_before_anything_is_loaded(callback):
    with pytest.raises(ConfigError, match="on_step"):
        mmgrpo.train(MODEL, on_step=callback)
