"""Layers, overrides and messages of the configuration."""

import os
import re
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.config.keys import all_keys, always_there
from mmgrpo.config.load import load_config, resolve_config
from mmgrpo.config.other_tools import ELSEWHERE
from mmgrpo.config.paths import bundled_folder, find_file
from mmgrpo.config.schema import Config
from mmgrpo.config.yaml_text import to_flow
from mmgrpo.errors import ConfigError

MINIMAL = "model: {name: tiny:qwen2_5_vl}\n"
SCENES = MINIMAL + "data:\n  train: {synthetic: counting, rows: 100, seed: 3}\n"


@pytest.fixture
def write(tmp_path):
    def _write(text, name="my.yaml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return _write


def fault(path, overrides=(), **options):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, **options)
    return str(caught.value)


def test_a_small_file_loads_with_defaults(write):
    config = mmgrpo.load_config(write(MINIMAL))
    assert isinstance(config, Config)
    assert config.rollout.num_generations == 8
    assert config.eval is None


def test_layers_win_in_order(write):
    file = write(MINIMAL + "train: {seed: 2, num_steps: 5}\n")
    base = {"train": {"seed": 1, "save_steps": 7}}
    train = load_config(file, ["train.num_steps=9"], base=base).train
    assert (train.seed, train.save_steps, train.num_steps) == (2, 7, 9)


def test_text_and_mapping_overrides_mean_the_same(write):
    file = write(SCENES)
    texts = ["loss.beta=1e-2", "rollout.stop=[a, b]", "model.sizes={hidden_size: 64}", "eval.limit=3"]
    nested = {
        "loss": {"beta": 1e-2},
        "rollout.stop": ["a", "b"],
        "model": {"sizes": {"hidden_size": 64}},
        "eval": {"limit": 3},
    }
    assert load_config(file, texts) == load_config(file, nested)
    assert load_config(file, texts).rollout.stop == ("a", "b")


def test_an_override_selects_another_source_and_drops_the_old_one(write):
    source = load_config(write(SCENES), ["data.train.path=rows.jsonl"]).data.train
    assert source.path == "rows.jsonl"
    assert not hasattr(source, "rows")


def test_selecting_scenes_over_files_does_not_depend_on_the_order_of_overrides(write):
    file = write(MINIMAL + "data: {train: {path: x.jsonl, split: test}}\n")
    for texts in (
        ["data.train.rows=5", "data.train.synthetic=counting"],
        ["data.train={synthetic: counting, rows: 5}"],
    ):
        assert load_config(file, texts).data.train.rows == 5


def test_an_override_of_the_same_source_keeps_its_other_keys(write):
    file = write(MINIMAL + "data: {train: {path: x.jsonl, split: test}}\n")
    assert load_config(file, ["data.train.path=y.jsonl"]).data.train.split == "test"
    assert load_config(write(SCENES), ["data.train.rows=7"]).data.train.seed == 3


def test_list_items_are_changed_one_by_one(write):
    file = write(MINIMAL + "rewards:\n  - {fn: a.py:f}\n  - {fn: b.py:g, weight: 3}\n")
    rewards = load_config(file, ["rewards.0.weight=2", "rewards.2.fn=c.py:h"]).rewards
    assert [(reward.fn, reward.weight) for reward in rewards] == [("a.py:f", 2), ("b.py:g", 3), ("c.py:h", 1)]
    assert load_config(file, {"rewards.1.weight": 5}).rewards[1].weight == 5
    assert load_config(file, {"rewards": [{"fn": "d.py:k"}]}).rewards[0].fn == "d.py:k"
    assert "has 2 items; there is no 9" in fault(file, ["rewards.9.weight=2"])


def test_values_of_text_keys_are_taken_as_they_stand(write):
    config = load_config(
        write(SCENES + "eval: {}\n"),
        ["model.revision=1e6", "data.template.user={{ prompt }}: {{ hint }}", "data.columns.image=null"],
    )
    assert config.model.revision == "1e6"
    assert config.data.template.user == "{{ prompt }}: {{ hint }}"
    assert config.data.columns.image is None
    assert load_config(write(MINIMAL), ["model.revision='null'"]).model.revision == "null"


