"""The logger of a run: metrics, completions, evaluations and tables, in its folder and on the screen.

Joins the writers of ``observe`` to one run; knows no engine and no loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from mmgrpo.config.load import LoadedConfig, resolve_config
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.show import changes, render_config, unit_lines
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.opening import source_notes
from mmgrpo.data.row_errors import SkippedRows
from mmgrpo.evaluation.files import evaluation_name, read_evaluation, write_evaluation
from mmgrpo.evaluation.results import Report
from mmgrpo.evaluation.suites import open_metric
from mmgrpo.evaluation.tables import gain_errors, report_line, table_rows
from mmgrpo.grpo.advantages import mean_advantage
from mmgrpo.metrics import Metric
from mmgrpo.observe.completions import CompletionsWriter
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import RunFolder
from mmgrpo.observe.sinks import JsonlSink, Sinks
from mmgrpo.observe.tables import parameters_table, print_facts, results_table
from mmgrpo.observe.trackers import RunName, open_tracker
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.policy.model.policy import Policy
from mmgrpo.running.clock import Clock
from mmgrpo.running.step_metrics import joined_metrics, step_metrics
from mmgrpo.types import ScoredGroup, UpdateStats

_CHECKED = {
    "checks/engine_logprobs/max": "engine = trainer to {:.0e} nats",
    "checks/packed_equals_plain/max": "packed = plain rows to {:.0e} nats",
    "checks/picture_swap/max": "another media item moves log-probs by {:.2g} nats",
}
"""What the checks of the first step measured, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the logger tells of a run, and does not know by itself."""

    loaded: LoadedConfig
    policy: Policy
    dist: Strategy
    rewards: tuple[str, ...]
    """Names of the rewards."""
    train: AnySamples | None
    """Training rows."""
    left_out: SkippedRows
    """Training rows that cannot be used."""


class FolderLogger:
    """Writes and shows one run; fulfils :class:`mmgrpo.contracts.RunLogger`.

    Args:
        folder: The run folder.
        facts: What it tells of the run.
        progress: The screen.
    """

    def __init__(self, folder: RunFolder, facts: RunFacts, progress: Progress) -> None:
        self.folder, self.facts, self.progress = folder, facts, progress
        self.clock = Clock()
        self._advance: Callable[..., None] = lambda metrics: None
        config = facts.loaded.config
        self.completions = CompletionsWriter(
            folder.completions, format=config.observe.completions_format, limit=config.observe.log_completions
        )
        names, base = facts.rewards, facts.loaded.folder
        section = config.eval
        self._accuracy = open_metric(section.metric if section else None, names, folder=base, where="eval.metric").name
        self._sinks: Sinks | None = None
        self._resumed = False
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run started in this process."""
        return time.monotonic() - self._start

    def start(self, total: int, *, last_step: int | None) -> None:
        """Write what is known at the start, and say what will happen, with units.

        Args:
            total: Steps of the whole run.
            last_step: On resume, the last step that the checkpoint holds (-1: the run has none); None: a new run.
        """
        config, policy = self.facts.loaded.config, self.facts.policy
        self._resumed = last_step is not None
        self.folder.write_start(
            config=render_config(config),
            folder=self.facts.loaded.folder,
            source=self.facts.loaded.path,
            facts={"device": str(policy.device), "dtype": str(policy.dtype), "layout": policy.layout},
        )
        name = RunName(
            name=self.folder.path.name, folder=self.folder.path, config=config.model_dump(), last_step=last_step
        )
        trackers = [open_tracker(tracker, name) for tracker in config.observe.report_to]
        self._sinks = Sinks([JsonlSink(self.folder.metrics, last_step=last_step), *trackers])
        say, console = self.progress.say, self.progress.console
        say(f"{config.model.name} on {policy.device}, {policy.dtype}, {policy.layout} layout")
        for line in unit_lines(config, total):
            say(line)
        say(f"sampling: {_sampling(config.rollout)}")
        console.print(parameters_table({p.part: (p.trainable, p.total) for p in policy.parts()}))
        if self.facts.train is not None:
            kinds, size = policy.family_info.kinds, config.train.prompts_per_step
            for note in source_notes(self.facts.train, kinds=kinds, prompts_per_step=size):
                say(f"note: {note}")
        self.facts.left_out.write_to(self.folder.skipped_rows)
        if self.facts.left_out:
            say(f"rows left out, because their media cannot be read: {len(self.facts.left_out)}")
        if last_step is not None:
            say(f"resumed after step {last_step}" if last_step >= 0 else "no checkpoint yet: starting again")

    def keep_config(self) -> None:
        """Make the overrides of a resume part of the run, once its checkpoint is read; a new run has none."""
        if not self._resumed:
            return
        now = self.facts.loaded.config
        changed = changes(resolve_config(self.folder.config).config, now)
        if changed:
            self.folder.replace_config(render_config(now), changed=changed)
            text = ", ".join(f"{key} {change}" for key, change in changed.items())
            self.progress.say(f"changed for this run from now on: {text}")

    @contextmanager
    def phase(self, name: str, total: int, *, done: int = 0) -> Generator[None]:
        """Show how far the steps are; :meth:`log` moves the bar."""
        with self.progress.phase(name, total, done=done) as self._advance:
            yield
        self._advance = lambda metrics: None

    def measure(
        self,
        scored: Sequence[ScoredGroup],
        stats: UpdateStats,
        *,
        local: Mapping[str, float | Metric],
        shared: Mapping[str, float],
    ) -> dict[str, float]:
        """Collect the metrics of a step.

        Args:
            scored: Its groups, of all processes.
            stats: What the update measured, over all processes.
            local: What this process measured; joined with what the others did.
            shared: What all processes know.
        """
        joined = joined_metrics(self.facts.dist.all_gather(dict(local)))
        return {**step_metrics(scored, stats, self.clock.read()), **joined, **shared}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step, and move the bar.

        The accuracy shown is what it is in evaluation: the fraction of values of at least 1.
        """
        self._write(step, metrics)
        shown = dict(metrics)
        if f"rewards/{self._accuracy}/at_least_1" in shown:
            shown["accuracy"] = shown[f"rewards/{self._accuracy}/at_least_1"]
        self._advance(shown)

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._sinks is not None:
            self._sinks.log(step, metrics)

    def say_checks(self, metrics: Mapping[str, float]) -> None:
        """Tell that the run has checked itself, and what it measured."""
        text = [words.format(metrics[name]) for name, words in _CHECKED.items() if name in metrics]
        if text:
            self.progress.say(f"checks passed: {', '.join(text)}")

    def write_completions(
        self, step: int, scored: Sequence[ScoredGroup], advantages: Sequence[Tensor | Sequence[Tensor]]
    ) -> None:
        """Write a sample of completions with their rewards and advantages."""
        means = [
            [mean_advantage(a, c) for a, c in zip(of_group, one.group.completions, strict=True)]
            for of_group, one in zip(advantages, scored, strict=True)
        ]
        self.completions.write(step, scored, means)

    def write_evaluation(self, evaluation: Report) -> None:
        """Write an evaluation of the run, and a row of its metrics."""
        write_evaluation(self.folder, evaluation, name=evaluation_name(evaluation.step))
        self._write(evaluation.step, evaluation.metrics())
        self.progress.say(report_line(evaluation))

    def read_evaluation(self, step: int) -> Report | None:
        """Read an evaluation of this run back, in all processes; None if there is none."""
        return self.facts.dist.broadcast(read_evaluation(self.folder, name=evaluation_name(step)))

    def finish(self, facts: Mapping[str, str], *, before: Report | None, after: Report | None) -> None:
        """Print the table at the end: the newest evaluation, beside that before the first step."""
        shown = after or before
        if shown is not None:
            earlier = before if after is not None else None
            table = results_table(
                table_rows(shown),
                before=table_rows(earlier) if earlier else None,
                errors=gain_errors(earlier, shown) if earlier else None,
                title=f"{shown.first.score.rows} held-out rows",
                heads=(f"step {earlier.step}" if earlier else "", f"step {shown.step}"),
            )
            self.progress.console.print(table)
        print_facts(self.progress.console, facts)

    def close(self) -> None:
        """Close every writer."""
        if self._sinks is not None:
            self._sinks.close()
            self._sinks = None


def _sampling(rollout: Rollout) -> str:
    """Say how completions are drawn: the temperature, and whatever bends the distribution."""
    neutral = Rollout()
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    bent = [f"{n} {getattr(rollout, n):g}" for n in names if getattr(rollout, n) != getattr(neutral, n)]
    stop = [f"stop {list(rollout.stop)}"] if rollout.stop else []
    text = ", ".join([f"temperature {rollout.temperature:g}", *(bent or ["nothing cut off"]), *stop])
    return f"{text}; the checkpoint's own generation defaults are not used"
