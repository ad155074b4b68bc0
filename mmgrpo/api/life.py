"""The life of a run: warm start, evaluation, GRPO, evaluation, checkpoint, table.

The order of things, and what is said about them. What each does is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mmgrpo.api.handle import Run
from mmgrpo.api.records import Records
from mmgrpo.assemble import (
    Assembly,
    Given,
    assemble,
    assemble_loop,
    eval_settings,
    first_step_checks,
    num_steps,
    open_feed,
    open_optimizer,
    warm_start_source,
    watch_of,
)
from mmgrpo.config.load import LoadedConfig, Overrides, load
from mmgrpo.config.schema import Config
from mmgrpo.data.feed import PromptFeed
from mmgrpo.evaluate.report import Report
from mmgrpo.evaluate.run import evaluate
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import RunFolder, create_run_folder, newest_run_folder, open_run_folder
from mmgrpo.running.run import Every, Hooks
from mmgrpo.running.run import Run as Steps
from mmgrpo.running.stop import StopRequest
from mmgrpo.train import checkpoint
from mmgrpo.train.build import build_warm_start_optimizer, warm_start_settings
from mmgrpo.train.optimizer import Optimizer
from mmgrpo.train.random_streams import seed_everything
from mmgrpo.train.supervised import warm_start
from mmgrpo.train.whole import latest
from mmgrpo.trainer import advantages, fit
from mmgrpo.types import Group, ScoredGroup

OnStep = Callable[[int, Mapping[str, float]], bool | None]


def train(
    config: str | Path | Config | None = None,
    *,
    rewards: Sequence[str | Callable[..., Any]] | None = None,
    train_rows: Any = None,
    eval_rows: Any = None,
    on_step: OnStep | None = None,
    resume: bool | str | Path = False,
    overrides: Overrides = (),
    console: Console | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Train a policy with GRPO, from a YAML, from Python, or from both.

    Args:
        config: A YAML file, a :class:`mmgrpo.Config`, or None when everything is given as sections.
        rewards: Functions, classes or specs (``"rewards/format.py:think_answer"``) in place of the YAML's.
        train_rows: A list of rows, a ``datasets.Dataset`` or rows opened before, in place of ``data.train``.
        eval_rows: The same for ``data.eval``.
        on_step: Called after each step with the number of steps done and the step's metrics; returning False stops
            the run, and saves it.
        resume: A run folder to continue, or True for the newest of this name.
        overrides: ``["loss.beta=0.01"]`` or a mapping.
        console: Where to print; default: standard error.
        **sections: Overrides by section: ``train={"num_steps": 20}``.

    Returns:
        The finished (or stopped) run.

    Raises:
        MmgrpoError: See :mod:`mmgrpo.errors`; what was saved stays.

    Example:
        >>> run = train("examples/quickstart.yaml", train={"num_steps": 20})   # doctest: +SKIP
        >>> run.metrics()[-1]["reward"]                                         # doctest: +SKIP
    """
    loaded, folder = _loaded(config, overrides, sections, resume)
    given = Given(rewards=rewards, train_rows=train_rows, eval_rows=eval_rows)
    observe = loaded.config.observe
    progress = Progress(show=observe.progress, log_steps=observe.log_steps, console=console)
    seed_everything(loaded.config.train.seed)
    assembly = assemble(loaded, given)
    start = latest(folder.checkpoints) if folder is not None else None
    if folder is None:
        folder = create_run_folder(loaded.config.train.output_dir, loaded.name)
    life = _Life(assembly=assembly, folder=folder, progress=progress, on_step=on_step, checkpoint=start)
    with progress:
        return life.live()


def _loaded(
    config: str | Path | Config | None, overrides: Overrides, sections: Mapping[str, Any], resume: bool | str | Path
) -> tuple[LoadedConfig, RunFolder | None]:
    """Load the configuration; on resume that of the run folder, with the same overrides on top."""
    if resume is False:
        return _with_sections(config, overrides, sections, None), None
    if resume is True:
        loaded = _with_sections(config, overrides, sections, None)
        folder = newest_run_folder(loaded.config.train.output_dir, loaded.name)
    else:
        folder = open_run_folder(resume)
    loaded = _with_sections(folder.config, overrides, sections, folder.base_folder())
    return replace(loaded, name=folder.path.name), folder


def _with_sections(
    config: str | Path | Config | None, overrides: Overrides, sections: Mapping[str, Any], folder: Path | None
) -> LoadedConfig:
    loaded = load(config, overrides, folder=folder)
    if not sections:
        return loaded
    again = load(loaded.config, sections, folder=loaded.folder)
    return replace(loaded, config=again.config)


