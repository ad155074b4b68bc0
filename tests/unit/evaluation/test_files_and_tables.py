"""Evaluations on disk and as a table."""

import json

import pytest

from mmgrpo.evaluation.files import read_evaluation, write_evaluation
from mmgrpo.evaluation.results import Report, Result, RowResult, paired_gain, score_rows
from mmgrpo.evaluation.tables import gain_errors, report_line, table_rows
from mmgrpo.observe.runfolder import RunFolder


def row(name, correct, text="<answer>3</answer>", *, value=None, answer="3", formed=1.0):
    value = correct if value is None else value
    return RowResult(
        id=name, answer=answer, texts=(text, "half \ud83d"), rewards={"x": (value, None)}, correct=correct,
        well_formed=formed, correct_well_formed=min(correct, formed), length=4.0, truncated=0.0, media=("a.png",),
    )  # fmt: skip


def report(values=(1.0, 0.0, 1.0), *, sampled=True, rows=None, step=3):
    rows = rows or tuple(row(str(i), v) for i, v in enumerate(values))
    result = Result(score=score_rows(rows), rows=rows)
    return Report(
        step=step, results={"": {"greedy": result, **({"sampled": result} if sampled else {})}},
        suite_settings={"": {"seed": 1, "stop": [], "metric": "x"}}, seconds=1.5,
    )  # fmt: skip


@pytest.mark.parametrize("sampled", [True, False])
def test_what_is_written_is_read_back_whole(sampled, tmp_path):
    written = report(sampled=sampled)
    write_evaluation(RunFolder(tmp_path), written, name="x")
    assert read_evaluation(RunFolder(tmp_path), name="x") == written


def test_an_evaluation_of_which_only_a_part_is_there_is_none(tmp_path):
    write_evaluation(RunFolder(tmp_path), report(), name="x")
    assert read_evaluation(RunFolder(tmp_path), name="y") is None
    (tmp_path / "evaluations" / "x.jsonl").unlink()
    assert read_evaluation(RunFolder(tmp_path), name="x") is None


def test_every_line_is_json_whatever_the_model_wrote(tmp_path):
    write_evaluation(RunFolder(tmp_path), report(), name="x")
    lines = (tmp_path / "evaluations" / "x.jsonl").read_bytes().splitlines()
    assert len(lines) == 6
    assert json.loads(lines[0])["texts"][1] == "half \ud83d"


def test_the_table_has_a_row_per_answer_unless_there_are_too_many():
    rows = table_rows(report())
    assert rows["accuracy (x), greedy"] == rows["accuracy (x), sampled"] == pytest.approx(2 / 3)
    assert rows["accuracy where the answer is 3 (n=3)"] == pytest.approx(2 / 3)
    many = tuple(row(str(i), 1.0, answer=str(i)) for i in range(17))
    assert not [name for name in table_rows(report(rows=many)) if "where" in name]


def test_the_table_of_a_greedy_evaluation_says_nothing_of_sampling():
    assert not [name for name in table_rows(report(sampled=False)) if "sampled" in name]
    assert "sampled" not in report_line(report(sampled=False))
    assert "accuracy greedy 0.667, accuracy sampled 0.667, format 1.000" in report_line(report())


def test_the_errors_of_the_gains_are_paired():
    before, after = report((0.0, 0.0, 1.0)), report((1.0, 0.0, 1.0))
    errors = gain_errors(before, after)
    assert errors["accuracy (x), greedy"] == paired_gain(before.greedy_rows, after.greedy_rows).standard_error
    assert errors["mean of x, greedy"] == errors["accuracy (x), greedy"]
    assert not [name for name in gain_errors(before, report(sampled=False)) if "sampled" in name]


def test_w05_a_graded_reward_is_told_by_its_mean_and_its_error_and_not_as_an_accuracy_of_zero():
    before = report(rows=tuple(row(str(i), 0.0, value=v) for i, v in enumerate((0.01, 0.02, 0.03))), step=0)
    after = report(rows=tuple(row(str(i), 0.0, value=v) for i, v in enumerate((0.41, 0.40, 0.42))), step=16)
    assert table_rows(after)["mean of x, greedy"] == pytest.approx(0.41)
    assert not [name for name in table_rows(after) if "accuracy" in name]
    assert 0 < gain_errors(before, after)["mean of x, greedy"] < 0.05
    assert "mean of x greedy 0.410" in report_line(after)


def test_w29_where_no_completion_has_the_form_nothing_is_said_of_the_form():
    boxed = tuple(row(str(i), 1.0, formed=0.0) for i in range(3))
    told = table_rows(report(rows=boxed))
    assert told["accuracy (x), greedy"] == 1.0
    assert not [name for name in told if "form" in name]
    assert "format" not in report_line(report(rows=boxed))
