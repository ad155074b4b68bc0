"""The life of a run: warm start, evaluation, GRPO, evaluation, checkpoint, table.

The order of things, and what is said about them. What each does is elsewhere.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from mmgrpo.api.handle import Run
from mmgrpo.api.judging import judge_shown
from mmgrpo.api.records import Records
from mmgrpo.assemble import Assembly, assemble_loop, open_feed, open_optimizer, open_warm_start
from mmgrpo.checks.applies import Applies
from mmgrpo.checks.watch import Watch
from mmgrpo.config.schema import Config
from mmgrpo.data.feed import PromptFeed
from mmgrpo.errors import CheckpointError, explain
from mmgrpo.evaluation.report import Report
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import RunFolder
from mmgrpo.running.figures import joined_figures
from mmgrpo.running.run import Every, Hooks
from mmgrpo.running.run import Run as Steps
from mmgrpo.running.sizes import num_steps
from mmgrpo.running.stop import Agreed, StopRequest, Stops
from mmgrpo.trainer import fit
from mmgrpo.training import checkpoint
from mmgrpo.training.build import build_warm_start_optimizer, warm_start_settings
from mmgrpo.training.optimizer import Optimizer
from mmgrpo.training.supervised import warm_start
from mmgrpo.training.whole import latest
from mmgrpo.types import ScoredGroup

OnStep = Callable[[int, Mapping[str, float]], bool | None]
"""Gets the number of steps done and the step's metrics; returning False stops the run."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One run from start to end."""

    assembly: Assembly
    folder: RunFolder
    progress: Progress
    on_step: OnStep | None
    checkpoint: Path | None
    """Where to go on; None: from the start."""
    resumed: bool
    """Whether the folder is that of an earlier start."""
    in_python: bool
    """Whether rewards or rows were given in Python."""
    before: Report | None = None
    after: Report | None = None
    applies: Applies = field(default_factory=Applies)
    checked: dict[str, float] = field(default_factory=dict[str, float])
    """What the checks of the first step measured, until it is logged."""

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.assembly.config

    def live(self) -> Run:
        """Warm start, evaluate, learn, evaluate, save; whatever happens, close what is open."""
        records = Records(self.folder, self.assembly, self.progress)
        try:
            with StopRequest(max_seconds=self.config.train.max_seconds, on_signal=self.progress.say) as stop:
                steps = self._all(records, Agreed(stop, self.assembly.dist.all_gather))
        except BaseException as error:
            self.assembly.rewards.close()
            if not isinstance(error, KeyboardInterrupt) and latest(self.folder.checkpoints) is not None:
                self.progress.say(f"The run has failed. When the cause is mended, go on: {self._again()}")
            raise
        finally:
            records.close()
        run = Run(
            assembly=self.assembly, folder=self.folder, before=self.before, after=self.after, steps=steps.done,
            seconds=records.seconds, stopped=steps.stopped,
        )  # fmt: skip
        records.finish(run.facts(), before=self.before, after=self.after)
        if steps.stopped:
            kept = "it is saved" if steps.saved is not None else "nothing is saved yet"
            self.progress.say(f"Stopped by {steps.stopped} after step {steps.done} of {steps.num_steps}; {kept}.")
            self.progress.say(f"Go on: {self._again()}")
        return run

    def _again(self) -> str:
        """Say how to resume."""
        if self.in_python:
            return f"mmgrpo.train(resume={str(self.folder.path)!r}, …) with the same rewards and rows"
        world = self.assembly.dist.world_size
        command = "mmgrpo" if world == 1 else f"torchrun --nproc-per-node {world} -m mmgrpo"
        return f"{command} train --resume {shlex.quote(str(self.folder.path))}"

    def _all(self, records: Records, stop: Stops) -> Steps:
        """Do everything that a signal may stop."""
        total = num_steps(self.config.train, len(self.assembly.train or ()) - len(self.assembly.left_out))
        last = int(self.checkpoint.name.rsplit("-", 1)[-1]) if self.checkpoint else -1
        records.start(total, last_step=last if self.resumed else None)
        if self.checkpoint is None:
            if not self._warm_start(stop):  # of half a warm start there is no checkpoint
                nothing = Hooks(seconds=records.clock.read)
                return Steps(num_steps=total, hooks=nothing, every=self._every(), stop=stop, stopped=stop.reason)
            if self.config.loss.beta > 0:
                self.assembly.policy.fix_reference()
        optimizer = open_optimizer(self.assembly, total)
        with closing(open_feed(self.assembly)) as feed:
            steps = self._steps(total, stop, records, feed, optimizer)
            if self.resumed:
                records.keep_config()
            if steps.saved is None and self.config.warm_start and self.config.train.save_steps:
                steps.save()
            self._evaluate_before(steps, records)
            self._learn(steps, records, feed, optimizer)
            if not steps.stopped:
                self.applies.end()
            steps.save()
        self._evaluate_after(steps, records, ended=last == total)
        return steps

    def _warm_start(self, stop: Stops) -> bool:
        """Imitate, if the configuration says so; False: it was stopped before its end."""
        settings = self.config.warm_start
        if settings is None:
            return True
        policy = self.assembly.policy
        unfrozen = policy.unfrozen() if settings.unfreeze else nullcontext()
        every = min(50, max(1, settings.num_steps // 4))
        with unfrozen, self.progress.phase("warm start", settings.num_steps, every=every) as advance:

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                advance(metrics)
                if stop.reason:
                    raise _Halt

            try:
                warm_start(
                    policy,
                    open_warm_start(self.assembly),
                    settings=warm_start_settings(settings, check_finite=self.config.checks.finite),
                    optimizer=build_warm_start_optimizer(
                        policy.trainable(), settings, self.config.train, dist=self.assembly.dist
                    ),
                    on_step=on_step,
                )
            except _Halt:
                return False
        return True

    def _every(self) -> Every:
        return Every(
            log=self.config.observe.log_steps,
            evaluate=self.config.eval.eval_steps if self.config.eval else 0,
            save=self.config.train.save_steps,
            best_metric=self.config.train.save_best,
        )

    def _steps(self, total: int, stop: Stops, records: Records, feed: PromptFeed, optimizer: Optimizer) -> Steps:
        """Build the run's state, or read it from the checkpoint."""
        policy, rewards, dist = self.assembly.policy, self.assembly.rewards, self.assembly.dist
        watch = Watch(self.config.checks, masks_truncated=self.config.loss.mask_truncated_completions)

        def look(scored: Sequence[ScoredGroup], metrics: Mapping[str, float]) -> None:
            self.applies.look(scored, metrics)
            if dist.is_main_process:  # what is warned of is the same in all
                watch.look(scored, metrics)

        def figures() -> dict[str, float]:
            checked, self.checked = self.checked, {}
            own = {**self.assembly.engine.metrics(), **rewards.metrics(), **checked}
            return joined_figures(dist.all_gather(own))

        def save(done: int, best: int | None) -> None:
            extras = {"watch": watch.state(), "rewards": rewards.state(), "run": steps.state()}
            extras["applies"] = self.applies.state()
            progress = checkpoint.Progress(
                step=done, policy_version=done, feed=dict(feed.state()), best_step=best, extras=extras
            )
            limit = self.config.train.save_total_limit
            if dist.is_main_process:
                checkpoint.save(self.folder.checkpoints, progress, policy=policy, optimizer=optimizer, limit=limit)
            dist.all_gather(None)  # nobody ends while the first still writes

        def on_step(done: int, metrics: Mapping[str, float]) -> bool | None:
            return not dist.any_rank(self.on_step is not None and self.on_step(done, metrics) is False)

        hooks = Hooks(
            seconds=records.clock.read,
            figures=figures,
            watch=look,
            log=records.log,
            show=records.show,
            write_completions=records.write_completions,
            evaluate=lambda step: self._evaluate(step, records).metrics(),
            save=save,
            on_step=on_step,
        )
        steps = Steps(num_steps=total, hooks=hooks, every=self._every(), stop=stop)
        if self.checkpoint is not None:
            found = checkpoint.load(self.checkpoint, policy=policy, optimizer=optimizer)
            self._require_reference()
            feed.load_state(found.feed)
            watch.load_state(found.extras["watch"])
            rewards.load_state(found.extras["rewards"])
            steps.load_state(found.extras["run"])
            self.applies.load_state(found.extras.get("applies", {}))
            steps.done = steps.saved = found.step
            self.assembly.engine.load_weights((), found.policy_version)
        return steps

    def _require_reference(self) -> None:
        if self.config.loss.beta > 0 and self.assembly.policy.reference_state() is None:
            raise CheckpointError(
                explain(
                    "The checkpoint holds no reference for the KL term",
                    where=f"loss.beta {self.config.loss.beta:g}, {self.checkpoint}",
                    fix="The run was started with loss.beta 0. Resume it so, or start a new run from its policy: "
                    f"model.name={self.checkpoint}/policy",
                )
            )

    def _learn(self, steps: Steps, records: Records, feed: PromptFeed, optimizer: Optimizer) -> None:
        def on_checked(found: dict[str, float]) -> None:
            self.checked = found
            records.say_checks(found)

        parts = assemble_loop(self.assembly, feed, optimizer, records.clock, on_checked)
        with self.progress.phase("GRPO", steps.num_steps, done=steps.done) as advance:
            records.advance = advance
            fit(parts, steps)

    def _evaluate_before(self, steps: Steps, records: Records) -> None:
        """Evaluate before the first step, or read what an earlier start found then."""
        if self.checkpoint is not None:
            self.before = self.assembly.dist.broadcast(records.read_report(0))
        wanted = self.config.eval is not None and self.config.eval.at_start and steps.done == 0
        if wanted and self.before is None and not steps.stop.reason:
            self.before = self._evaluate(0, records)
        if self.before is not None and steps.every.best_metric:
            steps.best_of(self.before.metrics())  # a name that does not exist is told now, not after hours

    def _evaluate_after(self, steps: Steps, records: Records, *, ended: bool) -> None:
        """Evaluate after the last step, which is saved already; a resumed run that had ended reads its report."""
        if self.config.eval is None or steps.stopped or steps.done == 0:
            return
        self.after = self.assembly.dist.broadcast(records.read_report(steps.done) if ended else None)
        if self.after is None:
            self.after = self._evaluate(steps.done, records)
            if steps.note_best(self.after.metrics()):
                steps.save(again=True)

    def _evaluate(self, step: int, records: Records) -> Report:
        report = judge_shown(self.assembly, self.progress, step=step)
        records.write_report(report)
        return report


class _Halt(Exception):
    """Leaves the warm start."""
