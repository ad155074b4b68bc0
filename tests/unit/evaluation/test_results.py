"""Evaluations in sum, against numbers worked by hand and numpy."""

import math

import numpy as np
import pytest

from mmgrpo.evaluation.results import Report, Result, RowResult, paired_gain, score_rows


def row(name, correct, *, answer="3", formed=1.0, both=None, rewards=None, length=4.0, truncated=0.0):
    both = min(correct or 0.0, formed) if both is None else both
    return RowResult(
        id=name, answer=answer, texts=("t",), rewards=rewards or {}, correct=correct, well_formed=formed,
        correct_well_formed=both, length=length, truncated=truncated,
    )  # fmt: skip


def test_e03_scores_are_those_worked_by_hand():
    # four rows of two completions each: 1 and 0 right; both right; none right; the metric does not apply
    score = score_rows(
        [
            row("a", 0.5, answer="3", formed=1.0, rewards={"x": (1.0, 0.0)}, length=4.0),
            row("b", 1.0, answer="10", formed=1.0, rewards={"x": (1.0, 1.0)}, length=6.0),
            row("c", 0.0, answer="3", formed=0.5, rewards={"x": (0.0, None)}, length=8.0, truncated=0.5),
            row("d", None, answer="2", formed=0.0, rewards={"x": (None, None)}, length=2.0, truncated=1.0),
        ]
    )
    assert score.accuracy == 0.5  # (0.5 + 1 + 0) / 3
    assert score.format_rate == 0.625
    assert score.accuracy_well_formed == 1.5 / 2.5
    assert score.rewards == {"x": 3 / 5}
    assert score.length == 5.0
    assert score.truncated == 0.375
    assert score.by_answer == {"3": (0.25, 2), "10": (1.0, 1)}
    assert list(score.by_answer) == ["3", "10"]  # numbers in their own order
    assert score.rows == 4


def test_an_answer_that_is_right_but_not_well_formed_does_not_count_among_the_well_formed():
    score = score_rows([row("a", 1.0, formed=0.0), row("b", 0.0, formed=1.0)])
    assert score.accuracy == 0.5
    assert score.accuracy_well_formed == 0.0


def test_w29_where_nothing_is_well_formed_or_nothing_is_judged_there_is_no_number():
    assert math.isnan(score_rows([row("a", 1.0, formed=0.0)]).accuracy_well_formed)
    score = score_rows([row("a", None, formed=0.0)])
    assert math.isnan(score.accuracy) and math.isnan(score.accuracy_well_formed)
    assert score.by_answer == {}


def test_answers_that_are_words_come_after_numbers():
    score = score_rows([row("a", 1.0, answer="yes"), row("b", 1.0, answer="-2"), row("c", 0.0, answer="no")])
    assert list(score.by_answer) == ["-2", "no", "yes"]


def test_the_paired_gain_is_that_of_numpy():
    random = np.random.default_rng(0)
    before, after = random.random(40), random.random(40)
    found = paired_gain([row(str(i), x) for i, x in enumerate(before)], [row(str(i), x) for i, x in enumerate(after)])
    difference = after - before
    assert found.gain == pytest.approx(difference.mean(), abs=1e-15)
    assert found.standard_error == pytest.approx(difference.std(ddof=1) / math.sqrt(40), abs=1e-15)


def test_rows_are_paired_by_id_whatever_their_order_and_those_without_a_partner_are_left_out():
    before = [row("a", 0.0), row("b", 1.0), row("gone", 1.0), row("none", None)]
    after = [row("new", 0.0), row("b", 1.0), row("a", 1.0), row("none", 1.0)]
    found = paired_gain(before, after)
    assert found.gain == 0.5
    assert found.standard_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("before", "after", "significant"),
    [
        ([0.0] * 20, [1.0] * 18 + [0.0] * 2, True),
        ([0.0] * 20, [1.0] + [0.0] * 19, False),
        ([1.0] * 9, [1.0] * 9, False),
    ],
)
def test_a_gain_counts_when_it_exceeds_two_standard_errors(before, after, significant):
    rows = [[row(str(i), x) for i, x in enumerate(side)] for side in (before, after)]
    assert paired_gain(*rows).significant is significant


def test_without_pairs_there_is_no_gain():
    found = paired_gain([row("a", 0.0)], [row("a", 1.0)])
    assert (found.gain, found.standard_error, found.significant) == (0.0, math.inf, False)


def test_a_report_names_its_metrics_greedy_and_sampled():
    result = Result(score=score_rows([row("a", 1.0, rewards={"x": (0.5,)})]), rows=())
    report = Report(
        step=3, results={"": {"greedy": result, "sampled": result}}, suite_settings={"": {"seed": 1}}, seconds=2.0
    )
    metrics = report.metrics()
    assert metrics["eval/accuracy"] == metrics["eval/sampled/accuracy"] == 1.0
    assert metrics["eval/rewards/x/mean"] == 0.5
    assert report.summary()["settings"] == {"seed": 1}
    alone = Report(step=3, results={"": {"greedy": result}}, suite_settings={"": {}}, seconds=2.0)
    assert not [name for name in alone.metrics() if "sampled" in name]
    assert alone.sampled is None and alone.summary()["sampled"] is None
