"""Faults found in use: input of any length and any characters: told in a moment, with a place, never quoted whole."""

import time

import pytest

from mmgrpo.config.load import load_config
from mmgrpo.config.paths import find_file
from mmgrpo.config.schema import Config
from mmgrpo.errors import ConfigError

TINY = {"model": {"name": "tiny:qwen2_5_vl"}}
HEAD = "model: {name: tiny:qwen2_5_vl}\n"


def message(values=None, overrides=()):
    with pytest.raises(ConfigError) as caught:
        load_config(values, overrides, base=TINY)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "data: {template: {system: '" + "x" * 10_000_000 + "'}}\n",
        HEAD + "data: {template: {system: '" + "x" * 900_000 + "'}}\n",
        HEAD + "".join(f"k{n}: 1\n" for n in range(100_000)),
        HEAD + "".join(f"k{n}: 1\n" for n in range(15_000)),
        HEAD + "rollout:\n  stop:\n" + "  - a\n" * 100_000,
        HEAD + "rewards: [" + "1," * 100_000 + "]\n",
        HEAD + "rewards: [" + "1," * 15_000 + "]\n",
    ],
    ids=["10 MB of text", "text", "100,000 keys", "15,000 keys", "100,000 items", "in a line", "15,000 items"],
)
def test_t03_a_large_yaml_is_read_or_refused_in_seconds(tmp_path, text):
    file = tmp_path / "large.yaml"
    file.write_text(text, encoding="utf-8")
    start = time.process_time()
    try:
        assert isinstance(load_config(file), Config)
    except ConfigError as error:
        assert len(str(error)) < 30_000
        assert "large.yaml" in str(error)
    assert time.process_time() - start < 15


def test_t03_many_faults_are_counted_and_the_first_are_told():
    text = message({f"k{n}": 1 for n in range(500)})
    assert text.startswith("The configuration has 500 faults.")
    assert text.count("Unknown key") == 20
    assert "480 more faults" in text


@pytest.mark.parametrize(
    "override",
    [
        "loss.beta=0x" + "f" * 6000,
        "loss.beta=" + "9" * 6000,
        "rewards.².weight=1",
        "rewards.٣.weight=1",
        "x" * 10_000,
        "loss." + "x" * 10_000 + "=1",
        "model.dtype=" + "x" * 10_000,
        "train.num_steps=" + "x" * 10_000,
        "rollout.engine=" + "x" * 10_000,
        "loss.beta=[" + "9" * 290 + ", " + "x" * 10_000,
    ],
)
def test_t04_one_message_with_long_values_cut(override):
    text = message(None, [override])
    assert len(text) < 2500
    if len(override) > 1000:
        assert "000 characters)" in text or "characters)" in text


def test_t04_a_number_of_thousands_of_digits_from_python_is_told_too():
    assert "loss.loss_type" in message({"loss.loss_type": int("f" * 6000, 16)})


def test_t04_a_path_longer_than_a_file_system_takes_is_not_found(tmp_path):
    for name in ("x" * 4000 + ".yaml", "a/" * 3000 + "x.yaml"):
        with pytest.raises(ConfigError, match="No such configuration") as caught:
            load_config(name)
        assert "characters)" in str(caught.value)
        assert len(str(caught.value)) < 1500
    with pytest.raises(ConfigError, match="No such file"):
        find_file("a\0b", tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.output_dir", "a\0b"),
        ("model.name", "tiny:\0"),
        ("data.train", {"path": "rows\0.jsonl"}),
        ("cache.folder", "\0"),
        ("rewards", [{"fn": "a\0.py:f"}]),
        ("rewards", [{"fn": "a.py:f", "name": "\0"}]),
        ("model.lora", {"adapter": "a\0"}),
        ("data.columns.image", ["left", "ri\0ght"]),
        ("train.output_dir", "runs/\ud800"),
        ("data.template.user", "{{ prompt }} \udcff"),
    ],
)
def test_t05_characters_that_no_file_system_takes_are_refused_with_their_key(key, value):
    values = {key: value, "model.tune": "lora"}
    text = message(values)
    assert "NUL" in text or "half of a character" in text
    assert key in text
    assert "\0" not in text
    assert text.encode("utf-8")


def test_t05_they_are_refused_with_their_line(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(HEAD + 'train:\n  output_dir: "a\\0b"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"my\.yaml:3:3 \(train\.output_dir\)"):
        load_config(file)


def test_t05_words_for_the_model_may_hold_any_character():
    config = load_config({"data.template.system": "a\0b", "rollout.stop": ["\0"]}, base=TINY)
    assert config.data.template.system == "a\0b"