@dataclass(slots=True, kw_only=True)
class _Life:
    """One run from start to end."""

    assembly: Assembly
    folder: RunFolder
    progress: Progress
    on_step: OnStep | None
    checkpoint: Path | None
    """Where to resume from; None: a new run."""
    before: Report | None = None
    after: Report | None = None
    engine_metrics: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def config(self) -> Config:
        return self.assembly.config

    def live(self) -> Run:
        """Warm start, evaluate, learn, evaluate, save."""
        total = num_steps(self.config, len(self.assembly.train or ()))
        records = Records(self.folder, self.assembly, self.progress)
        with StopRequest(max_seconds=self.config.train.max_seconds, on_signal=self.progress.say) as stop:
            records.start(total, resumed=self.checkpoint is not None)
            if self.checkpoint is None:
                self._warm_start(records)
                if self.config.loss.beta > 0:
                    self.assembly.policy.fix_reference()
            feed = open_feed(self.assembly)
            optimizer = open_optimizer(self.assembly, total)
            steps = self._steps(total, stop, records, feed, optimizer)
            if self.checkpoint is None and self.config.eval and self.config.eval.at_start:
                self.before = self._evaluate(0, records)
            elif self.checkpoint is not None:
                self.before = records.read_report(0)
            self._learn(steps, records, feed, optimizer)
            if self.config.eval and not steps.stopped:
                self.after = self._evaluate(steps.done, records)
                steps.note_best(self.after.metrics())
            steps.save()
        run = Run(
            assembly=self.assembly, folder=self.folder, before=self.before, after=self.after, steps=steps.done,
            seconds=records.seconds, stopped=steps.stopped,
        )  # fmt: skip
        records.finish(run.facts(), before=self.before, after=self.after)
        if steps.stopped:
            self.progress.say(f"Stopped by {steps.stopped} after step {steps.done} of {total}; it is saved.")
            self.progress.say(f"Resume: mmgrpo train --resume {self.folder.path}")
        self.assembly.rewards.close()
        return run

    def _learn(self, steps: Steps, records: Records, feed: PromptFeed, optimizer: Optimizer) -> None:
        def first(groups: Sequence[Group]) -> None:
            found = first_step_checks(self.assembly, groups)
            self.engine_metrics.update(found)
            records.say_checks(found)

        parts = assemble_loop(self.assembly, feed, optimizer, records.clock, first)
        with self.progress.phase("GRPO", steps.num_steps, done=steps.done) as advance:
            records.advance = advance
            fit(parts, steps)

    def _warm_start(self, records: Records) -> None:
        settings = self.config.warm_start
        if settings is None:
            return
        policy = self.assembly.policy
        unfrozen = policy.unfrozen() if settings.unfreeze else _nothing()
        with unfrozen, self.progress.phase("warm start", settings.num_steps, every=50) as advance:
            optimizer = build_warm_start_optimizer(policy.trainable(), settings, self.config.train)
            warm_start(
                policy,
                warm_start_source(self.assembly, self.config.data.on_bad_media),
                settings=warm_start_settings(settings, check_finite=self.config.checks.finite),
                optimizer=optimizer,
                on_step=lambda step, metrics: advance(metrics),
            )

    def _evaluate(self, step: int, records: Records) -> Report:
        assert self.config.eval is not None
        samples = self.assembly.eval
        assert samples is not None
        limit = self.config.eval.limit
        rows = samples if limit is None else [samples[i] for i in range(min(limit, len(samples)))]
        ways = 2 if self.config.eval.sampled else 1
        with self.progress.phase("evaluation", ways * len(rows), unit="row", every=0) as advance:
            report = evaluate(
                self.assembly.engine,
                self.assembly.rewards,
                rows,
                self.assembly.encode,
                settings=eval_settings(self.assembly),
                step=step,
                on_rows=lambda rows: advance({}, rows),
            )
        records.write_report(report)
        return report

    def _steps(self, total: int, stop: StopRequest, records: Records, feed: PromptFeed, optimizer: Optimizer) -> Steps:
        """Build the run's state, or read it from the checkpoint."""
        watch = watch_of(self.config)
        every = Every(
            log=self.config.observe.log_steps,
            evaluate=self.config.eval.eval_steps if self.config.eval else 0,
            save=self.config.train.save_steps,
            best_metric=self.config.train.save_best,
        )

        def figures() -> dict[str, float]:
            once, self.engine_metrics = self.engine_metrics, {}
            return {**self.assembly.engine.metrics(), **self.assembly.rewards.metrics(), **once}

        def save(done: int, best: int | None) -> None:
            extras = {"watch": watch.state(), "rewards": self.assembly.rewards.state(), "run": steps.state()}
            progress = checkpoint.Progress(
                step=done, policy_version=done, feed=dict(feed.state()), best_step=best, extras=extras
            )
            checkpoint.save(
                self.folder.checkpoints,
                progress,
                policy=self.assembly.policy,
                optimizer=optimizer,
                limit=self.config.train.save_total_limit,
            )

        def write_completions(step: int, scored: Sequence[ScoredGroup]) -> None:
            records.completions.write(step, scored, [a.tolist() for a in advantages(scored, self.config.loss)])

        hooks = Hooks(
            seconds=records.clock.read,
            figures=figures,
            watch=watch.look,
            log=records.log,
            show=records.show,
            write_completions=write_completions,
            evaluate=lambda step: self._evaluate(step, records).metrics(),
            save=save,
            on_step=self.on_step or (lambda step, metrics: None),
        )
        steps = Steps(num_steps=total, hooks=hooks, every=every, stop=stop)
        if self.checkpoint is not None:
            found = checkpoint.load(self.checkpoint, policy=self.assembly.policy, optimizer=optimizer)
            feed.load_state(found.feed)
            watch.load_state(found.extras["watch"])
            self.assembly.rewards.load_state(found.extras["rewards"])
            steps.load_state(found.extras["run"])
            steps.done = steps.saved = found.step
            self.assembly.engine.load_weights((), found.policy_version)
        return steps


class _nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None
