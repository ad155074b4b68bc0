"""What a run writes and says: metrics, completions, evaluations, tables.

Joins the writers of ``observe`` to one run; knows no engine and no loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from mmgrpo.assemble import Assembly
from mmgrpo.config.load import resolve_config
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.show import changes, render_config, unit_lines
from mmgrpo.data.opening import source_notes
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
from mmgrpo.running.clock import Clock
from mmgrpo.running.figures import joined_figures, step_figures
from mmgrpo.types import ScoredGroup, UpdateStats

_CHECKED = {
    "checks/engine_logprobs/max": "engine = trainer to {:.0e} nats",
    "checks/packed_equals_plain/max": "packed = plain rows to {:.0e} nats",
    "checks/picture_swap/max": "another medium moves log-probs by {:.2g} nats",
}
"""What the checks of the first step measured, in words."""


class Records:
    """The writers of one run.

    Args:
        folder: The run folder.
        assembly: The run's parts.
        progress: The screen.
    """

    def __init__(self, folder: RunFolder, assembly: Assembly, progress: Progress) -> None:
        self.folder, self.assembly, self.progress = folder, assembly, progress
        self.clock = Clock()
        self._advance: Callable[..., None] = lambda metrics: None
        config = assembly.config
        self.completions = CompletionsWriter(
            folder.completions, format=config.observe.completions_format, limit=config.observe.log_completions
        )
        names, base = assembly.rewards.names, assembly.loaded.folder
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
        config, policy = self.assembly.config, self.assembly.policy
        self._resumed = last_step is not None
        self.folder.write_start(
            config=render_config(config),
            folder=self.assembly.loaded.folder,
            source=self.assembly.loaded.path,
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
        say(f"sampling: {_sampling(self.assembly)}")
        console.print(parameters_table({p.part: (p.trainable, p.total) for p in policy.parts()}))
        if self.assembly.train is not None:
            kinds, size = policy.family_info.kinds, config.train.prompts_per_step
            for note in source_notes(self.assembly.train, kinds=kinds, prompts_per_step=size):
                say(f"note: {note}")
        self.assembly.left_out.write_to(self.folder.skipped_rows)
        if self.assembly.left_out:
            say(f"rows left out, because their media cannot be read: {len(self.assembly.left_out)}")
        if last_step is not None:
            say(f"resumed after step {last_step}" if last_step >= 0 else "no checkpoint yet: starting again")

    def keep_config(self) -> None:
        """Make the overrides of a resume part of the run, once its checkpoint is read; a new run has none."""
        if not self._resumed:
            return
        now = self.assembly.config
        found = changes(resolve_config(self.folder.config).config, now)
        if found:
            self.folder.replace_config(render_config(now), changed=found)
            told = ", ".join(f"{key} {change}" for key, change in found.items())
            self.progress.say(f"changed for this run from now on: {told}")

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
        joined = joined_figures(self.assembly.dist.all_gather(dict(local)))
        return {**step_figures(scored, stats, self.clock.read()), **joined, **shared}

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

    def say_checks(self, found: Mapping[str, float]) -> None:
        """Tell that the run has checked itself, and what it measured."""
        told = [words.format(found[name]) for name, words in _CHECKED.items() if name in found]
        if told:
            self.progress.say(f"checks passed: {', '.join(told)}")

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
        return self.assembly.dist.broadcast(read_evaluation(self.folder, name=evaluation_name(step)))

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


def _sampling(assembly: Assembly) -> str:
    """Say how completions are drawn: the temperature, and whatever bends the distribution."""
    rollout, neutral = assembly.config.rollout, Rollout()
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    bent = [f"{n} {getattr(rollout, n):g}" for n in names if getattr(rollout, n) != getattr(neutral, n)]
    stop = [f"stop {list(rollout.stop)}"] if rollout.stop else []
    told = ", ".join([f"temperature {rollout.temperature:g}", *(bent or ["nothing cut off"]), *stop])
    return f"{told}; the checkpoint's own generation defaults are not used"