def test_null_switches_a_section_off(write):
    file = write(SCENES + "eval: {limit: 3}\n")
    assert load_config(file, ["eval=null"]).eval is None
    assert load_config(file, {"eval": None}).eval is None


def test_a_section_with_all_its_keys_commented_out_has_defaults(write):
    assert load_config(write(MINIMAL + "loss:\n  # beta: 1\nobserve:\n")).loss.beta == 0


def test_an_existing_configuration_can_be_varied(write):
    config = load_config(write(SCENES))
    varied = load_config(config, {"train.num_steps": 3, "data.train": {"path": "x"}})
    assert varied.train.num_steps == 3
    assert varied.data.train.path == "x"
    assert load_config(config) == config


def test_keys_of_free_mappings_are_anything_and_are_merged(write):
    file = write(MINIMAL + "rollout: {chat_template_kwargs: {a: 1, b: 2}}\n")
    kwargs = load_config(file, {"rollout": {"chat_template_kwargs": {"x.y z": {"deep": 3}, "b": 5}}})
    assert kwargs.rollout.chat_template_kwargs == {"a": 1, "b": 5, "x.y z": {"deep": 3}}
    texts = load_config(file, ["rollout.chat_template_kwargs.b=7"])
    assert texts.rollout.chat_template_kwargs == {"a": 1, "b": 7}


def test_sections_may_be_given_as_objects():
    section = load_config(None, {"model.name": "tiny:x", "loss.beta": 0.5}).loss
    assert load_config(None, {"model": {"name": "tiny:x"}, "loss": section}).loss.beta == 0.5


def test_the_dataset_file_lies_underneath(write):
    write("columns: {prompt: question}\ntrain: {path: hub/x, split: test}\ntemplate: {system: Hi}\n", "d/x.yaml")
    file = write(MINIMAL + "data: {config: d/x.yaml, train: {path: local}, template: {user: 'Q {{ prompt }}'}}\n")
    data = load_config(file).data
    assert (data.columns.prompt, data.train.path, data.train.split) == ("question", "local", "test")
    assert (data.template.system, data.template.user) == ("Hi", "Q {{ prompt }}")
    assert data.config is None
    assert load_config(file, ["data.train={synthetic: counting, rows: 2}"]).data.train.rows == 2


def test_the_dataset_file_is_found_beside_the_yaml_then_in_the_working_folder(write, tmp_path, monkeypatch):
    write("columns: {prompt: beside}\n", "a/d.yaml")
    write("columns: {prompt: working}\n", "b/d.yaml")
    file = write(MINIMAL + "data: {config: d.yaml}\n", "a/my.yaml")
    monkeypatch.chdir(tmp_path / "b")
    assert load_config(file).data.columns.prompt == "beside"
    os.remove(tmp_path / "a/d.yaml")
    assert load_config(file).data.columns.prompt == "working"
    os.remove(tmp_path / "b/d.yaml")
    assert str(tmp_path / "a" / "d.yaml") in fault(file)


def test_a_fault_in_the_dataset_file_names_that_file(write):
    inner = write("columns: {promt: question}\n", "x.yaml")
    told = fault(write(MINIMAL + "data: {config: x.yaml}\n"))
    assert f"{inner}:1:11 (data.columns.promt)" in told
    assert "Write prompt." in told


def test_a_dataset_file_cannot_name_another(write):
    write("config: y.yaml\n", "x.yaml")
    assert "cannot name another" in fault(write(MINIMAL + "data: {config: x.yaml}\n"))


