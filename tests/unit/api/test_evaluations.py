"""Evaluations on disk and as a table."""

import json
from dataclasses import replace

import pytest

from mmgrpo.api.evaluations import gain_errors, read_evaluation, report_line, table_rows, write_evaluation
from mmgrpo.evaluation.report import Report, RowResult, paired_gain, score_rows
from mmgrpo.observe.runfolder import RunFolder


def row(name, correct, text="<answer>3</answer>"):
    return RowResult(
        id=name, answer="3", texts=(text, "half \ud83d"), rewards={"x": (1.0, None)}, correct=correct, well_formed=1.0,
        correct_well_formed=correct, length=4.0, truncated=0.0, media=("a.png",),
    )  # fmt: skip


def report(values=(1.0, 0.0, 1.0), *, sampled=True):
    rows = tuple(row(str(i), v) for i, v in enumerate(values))
    score = score_rows(rows)
    return Report(
        step=3, greedy=score, sampled=score if sampled else None, greedy_rows=rows,
        sampled_rows=rows if sampled else (), settings={"seed": 1, "stop": []}, seconds=1.5,
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
    assert rows["accuracy, greedy"] == rows["accuracy, sampled"] == pytest.approx(2 / 3)
    assert rows["accuracy where the answer is 3 (n=3)"] == pytest.approx(2 / 3)
    many = replace(report().greedy, by_answer={str(i): (0.5, 1) for i in range(17)})
    assert not [name for name in table_rows(replace(report(), greedy=many)) if "where" in name]


def test_the_table_of_a_greedy_evaluation_says_nothing_of_sampling():
    assert not [name for name in table_rows(report(sampled=False)) if "sampled" in name]
    assert "sampled" not in report_line(report(sampled=False))
    assert "greedy 0.667, sampled 0.667, format 1.000" in report_line(report())


def test_the_errors_of_the_gains_are_paired():
    before, after = report((0.0, 0.0, 1.0)), report((1.0, 0.0, 1.0))
    errors = gain_errors(before, after)
    assert errors["accuracy, greedy"] == paired_gain(before.greedy_rows, after.greedy_rows).standard_error
    assert set(gain_errors(before, report(sampled=False))) == {"accuracy, greedy"}
