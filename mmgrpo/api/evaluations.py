"""Evaluations on disk and on the screen: totals with settings, a line per row, the table, and reading them back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mmgrpo.evaluation.report import Report, RowResult, Score, paired_gain
from mmgrpo.observe.atomic import write_atomic
from mmgrpo.observe.runfolder import RunFolder

MOST_ANSWERS = 16
"""With more different truths than this the table has no row for each."""


def evaluation_name(step: int) -> str:
    """Name the files of a run's own evaluation after ``step`` steps."""
    return f"step_{step:06d}"


def write_evaluation(run: RunFolder, report: Report, *, name: str) -> None:
    """Write ``NAME.json`` (totals with settings) and ``NAME.jsonl`` (a line per row) under ``evaluations/``.

    Args:
        run: The run folder.
        report: What was found.
        name: Of both files.

    Raises:
        CheckpointError: The disk is full.
    """
    folder = run.evaluations
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"way": "greedy", **asdict(r)} for r in report.greedy_rows]
    rows += [{"way": "sampled", **asdict(r)} for r in report.sampled_rows]
    write_atomic(folder / f"{name}.jsonl", "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in rows))
    # last: where the totals are, the rows are, too
    write_atomic(folder / f"{name}.json", json.dumps(report.summary(), indent=2, default=str) + "\n")


def free_name(run: RunFolder, report: Report, *, name: str) -> str:
    """Name the files of an evaluation so that it replaces only one of the same settings.

    Args:
        run: The run folder.
        report: What was found.
        name: To start from.

    Returns:
        ``name``, or with the next free number behind it.
    """
    settings = json.loads(json.dumps(dict(report.settings), default=str))
    number, free = 1, name
    while (file := run.evaluations / f"{free}.json").is_file():
        if json.loads(file.read_text(encoding="utf-8"))["settings"] == settings:
            break
        number += 1
        free = f"{name}-{number}"
    return free


def read_evaluation(run: RunFolder, *, name: str) -> Report | None:
    """Read back what :func:`write_evaluation` wrote.

    Args:
        run: The run folder.
        name: Of both files.

    Returns:
        The report; None if there is none, or only a part of it.
    """
    totals, lines = (run.evaluations / f"{name}.{ending}" for ending in ("json", "jsonl"))
    if not (totals.is_file() and lines.is_file()):
        return None
    summary = json.loads(totals.read_text(encoding="utf-8"))
    rows: dict[str, list[RowResult]] = {"greedy": [], "sampled": []}
    for line in lines.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row.pop("way")].append(_row(row))
    return Report(
        step=summary["step"],
        greedy=_score(summary["greedy"]),
        sampled=_score(summary["sampled"]) if summary["sampled"] else None,
        greedy_rows=tuple(rows["greedy"]),
        sampled_rows=tuple(rows["sampled"]),
        settings=summary["settings"],
        seconds=summary["seconds"],
    )


def _row(row: dict[str, Any]) -> RowResult:
    rewards = {name: tuple(values) for name, values in row["rewards"].items()}
    return RowResult(**row | {"texts": tuple(row["texts"]), "media": tuple(row["media"]), "rewards": rewards})


def _score(score: dict[str, Any]) -> Score:
    values = {name: math.nan if value is None else value for name, value in score.items()}
    rewards = {name: math.nan if value is None else value for name, value in score["rewards"].items()}
    by_answer = {answer: tuple(found) for answer, found in score["by_answer"].items()}
    return Score(**values | {"rewards": rewards, "by_answer": by_answer})


def table_rows(report: Report) -> dict[str, float]:
    """The rows of the table at the end: accuracies, form, length, and accuracy per answer."""
    greedy, sampled = report.greedy, report.sampled
    rows = {"accuracy, greedy": greedy.accuracy}
    if sampled:
        rows["accuracy, sampled"] = sampled.accuracy
    rows["accuracy among well-formed, greedy"] = greedy.accuracy_well_formed
    if sampled:
        rows["accuracy among well-formed, sampled"] = sampled.accuracy_well_formed
    rows["format rate, greedy"] = greedy.format_rate
    if sampled:
        rows["format rate, sampled"] = sampled.format_rate
    rows["completion length, greedy (tokens)"] = greedy.length
    if len(greedy.by_answer) <= MOST_ANSWERS:
        rows |= {f"accuracy where the answer is {a} (n={n})": v for a, (v, n) in greedy.by_answer.items()}
    return rows


def gain_errors(before: Report, after: Report) -> Mapping[str, float]:
    """Paired standard errors of the gains that the table shows, in accuracy."""
    errors = {"accuracy, greedy": paired_gain(before.greedy_rows, after.greedy_rows).standard_error}
    if before.sampled and after.sampled:
        errors["accuracy, sampled"] = paired_gain(before.sampled_rows, after.sampled_rows).standard_error
    return errors


def report_line(report: Report) -> str:
    """One line for the screen while a run goes on."""
    sampled = f", sampled {report.sampled.accuracy:.3f}" if report.sampled else ""
    return (
        f"step {report.step}: held-out accuracy greedy {report.greedy.accuracy:.3f}{sampled}, "
        f"format {report.greedy.format_rate:.3f}, {report.seconds:.1f} s"
    )