def test_loaded_config_knows_where_it_came_from(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(MINIMAL, "deep/count.yaml")
    loaded = resolve_config("deep/count.yaml")
    assert (loaded.path, loaded.folder, loaded.name) == (file, file.parent, "count")
    python = resolve_config(None, {"model.name": "tiny:x"})
    assert (python.path, python.folder, python.name) == (None, tmp_path, "run")
    assert resolve_config(file, folder=tmp_path).folder == tmp_path


def test_all_faults_are_told_in_the_order_of_the_file(write):
    file = write(MINIMAL + "train:\n  num_steps: -1\nloss:\n  epsilon: x\n")
    told = fault(file, ["rollout.engine=lokal"])
    assert told.startswith("The configuration has 3 faults.")
    assert told.index("train.num_steps") < told.index("loss.epsilon") < told.index("rollout.engine")
    assert f"{file}:3:3 (train.num_steps)" in told
    assert "where: override rollout.engine=lokal" in told
    assert "Write local" in told


@pytest.mark.parametrize(
    ("yaml", "parts"),
    [
        ("{rollout: {num_generations: 1}}", ["rollout.num_generations", "at least 2", "got: 1"]),
        ("{model: {device: gpu}}", ["auto, cuda, mps or cpu", "'gpu'"]),
        ("{model: {name: 5}}", ["model.name", "Put the value in quotes"]),
        ("{model: {lora: {r: 4}}}", ["model.lora only goes with tune: lora", "Set tune: lora or"]),
        ("{data: {train: rows.jsonl}}", ["Write data.train: {path: rows.jsonl}."]),
        ("{data: {train: {synthetic: counting}}}", ["data.train.rows is missing"]),
        ("{data: {train: {synthetic: countin, rows: 3}}}", ["data.train.synthetic", "Write counting."]),
        ("{data: {train: {rows: 3}}}", ["rows only goes with synthetic"]),
        ("{data: {background: [1, 2]}}", ["data.background", "list of 3 values"]),
        ("{rollout: [1]}", ["Wrong value for rollout", "keys under it"]),
        ("{rollout: {max_completion_length: 2.5}}", ["whole number"]),
        ("{train: {learning_rate: .inf}}", ["train.learning_rate"]),
        ("{train: {learning_rate: .nan}}", ["train.learning_rate"]),
        ("{train: {save_best: None}}", ["train.save_best", "expected null"]),
        ("{train: {optimizer_steps: 3}}", ["train.optimizer_steps 3 does not divide", "(train.optimizer_steps)"]),
        ("{rewards: {fn: x}}", ["Wrong value for rewards", "list of section"]),
        ("{rewards: [{weight: 1}]}", ["rewards.0.fn is missing"]),
        ("{<<: 1}", ["Unknown key << at the top level"]),
    ],
)
def test_each_fault_is_told_with_its_key_and_the_way_out(write, yaml, parts):
    told = fault(write(yaml), base={"model": {"name": "tiny:x"}})
    for part in parts:
        assert part in told
    assert "pydantic" not in told
    assert "where:" in told


def test_missing_required_keys_are_named_with_the_file(write):
    file = write("# empty\n")
    assert "model is missing" in fault(file)
    assert str(file) in fault(file)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("rewards=my.py:f", "rewards: [{fn: my.py:f}]"),
        ("rewards={fn: my.py:f}", "rewards: [{fn: my.py:f}]"),
        ("rewards=[my.py:f]", "rewards.0: {fn: my.py:f}"),
    ],
)
def test_a_reward_that_is_not_in_a_list_is_told_how_it_is_written(text, fix):
    with pytest.raises(ConfigError, match=re.escape(f"fix: Write {fix}.")):
        load_config(None, ["model.name=tiny:x", text])


@pytest.mark.parametrize("text", ["loss.beta", "=3", "loss..beta=1", "--beta=1", "loss.beta 0.1", ".x=1"])
def test_a_text_that_is_not_an_override_is_refused(write, text):
    assert "Not an override" in fault(write(MINIMAL), [text])


def test_an_unknown_override_names_itself(write):
    told = fault(write(MINIMAL), ["loss.betaa=0.1"])
    assert "where: override loss.betaa=0.1" in told
    assert "Write beta." in told
    assert "Not a key" in fault(write(MINIMAL), {"loss": {3: 4}})


def test_a_missing_file_lists_where_it_was_looked_for_and_a_close_name(write, tmp_path):
    write(MINIMAL, "quick.yaml")
    told = fault(tmp_path / "quik.yaml")
    assert f"Did you mean {tmp_path / 'quick.yaml'}" in told
    assert "folder" in fault(tmp_path)


def test_find_file_falls_back_to_the_bundled_copies(tmp_path, monkeypatch):
    bundled = tmp_path / "bundled"
    (bundled / "rewards").mkdir(parents=True)
    (bundled / "rewards" / "f.py").touch()
    monkeypatch.setattr("mmgrpo.config.paths.bundled_folder", lambda: bundled)
    assert find_file("rewards/f.py", tmp_path) == bundled / "rewards/f.py"
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "f.py").touch()
    assert find_file("rewards/f.py", tmp_path) == tmp_path / "rewards/f.py"
    with pytest.raises(ConfigError, match="No such reward file"):
        find_file("rewards/g.py", tmp_path, what="reward file")


