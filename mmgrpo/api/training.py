"""The one call that trains: from a YAML, from Python, or from both."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mmgrpo.api.begin import Rewards, begin, written
from mmgrpo.api.handle import Run
from mmgrpo.api.quiet import only_first, quiet_bars
from mmgrpo.assemble import Assembly, UserInputs, assemble, assemble_run
from mmgrpo.config.load import AnyConfig, Overrides
from mmgrpo.errors import ConfigError, explain
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import RunFolder, create_run_folder, scratch_run_folder
from mmgrpo.parallel.replicated import open_strategy
from mmgrpo.policy.model.loading import GivenModel
from mmgrpo.running.callback import OnStep, callback_names
from mmgrpo.running.logger import FolderLogger, RunFacts
from mmgrpo.running.state import RunState
from mmgrpo.running.stop import AnyRankStop, StopRequest
from mmgrpo.trainer import run_training
from mmgrpo.training.manifest import latest, step_of
from mmgrpo.training.random_streams import seed_everything


def train(
    config: AnyConfig = None,
    *,
    rewards: Rewards | None = None,
    train_rows: Any = None,
    eval_rows: Any = None,
    processor: Any = None,
    on_step: OnStep | None = None,
    resume: bool | str | Path | None = False,
    overrides: Overrides = (),
    console: Console | None = None,
    **sections: Any,
) -> Run:
    """Train a policy with GRPO, from a YAML, from Python, or from both.

    Args:
        config: A YAML file, a :class:`mmgrpo.Config`, a mapping of sections, or None when everything is given as
            sections.
        rewards: Functions, classes, specs (``"rewards/format.py:think_answer"``) or entries as in the YAML
            (``{"fn": "mine.py:short", "weight": 0.5}``), one or a list, in place of the YAML's.
        train_rows: A list of rows, a ``datasets.Dataset`` or rows opened before, in place of ``data.train``.
        eval_rows: The same for ``data.eval``; they are evaluated on, with the defaults of ``eval:`` where there is no
            such section.
        processor: Of a model that is handed over as ``model=``: a model of transformers that you have loaded, in
            place of the one that ``model.name`` names. Training changes that very object.
        on_step: Called after each step with the number of steps done and the step's metrics, and by name with what its
            signature asks for of ``policy``, ``groups`` (the step's scored groups) and ``stats`` (of the update);
            returning False stops the run, and saves it.
        resume: A run folder to continue, or True for the newest of this name. Its own configuration counts.
        overrides: ``["loss.beta=0.01"]`` or a mapping.
        console: Where to print; default: standard error.
        **sections: Overrides by section: ``train={"num_steps": 20}``.

    Returns:
        The finished (or stopped) run.

    Raises:
        MmgrpoError: See :mod:`mmgrpo.errors`; what was saved stays.

    Example:
        >>> run = train("examples/quickstart.yaml", train={"num_steps": 20})        # doctest: +SKIP
        >>> [row["reward"] for row in run.metrics()]                                 # doctest: +SKIP
    """
    section, rewards = written(rewards)
    if on_step is not None:
        callback_names(on_step)  # refused now, not after the first step
    if eval_rows is not None:
        sections.setdefault("eval", {})
    given = given_model(sections, processor)
    dist = open_strategy()
    loaded, folder = begin(config, overrides, {**sections, **section}, resume)
    inputs = UserInputs(rewards=rewards, train_rows=train_rows, eval_rows=eval_rows, model=given)
    loaded, console = only_first(loaded, console, dist)
    observe = loaded.config.observe
    progress = Progress(show=observe.progress, log_steps=observe.log_steps, console=console)
    seed_everything(loaded.config.train.seed)
    resumed = folder is not None
    checkpoint = dist.broadcast(latest(folder.checkpoints) if folder is not None else None)
    with quiet_bars():
        assembly = assemble(loaded, inputs, fresh=checkpoint is None, dist=dist)
        if not dist.is_main_process:
            folder = scratch_run_folder()
        folder = folder or create_run_folder(loaded.config.train.output_dir, loaded.name)
        start = _Start(
            assembly=assembly,
            folder=folder,
            progress=progress,
            on_step=on_step,
            checkpoint=checkpoint,
            resumed=resumed,
            in_python=any(v is not None for v in (rewards, train_rows, eval_rows, given)),
        )
        with progress, folder.held():
            return start.run()


def given_model(sections: dict[str, Any], processor: Any) -> GivenModel | None:
    """Take a model that was handed over out of the sections, where it stands as ``model=``.

    Args:
        sections: Of the configuration; a model in them is replaced by its name.
        processor: The model's.

    Raises:
        ConfigError: One of the two is there without the other.
    """
    model = sections.get("model")
    if not hasattr(model, "named_parameters"):  # a section, or nothing
        if processor is None:
            return None
        raise ConfigError(explain("A processor is given without its model", fix="Pass model=, too."))
    if processor is None:
        fix = "Pass processor=, too: the one that you would prepare its inputs with."
        raise ConfigError(explain("A model is given without its processor", got=type(model).__name__, fix=fix))
    sections["model"] = {"name": getattr(model, "name_or_path", "") or type(model).__name__}
    return GivenModel(model=model, processor=processor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """One start of a run: what it is made of, and how it is told of at its end."""

    assembly: Assembly
    folder: RunFolder
    progress: Progress
    on_step: OnStep | None
    checkpoint: Path | None
    """Where to continue; None: from the start."""
    resumed: bool
    """Whether the folder is that of an earlier start."""
    in_python: bool
    """Whether rewards or rows were handed over in Python."""

    def run(self) -> Run:
        """Train; a failed start leaves no empty folder, and an interrupted run tells its caller where to continue."""
        assembly = self.assembly
        facts = RunFacts(
            loaded=assembly.loaded,
            policy=assembly.policy,
            dist=assembly.dist,
            rewards=assembly.rewards.names,
            train=assembly.train,
            left_out=assembly.left_out,
        )
        logger = FolderLogger(self.folder, facts, self.progress)
        try:
            try:
                state = self._train(logger)
            finally:
                logger.close()
        except BaseException as error:
            self.assembly.close()
            self._tell_failure(error)
            raise
        return self._finished(state, logger)

    def _train(self, logger: FolderLogger) -> RunState:
        dist, limit = self.assembly.dist, self.assembly.config.train.max_seconds
        with StopRequest(max_seconds=limit, on_signal=self.progress.say) as stop:
            parts, state = assemble_run(
                self.assembly,
                folder=self.folder,
                progress=self.progress,
                logger=logger,
                stop=AnyRankStop(stop, dist.all_gather),
                on_step=self.on_step,
                checkpoint=self.checkpoint,
            )
            with closing(parts.loader):
                logger.start(state.num_steps, last_step=self._last_step())
                run_training(parts, state)
        return state

    def _last_step(self) -> int | None:
        """The last step that a resumed run's checkpoint holds (-1: none); None: a new run."""
        if not self.resumed:
            return None
        step = step_of(self.checkpoint) if self.checkpoint else None
        return -1 if step is None else step

    def _finished(self, state: RunState, logger: FolderLogger) -> Run:
        run = Run(
            assembly=self.assembly,
            folder=self.folder,
            before=state.before,
            after=state.after,
            steps=state.step,
            seconds=logger.seconds,
            stopped=state.stopped,
        )
        logger.finish(run.facts(), before=state.before, after=state.newest)
        if state.stopped:
            where = f"after step {state.step} of {state.num_steps}"
            if state.saved_step is None:
                self.progress.say(f"Stopped by {state.stopped} {where}; nothing is saved yet.")
            else:
                self.progress.say(f"Stopped by {state.stopped} {where}; it is saved.")
                self.progress.say(f"Go on: {self._resume_command()}")
        return run

    def _tell_failure(self, error: BaseException) -> None:
        """Say what is saved and how to continue; of a start that wrote nothing, remove the folder."""
        newest = latest(self.folder.checkpoints)
        removed = not self.resumed and self.folder.remove_if_empty()
        if isinstance(error, KeyboardInterrupt):
            error.run_folder = None if removed or newest is None else self.folder.path  # type: ignore[attr-defined]
        elif newest is not None:
            message = f"The run has failed; {newest.name} is saved. When the cause is fixed, go on: "
            self.progress.say(message + self._resume_command())

    def _resume_command(self) -> str:
        if self.in_python:
            return f"mmgrpo.train(resume={str(self.folder.path)!r}, …) with the same rewards, rows and model"
        world_size = self.assembly.dist.world_size
        command = "mmgrpo" if world_size == 1 else f"torchrun --nproc-per-node {world_size} -m mmgrpo"
        return f"{command} train --resume {shlex.quote(str(self.folder.path))}"
