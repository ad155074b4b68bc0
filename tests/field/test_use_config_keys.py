"""Faults found in use: keys that were given and not used, and rules that were written twice."""

import pytest

from mmgrpo.config.load import load_config
from mmgrpo.config.loss import Loss

TINY = {"model.name": "tiny:qwen2_5_vl"}
ROWS = {"synthetic": "counting", "rows": 4}


def test_w04_held_out_rows_switch_evaluation_on():
    assert load_config(None, {"data.eval": ROWS}, base=TINY).eval is not None
    assert load_config(None, ["data.eval.path=rows.jsonl"], base=TINY).eval is not None
    assert load_config(None, {"data.eval": ROWS, "eval": {"limit": 3}}, base=TINY).eval.limit == 3


def test_w04_null_keeps_it_off_and_no_rows_leave_it_off():
    assert load_config(None, {"data.eval": ROWS, "eval": None}, base=TINY).eval is None
    assert load_config(None, TINY).eval is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon_high": 0.0},
        {"beta": -0.1},
        {"delta": 1.1},
        {"delta": 2.0, "importance_sampling_level": "sequence"},
        {"loss_type": "mean"},
    ],
)
def test_w14_a_section_built_in_python_is_checked_as_the_yaml_is(wrong):
    with pytest.raises(ValueError):
        load_config(None, {"loss": wrong}, base=TINY)
    with pytest.raises(ValueError):
        Loss(**wrong)