def test_the_checkout_is_where_an_editable_install_finds_its_files():
    assert bundled_folder() == Path(mmgrpo.__file__).resolve().parent.parent


def test_words_of_other_tools_lead_to_keys_that_exist():
    known = {key.dotted for key in all_keys()}
    assert set(ELSEWHERE.values()) <= known
    assert not {key.name for key in all_keys()} & set(ELSEWHERE)


def test_at_most_a_hundred_keys_are_always_there():
    names = [key.dotted for key in always_there()]
    assert len(names) <= 100
    assert {"loss.beta", "train.seed", "data.video.fps"} <= set(names)
    variants = {"train.adam_beta1", "data.remote_bytes", "model.lora.r", "rewards.N.fn", "eval.limit", "data.train"}
    assert not variants & set(names)


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({"train": {"optim": "sgd", "adam_beta1": 0.5}}, "train.adam_beta1 only goes with optim: adamw"),
        ({"rollout": {"max_resample_times": 5}}, "rollout.max_resample_times only goes with dynamic_sampling: true"),
        ({"data": {"remote_bytes": 5}}, "data.remote_bytes only goes with allow_remote: true"),
        ({"data": {"curriculum": {"low": 0.2}}}, "data.curriculum.low only goes with kind: by_pass_rate"),
        ({"model": {"name": "x", "sizes": {"hidden_size": 8}}}, "model.sizes only goes with name: tiny:FAMILY"),
        ({"eval": {"sampled": False, "seed": 3}}, "eval.seed only goes with sampled: true"),
        (
            {"loss": {"delta": 2.0, "importance_sampling_level": "sequence"}},
            "loss.delta only goes with importance_sampling_level: token",
        ),
    ],
)
def test_a_key_of_another_variant_is_refused_and_its_default_is_not(write, given, condition):
    told = fault(None, given, base={"model": {"name": "tiny:x"}})
    assert told.startswith(condition + ".")
    key = condition.split()[0]
    assert f"fix: Set {condition.partition(' with ')[2]}" in told
    assert f"or remove {key.rpartition('.')[2]}." in told
    default = next(k for k in all_keys() if k.dotted == key).field.get_default()
    load_config(None, [f"{key}={to_flow(default)}"], base={"model": {"name": "tiny:x"}} | given)


def test_suites_have_names_of_their_own_and_decodings_that_exist():
    suite = {"name": "hard", "data": {"synthetic": "counting", "rows": 3}, "decoding": "greedy"}
    load = {"model.name": "tiny:x"}
    assert load_config(None, {"eval.suites": [suite]}, base=load).eval.suites[0].decoding == ("greedy",)
    assert "two suites called hard" in fault(None, {"eval.suites": [suite, suite]}, base=load)
    assert "letters, digits" in fault(None, {"eval.suites": [suite | {"name": "a/b"}]}, base=load)
    assert "greedy or sampled" in fault(None, {"eval.suites": [suite | {"decoding": ["beam"]}]}, base=load)
    assert "each once" in fault(None, {"eval.suites": [suite | {"decoding": []}]}, base=load)


@pytest.mark.parametrize("key", ["loss.fn", "loss.advantages_fn", "model.family", "rollout.engine"])
def test_a_plug_in_that_names_a_file_alone_is_told_the_form(key):
    assert "Write my.py:NAME." in fault(None, {key: "my.py"}, base={"model.name": "tiny:x"})
    load_config(None, {key: "my.py:mine"}, base={"model.name": "tiny:x"})


def test_checkpoints_that_nobody_asked_for_do_not_fill_the_disk():
    def train(**given):
        return load_config(None, {"model.name": "tiny:x", "train": given}).train

    assert (train().save_steps, train().save_total_limit) == (50, 2)
    assert train(save_steps=10).save_total_limit is None
    assert train(save_total_limit=5).save_total_limit == 5


def test_every_key_is_documented():
    assert [key.dotted for key in all_keys() if not key.doc] == []


def test_the_configuration_cannot_change_after_loading(write):
    config = load_config(write(MINIMAL))
    with pytest.raises(ValueError, match="frozen"):
        config.loss.beta = 1.0
