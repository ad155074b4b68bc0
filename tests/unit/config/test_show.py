"""The resolved view, and the page that documents all keys."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgrpo.config.keys import all_keys, always_there
from mmgrpo.config.load import load_config
from mmgrpo.config.show import derived_sizes, render_config, schema_markdown, unit_lines
from mmgrpo.config.yaml_text import parse_document, parse_value, to_block, to_flow

FULL = {
    "model": {"name": "tiny:qwen2_5_vl", "tune": "lora", "sizes": {"hidden_size": 64}},
    "data": {
        "train": {"synthetic": "counting", "rows": 10},
        "eval": {"path": "a b/c: d.jsonl"},
        "template": {"system": "Look.\n\n  Then answer.\n", "user": "{{ prompt }}: # not a comment"},
    },
    "rewards": [{"fn": "a.py:f", "args": {"k": [1, None, "no"], "deep": {"x": 1e-6}}}, {"fn": "b:g", "weight": -0.5}],
    "rollout": {"stop": ["</answer>", "\n"], "chat_template_kwargs": {"enable_thinking": False}},
    "eval": {"limit": 5},
    "warm_start": {"data": {"synthetic": "counting", "rows": 3}, "num_steps": 2, "batch_size": 4},
    "train": {"num_steps": 3, "optimizer_steps": 2},
}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@pytest.mark.parametrize("values", [FULL, {"model.name": "x"}])
def test_what_is_shown_loads_back_to_the_same_configuration(tmp_path, values):
    config = load_config(None, values)
    file = tmp_path / "config.yaml"
    file.write_text(render_config(config), encoding="utf-8")
    assert load_config(file) == config


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_in_a_configuration_is_shown_and_loads_back(first, second):
    values = {"model.name": "tiny:x", "data.template.system": first, "rewards": [{"fn": "f", "args": {"k": second}}]}
    if first == "None":
        return
    config = load_config(None, values)
    shown = render_config(config)
    assert shown.encode("utf-8")
    document = parse_document(shown, source="shown").values
    assert document["data"]["template"]["system"] == first
    assert document["rewards"][0]["args"]["k"] == second


@given(TREES)
def test_any_plain_value_on_one_line_reads_back(value):
    assert parse_value(to_flow(value), source="t") == value
    assert "\n" not in to_flow(value)


def test_numbers_that_are_not_finite_read_back():
    assert parse_value(to_flow([math.inf, -math.inf]), source="t") == [math.inf, -math.inf]
    assert math.isnan(parse_value(to_flow(math.nan), source="t"))


def test_text_of_several_lines_is_a_readable_block():
    assert to_block("Look.\n\nThen.", "  ") == ["|-", "  Look.", "", "  Then."]
    assert to_block("a \nb", "  ") == ['"a \\nb"']


def test_every_key_is_shown_with_its_meaning():
    shown = render_config(load_config(None, FULL))
    for key in all_keys():
        if key in always_there() and key.parent in ("rollout", "loss", "checks"):
            assert f"  {key.name}: " in shown
            assert key.doc.split()[0] in shown


def test_keys_of_a_variant_are_shown_under_it_alone():
    adamw, sgd = (render_config(load_config(None, {**FULL, "train.optim": optim})) for optim in ("adamw", "sgd"))
    assert "adam_beta1: 0.9" in adamw
    assert "adam_beta1" not in sgd


def test_lines_are_at_most_119_columns_where_a_comment_makes_them_long():
    assert [line for line in render_config(load_config(None, FULL)).splitlines() if len(line) > 119] == []


def test_sizes_are_worked_out():
    found = derived_sizes(load_config(None, {**FULL, "rollout.num_generations": 4, "loss.num_iterations": 3}))
    assert found["completions per step"] == "32 (8 prompts x 4)"
    assert found["optimizer steps per rollout"] == "6"
    assert found["completions per optimizer step"] == "16"
    assert found["whole run"] == "3 steps, 24 prompts, 96 completions"
    assert found["warm start"] == "2 steps of 4 rows"


def test_the_page_documents_every_key_once():
    page = schema_markdown()
    for key in all_keys():
        assert f"| `{key.name}` |" in page
    assert page.count("| `num_generations` |") == 2  # rollout and eval
    assert page.count("| `synthetic` |") == 3  # scenes, beeps and clips
    assert "`data.train`, `data.eval`, `eval.suites.N.data`, `warm_start.data` with `path`" in page


def test_the_units_of_a_run_are_two_lines_with_one_and_many_told_apart():
    small = {"train.prompts_per_step": 1, "rollout.num_generations": 2, "rollout.max_completion_length": 1}
    step, whole = unit_lines(load_config(None, {**FULL, **small, "train.optimizer_steps": 1}), 1)
    assert step.startswith("each step: 1 prompt x 2 = 2 completions of at most 1 token; 1 optimizer step,")
    assert whole.endswith("1 step, 1 prompt, 2 completions")
    large = {"train.prompts_per_step": 4, "train.optimizer_steps": 2, "loss.num_iterations": 3}
    step, whole = unit_lines(load_config(None, {**FULL, **large}), 1000)
    assert "6 optimizer steps of 16 completions" in step
    assert "1,000 steps, 4,000 prompts, 32,000 completions" in whole
