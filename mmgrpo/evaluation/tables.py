"""An evaluation on the screen: a line while a run goes on, and the rows of the table at its end.

Knows reports; what a table looks like is ``observe``'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mmgrpo.evaluation.results import Report, Result, RowResult, paired_gain
from mmgrpo.evaluation.suites import ANSWER_PLACES

MOST_ANSWERS = 16
"""With more different ground truths than this the table has no row for each."""


def table_rows(report: Report) -> dict[str, float]:
    """The rows of the table at the end: each reward's mean, accuracy of a metric that is right or wrong, form, length.

    Args:
        report: What was measured.

    Returns:
        Name and value; NaN (a dash) where there is no number.
    """
    rows: dict[str, float] = {}
    for name, result in _named_results(report):
        score, metric = result.score, _metric_of(report, name)
        formed = _tells_form(report, name, result)
        if is_right_or_wrong(result, metric):
            rows[f"accuracy ({metric}), {name}"] = score.accuracy
            if formed:
                rows[f"accuracy among well-formed, {name}"] = score.accuracy_well_formed
        elif metric not in score.rewards:
            rows[f"{metric}, {name}"] = score.accuracy
        for reward, mean in score.rewards.items():
            rows[f"mean of {reward}, {name}"] = mean
        if formed:
            rows[f"format rate, {name}"] = score.format_rate
        rows[f"completion length, {name} (tokens)"] = score.length
    name, first = next(_named_results(report))
    if is_right_or_wrong(first, _metric_of(report, name)) and len(first.score.by_answer) <= MOST_ANSWERS:
        answers = first.score.by_answer.items()
        rows |= {f"accuracy where the answer is {answer} (n={n})": value for answer, (value, n) in answers}
    return rows


def gain_errors(before: Report, after: Report) -> Mapping[str, float]:
    """Paired standard errors of the gains that the table shows."""
    errors: dict[str, float] = {}
    earlier = dict(_named_results(before))
    for name, result in _named_results(after):
        if name not in earlier:
            continue
        errors[f"accuracy ({_metric_of(after, name)}), {name}"] = paired_gain(
            earlier[name].rows, result.rows
        ).standard_error
        for reward in result.score.rewards:
            errors[f"mean of {reward}, {name}"] = paired_gain(
                earlier[name].rows, result.rows, of=lambda row, reward=reward: mean_reward(row, reward)
            ).standard_error
    return errors


def mean_reward(row: RowResult, reward: str) -> float | None:
    """The mean of a reward over a row's completions; None where it applies to none."""
    values = [value for value in row.rewards.get(reward, ()) if value is not None]
    return sum(values) / len(values) if values else None


def is_right_or_wrong(result: Result, metric: str) -> bool:
    """Whether the metric knows only right and wrong, so that the fraction of right ones says all of it.

    Args:
        result: A suite under a decoding.
        metric: Its metric's name.
    """
    values = [value for row in result.rows for value in row.rewards.get(metric, (row.correct,)) if value is not None]
    return bool(values) and set(values) <= {0.0, 1.0}


def report_line(report: Report) -> str:
    """One line for the screen while a run goes on: what the table shows first of each suite and decoding."""
    parts: list[str] = []
    for name, result in _named_results(report):
        metric = _metric_of(report, name)
        if is_right_or_wrong(result, metric) or metric not in result.score.rewards:
            parts.append(f"accuracy {name} {_number(result.score.accuracy)}")
        else:
            parts.append(f"mean of {metric} {name} {_number(result.score.rewards[metric])}")
    name, first = next(_named_results(report))
    if _tells_form(report, name, first):
        parts.append(f"format {_number(first.score.format_rate)}")
    return f"step {report.step}: held-out {', '.join(parts)}, {report.seconds:.1f} s"


def _named_results(report: Report) -> Iterator[tuple[str, Result]]:
    """All results with the name of their suite and decoding."""
    for suite, results in report.results.items():
        for decoding, result in results.items():
            yield (f"{suite}, {decoding}" if suite else decoding), result


def _tells_form(report: Report, name: str, result: Result) -> bool:
    """Whether the form says something: not where the metric's reward may read another one than those looked for."""
    looked_for = _settings_of(report, name).get("well_formed")
    return any(row.well_formed for row in result.rows) or looked_for not in (None, ANSWER_PLACES[None])


def _metric_of(report: Report, name: str) -> str:
    return str(_settings_of(report, name).get("metric", "metric"))


def _settings_of(report: Report, name: str) -> Mapping[str, Any]:
    return report.suite_settings.get(name.rpartition(", ")[0], {})


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
