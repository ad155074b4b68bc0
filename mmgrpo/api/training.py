"""The one call that trains: from a YAML, from Python, or from both."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rich.console import Console

from mmgrpo.api.begin import Rewards, begin, written
from mmgrpo.api.handle import Run
from mmgrpo.api.life import Life, OnStep
from mmgrpo.api.quiet import only_first, quiet_bars
from mmgrpo.assemble import Given, assemble
from mmgrpo.config.load import AnyConfig, Overrides
from mmgrpo.errors import ConfigError, explain
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import create_run_folder, scratch_run_folder
from mmgrpo.parallel.replicated import open_strategy
from mmgrpo.training.random_streams import seed_everything
from mmgrpo.training.whole import latest


def train(
    config: AnyConfig = None,
    *,
    rewards: Rewards | None = None,
    train_rows: Any = None,
    eval_rows: Any = None,
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
        on_step: Called after each step with the number of steps done and the step's metrics; returning False stops
            the run, and saves it.
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
        _check_callback(on_step)
    if eval_rows is not None:
        sections.setdefault("eval", {})
    dist = open_strategy()
    loaded, folder = begin(config, overrides, {**sections, **section}, resume)
    given = Given(rewards=rewards, train_rows=train_rows, eval_rows=eval_rows)
    loaded, console = only_first(loaded, console, dist)
    observe = loaded.config.observe
    progress = Progress(show=observe.progress, log_steps=observe.log_steps, console=console)
    seed_everything(loaded.config.train.seed)
    resumed = folder is not None
    start = dist.broadcast(latest(folder.checkpoints) if folder is not None else None)
    with quiet_bars():
        assembly = assemble(loaded, given, fresh=start is None, dist=dist)
        if not dist.is_main_process:
            folder = scratch_run_folder()
        folder = folder or create_run_folder(loaded.config.train.output_dir, loaded.name)
        life = Life(
            assembly=assembly, folder=folder, progress=progress, on_step=on_step, checkpoint=start, resumed=resumed,
            in_python=any(v is not None for v in (rewards, train_rows, eval_rows)),
        )  # fmt: skip
        with progress, folder.held():
            return _lived(life)


def _check_callback(on_step: object) -> None:
    """Refuse now what would fail after the first step."""
    expected = "a function of two arguments: the steps done, and the step's metrics"
    if not callable(on_step):
        raise ConfigError(explain("on_step is no function", expected=expected, got=f"{on_step!r:.80}"))
    try:
        signature = inspect.signature(on_step)
    except (TypeError, ValueError):  # of some callables made in C nothing can be read
        return
    try:
        signature.bind(0, {})
    except TypeError as error:
        got = f"arguments {signature}"
        raise ConfigError(explain("on_step cannot be called", expected=expected, got=got)) from error


def _lived(life: Life) -> Run:
    """Live; a failed start leaves no empty folder behind, and an interrupted run tells its caller where to go on."""
    try:
        return life.live()
    except BaseException as error:
        gone = not life.resumed and life.folder.remove_if_empty()
        if isinstance(error, KeyboardInterrupt) and not gone:
            error.run_folder = life.folder.path  # type: ignore[attr-defined]
        raise
