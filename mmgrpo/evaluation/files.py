"""Evaluations on disk: totals with settings, a line per row, and reading them back."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from mmgrpo.evaluation.results import Report, Result, RowResult, Score
from mmgrpo.observe.atomic import write_atomic
from mmgrpo.observe.runfolder import RunFolder


def evaluation_name(step: int) -> str:
    """Name the files of a run's own evaluation after ``step`` steps."""
    return f"step_{step:06d}"


def write_evaluation(run: RunFolder, report: Report, *, name: str) -> None:
    """Write ``NAME.json`` (totals with settings) and ``NAME.jsonl`` (a line per row) under ``evaluations/``.

    Args:
        run: The run folder.
        report: What was measured.
        name: Of both files.

    Raises:
        CheckpointError: The disk is full.
    """
    folder = run.evaluations
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"way": decoding, **({"suite": suite} if suite else {}), **asdict(row)}
        for suite, results in report.results.items()
        for decoding, result in results.items()
        for row in result.rows
    ]
    write_atomic(folder / f"{name}.jsonl", "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in rows))
    # last: where the totals are, the rows are, too
    write_atomic(folder / f"{name}.json", json.dumps(report.summary(), indent=2, default=str) + "\n")


def free_name(run: RunFolder, report: Report, *, name: str) -> str:
    """Name the files of an evaluation so that it replaces only one of the same settings.

    Args:
        run: The run folder.
        report: What was measured.
        name: To start from.

    Returns:
        ``name``, or with the next free number behind it.
    """
    settings = json.loads(json.dumps(report.summary()["settings"], default=str))
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
    rows: dict[tuple[str, str], list[RowResult]] = {}
    for line in lines.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault((row.pop("suite", ""), row.pop("way")), []).append(_row(row))
    main = {decoding: summary[decoding] for decoding in ("greedy", "sampled") if summary.get(decoding)}
    totals_of = {**({"": main} if main else {}), **summary.get("suites", {})}
    return Report(
        step=summary["step"],
        results={
            suite: {
                decoding: Result(score=_score(score), rows=tuple(rows.get((suite, decoding), ())))
                for decoding, score in scores.items()
            }
            for suite, scores in totals_of.items()
        },
        suite_settings={**({"": summary["settings"]} if main else {}), **summary.get("suite_settings", {})},
        seconds=summary["seconds"],
    )


def _row(row: dict[str, Any]) -> RowResult:
    rewards = {name: tuple(values) for name, values in row["rewards"].items()}
    return RowResult(**row | {"texts": tuple(row["texts"]), "media": tuple(row["media"]), "rewards": rewards})


def _score(score: dict[str, Any]) -> Score:
    values = {name: math.nan if value is None else value for name, value in score.items()}
    rewards = {name: math.nan if value is None else value for name, value in score["rewards"].items()}
    by_answer = {answer: tuple(pair) for answer, pair in score["by_answer"].items()}
    return Score(**values | {"rewards": rewards, "by_answer": by_answer})
