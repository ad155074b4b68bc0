"""Field rows F: faults of configuration files."""

import pytest

from mmgrpo.config.load import load_config
from mmgrpo.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def _write(text):
        file = tmp_path / "my.yaml"
        file.write_text("model: {name: tiny:qwen2_5_vl}\n" + text, encoding="utf-8")
        return file

    return _write


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("1E-6", 1e-6), ("1e6", 1e6), ("1.0e-6", 1e-6), ("5", 5.0), ("1_000", 1000.0), (".5", 0.5)],
)
def test_f01_every_spelling_of_a_number_is_a_float(write, text, value):
    read = load_config(write(f"train: {{learning_rate: {text}}}\n")).train.learning_rate
    assert read == value
    assert type(read) is float
    assert load_config(write(""), [f"train.learning_rate={text}"]).train.learning_rate == value


@pytest.mark.parametrize("text", ['"1e-6"', "yes", "true", "on", "[1]", "fast"])
@pytest.mark.parametrize("key", ["train.learning_rate", "train.num_steps"])
def test_f01_what_is_not_a_number_is_refused_by_key(write, text, key):
    section, name = key.split(".")
    with pytest.raises(ConfigError, match=f"{key}.*\n  where: .*my.yaml:3:3"):
        load_config(write(f"{section}:\n  {name}: {text}\n"))


@pytest.mark.parametrize(
    ("yaml", "place", "answer"),
    [
        ("train:\n  learnig_rate: 1\n", "3:3", "Write learning_rate."),
        ("train:\n  lora_r: 8\n", "3:3", "model.lora.r"),
        ("train:\n  num-epochs: 1\n", "3:3", "Write num_epochs."),
        ("train:\n  num_generations: 4\n", "3:3", "num_generations belongs under rollout"),
        ("beta: 0.1\n", "2:1", "beta belongs under loss: write loss.beta."),
        ("roll_out:\n  num_generations: 4\n", "2:1", "Write rollout."),
        ("rollout:\n  sampling:\n    temperature: 1\n", "3:3", "fix:"),
    ],
)
def test_f02_a_misspelt_or_misplaced_key_is_refused_with_the_right_one(write, yaml, place, answer):
    file = write(yaml)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert f"{file}:{place}" in str(caught.value)
    assert answer in str(caught.value)


def test_f02_a_syntax_error_shows_line_and_column(write):
    file = write("train:\n  seed: 1: 2\n")
    with pytest.raises(ConfigError, match=f"Not valid YAML.*\n  where: {file}:3:10"):
        load_config(file)


@pytest.mark.parametrize(
    ("yaml", "key"),
    [
        ("model: {name: tiny:qwen2_5_vl, max_pixels: 0}\n", "model.max_pixels"),
        ("model: {name: tiny:qwen2_5_vl, min_pixels: -5}\n", "model.min_pixels"),
        ("model: {name: tiny:qwen2_5_vl, min_pixels: 500, max_pixels: 400}\n", "model.min_pixels 500 is larger"),
    ],
)
def test_f05_bounds_of_media_limits_are_checked_by_key(tmp_path, yaml, key):
    file = tmp_path / "x.yaml"
    file.write_text(yaml)
    with pytest.raises(ConfigError, match=key):
        load_config(file)
