"""What a run writes and says: metrics, completions, evaluations, tables.

Joins the writers of ``observe`` to one run; knows no engine and no loss.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from mmgrpo.assemble import Assembly
from mmgrpo.config.show import render, sizes
from mmgrpo.evaluate.report import Report, RowResult, Score, paired_gain
from mmgrpo.observe.atomic import write_atomic
from mmgrpo.observe.completions import CompletionsWriter
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import RunFolder
from mmgrpo.observe.sinks import JsonlSink, Sinks
from mmgrpo.observe.tables import parameters_table, print_facts, results_table, units_line
from mmgrpo.observe.trackers import RunName, open_tracker
from mmgrpo.running.clock import Stopwatch
from mmgrpo.train.whole import latest


class Records:
    """The writers of one run.

    Args:
        folder: The run folder.
        assembly: The run's parts.
        progress: The screen.
    """

    def __init__(self, folder: RunFolder, assembly: Assembly, progress: Progress) -> None:
        self.folder, self.assembly, self.progress = folder, assembly, progress
        self.clock = Stopwatch()
        self.advance: Callable[..., None] = lambda metrics: None
        observe = assembly.config.observe
        self.completions = CompletionsWriter(
            folder.completions, format=observe.completions_format, limit=observe.log_completions
        )
        self._sinks: Sinks | None = None
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run started in this process."""
        return time.monotonic() - self._start

    def start(self, total: int, *, resumed: bool) -> None:
        """Write what is known at the start, and say what will happen, with units."""
        config, policy = self.assembly.config, self.assembly.policy
        last = _step_of(latest(self.folder.checkpoints)) if resumed else None
        self.folder.write_start(
            config=render(config),
            folder=self.assembly.loaded.folder,
            source=self.assembly.loaded.path,
            facts={"device": str(policy.device), "dtype": str(policy.dtype), "layout": policy.module.layout},
        )
        name = RunName(name=self.folder.path.name, folder=self.folder.path, config=config.model_dump(), last_step=last)
        trackers = [open_tracker(tracker, name) for tracker in config.observe.report_to]
        self._sinks = Sinks([JsonlSink(self.folder.metrics, last_step=last), *trackers])
        say, console = self.progress.say, self.progress.console
        say(f"{config.model.name} on {policy.device}, {policy.dtype}, {policy.module.layout} layout")
        say(units_line({**sizes(config), "steps": str(total)}))
        say(f"sampling: {_sampling(self.assembly)}")
        console.print(parameters_table({p.part: (p.trainable, p.total) for p in policy.parts()}))
        if resumed:
            say(f"resumed after step {last}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one row of metrics."""
        assert self._sinks is not None
        self._sinks.log(step, metrics)

    def show(self, metrics: Mapping[str, float]) -> None:
        """Move the bar; the first reward is what people call accuracy."""
        first = self.assembly.rewards.names[0]
        shown = dict(metrics)
        if f"rewards/{first}/mean" in shown:
            shown["accuracy"] = shown[f"rewards/{first}/mean"]
        self.advance(shown)

    def say_checks(self, found: Mapping[str, float]) -> None:
        """Tell that the run has checked itself, and what it measured."""
        if found:
            shown = ", ".join(f"{n.removeprefix('checks/')} {v:.1e}" for n, v in found.items() if n.endswith("/max"))
            self.progress.say(f"checks passed: {shown}")

    def write_report(self, report: Report) -> None:
        """Write an evaluation of the run, and its metrics."""
        write_evaluation(self.folder, report, name=f"step_{report.step:06d}")
        self.log(report.step, report.metrics())
        self.progress.say(_line(report))

    def read_report(self, step: int) -> Report | None:
        """Read an evaluation of this run back; None if there is none."""
        stem = self.folder.evaluations / f"step_{step:06d}"
        if not stem.with_suffix(".json").is_file():
            return None
        summary = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
        rows: dict[str, list[RowResult]] = {"greedy": [], "sampled": []}
        for line in stem.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row.pop("way")].append(
                RowResult(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
            )
        return Report(
            step=step,
            greedy=Score(**summary["greedy"]),
            sampled=Score(**summary["sampled"]) if summary["sampled"] else None,
            greedy_rows=tuple(rows["greedy"]),
            sampled_rows=tuple(rows["sampled"]),
            settings=summary["settings"],
            seconds=summary["seconds"],
        )

    def finish(self, facts: Mapping[str, str], *, before: Report | None, after: Report | None) -> None:
        """Print the table at the end, and close every writer."""
        shown = after or before
        if shown is not None:
            earlier = before if after is not None else None
            table = results_table(
                table_rows(shown),
                before=table_rows(earlier) if earlier else None,
                errors=gain_errors(earlier, shown) if earlier else None,
                title=f"{shown.greedy.rows} held-out rows",
            )
            self.progress.console.print(table)
        print_facts(self.progress.console, facts)
        if self._sinks is not None:
            self._sinks.close()


def write_evaluation(run: RunFolder, report: Report, *, name: str) -> None:
    """Write totals with settings, and a line per row, under ``evaluations/`` of a run folder."""
    folder = run.evaluations
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / name
    write_atomic(stem.with_suffix(".json"), json.dumps(report.summary(), indent=2, default=str) + "\n")
    rows = [{"way": "greedy", **asdict(r)} for r in report.greedy_rows]
    rows += [{"way": "sampled", **asdict(r)} for r in report.sampled_rows]
    write_atomic(stem.with_suffix(".jsonl"), "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in rows))


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
    if len(greedy.by_answer) <= 16:
        rows |= {f"accuracy where the answer is {a} (n={n})": v for a, (v, n) in greedy.by_answer.items()}
    return rows


def gain_errors(before: Report, after: Report) -> dict[str, float]:
    """Paired standard errors of the gains that the table shows."""
    errors = {"accuracy, greedy": paired_gain(before.greedy_rows, after.greedy_rows).standard_error}
    if before.sampled and after.sampled:
        errors["accuracy, sampled"] = paired_gain(before.sampled_rows, after.sampled_rows).standard_error
    return errors


def _line(report: Report) -> str:
    sampled = f", sampled {report.sampled.accuracy:.3f}" if report.sampled else ""
    return (
        f"step {report.step}: held-out accuracy greedy {report.greedy.accuracy:.3f}{sampled}, "
        f"format {report.greedy.format_rate:.3f}, {report.seconds:.1f} s"
    )


def _sampling(assembly: Assembly) -> str:
    r = assembly.config.rollout
    return (
        f"temperature {r.temperature:g}, top_p {r.top_p:g}, top_k {r.top_k}, min_p {r.min_p:g}, repetition_penalty "
        f"{r.repetition_penalty:g}, stop {list(r.stop)}; the checkpoint's own generation defaults are not used"
    )


def _step_of(path: Any) -> int | None:
    return int(path.name.rsplit("-", 1)[-1]) if path is not None else None
