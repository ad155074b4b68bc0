"""Without training: evaluate a run or a model, and fold adapters into a model of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mmgrpo.api.begin import Rewards, joined, nested, written
from mmgrpo.api.handle import Run
from mmgrpo.api.quiet import only_first, quiet_bars
from mmgrpo.assemble import UserInputs, assemble, open_evaluator
from mmgrpo.config.load import LoadedConfig, Overrides, resolve_config
from mmgrpo.config.paths import find_file
from mmgrpo.errors import CheckpointError, ConfigError, explain
from mmgrpo.evaluation.files import evaluation_name, free_name, read_evaluation, write_evaluation
from mmgrpo.evaluation.results import Report
from mmgrpo.evaluation.tables import table_rows
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import RunFolder, common_folder
from mmgrpo.observe.tables import print_facts, results_table
from mmgrpo.parallel.replicated import open_strategy
from mmgrpo.policy.model.checkpoint import find_policy_folder, settings_of
from mmgrpo.policy.model.merging import merge_adapter
from mmgrpo.training.manifest import step_of
from mmgrpo.training.random_streams import seed_everything

DEFAULT_REWARD = "rewards/clevr_counting.py:count_accuracy"
"""What judges a bare model when no reward is named."""


def evaluate(
    target: str | Path,
    *,
    data: Any = None,
    config: str | Path | None = None,
    rewards: Rewards | None = None,
    overrides: Overrides = (),
    limit: int | None = None,
    console: Console | None = None,
) -> Report:
    """Measure accuracy on held-out rows, print it as a table, and write it down with all that pins it.

    Processes that ``torchrun`` started share the rows; each gets the whole report, and the first prints and writes it.

    Args:
        target: A run folder, a checkpoint inside one, a model folder, a hub id, or ``tiny:FAMILY``.
        data: Rows to evaluate on: a data file, a file of ``datasets_configs/``, a hub id, or rows given in Python.
            None: the run's own held-out rows.
        config: A YAML with columns, template, rewards and limits, for a model that has no run folder.
        rewards: Functions, specs or entries that judge; the first is accuracy. None: the configured ones, or exact
            counting.
        overrides: ``["rollout.max_completion_length=64"]`` or a mapping.
        limit: Use this many rows.
        console: Where to print; default: standard error.

    Returns:
        The report. It is also written to ``evaluations/`` of the run, or of ``runs/eval-MODEL``; only an earlier one
        of the same rows and settings is replaced.

    Raises:
        ConfigError: There are no rows, or something does not fit.
        CheckpointError: The run has no whole checkpoint.
    """
    if not isinstance(target, str | Path):
        expected = "a run folder, a model folder, a hub id, or tiny:FAMILY"
        raise ConfigError(explain("This cannot be evaluated", expected=expected, got=f"{target!r:.80}"))
    source = _find(target, config)
    section, rewards = written(rewards)
    loaded = _overridden(source, data, joined(overrides, section))
    if source.folder is None and data is None and loaded.config.data.eval is None:
        fix = "Correct the path of the run, or name rows: --data PATH."
        raise ConfigError(explain("This is no run folder, and a bare model has no rows", where=str(target), fix=fix))
    dist = open_strategy()
    loaded, console = only_first(loaded, console, dist)
    progress = Progress(show=loaded.config.observe.progress, console=console)
    seed_everything(loaded.config.train.seed)
    given = UserInputs(rewards=rewards, eval_rows=None if isinstance(data, str | Path) else data)
    with quiet_bars():
        assembly = assemble(loaded, given, training=False, dist=dist)
    try:
        assembly.start_engine(source.step)
        with progress:
            report = open_evaluator(assembly, progress=progress, limited=limit is None).evaluate(
                source.step, limit=limit
            )
    finally:
        assembly.close()
    if dist.is_main_process:
        _write(report, source, loaded, target, progress)
    return report


def load(
    run: str | Path,
    *,
    rewards: Rewards | None = None,
    overrides: Overrides = (),
    console: Console | None = None,
) -> Run:
    """Open a run that ended: its policy, rows, rewards and evaluations, as training returned them.

    Args:
        run: A run folder, or a checkpoint inside one; of a folder the newest checkpoint.
        rewards: In place of those of the run, and needed for evaluations where these were Python objects.
        overrides: Laid over its configuration: ``["model.device=cpu"]`` or a mapping.
        console: Where to print; default: standard error.

    Returns:
        The run: evaluate it, let it write, look at its metrics.

    Raises:
        CheckpointError: There is no run there, or it has no checkpoint.
        ConfigError: An override is wrong.

    Example:
        >>> run = load("runs/quickstart")                                            # doctest: +SKIP
        >>> run.generate(run.samples()[0], details=True).rewards                     # doctest: +SKIP
    """
    source = _find(run, None)
    if source.folder is None:
        fix = "Name the folder that the run printed at its end."
        raise CheckpointError(
            explain("This is no run folder", where=str(run), expected="config.yaml, run.json", fix=fix)
        )
    section, python_rewards = written(rewards)
    loaded = _overridden(source, None, joined(overrides, section))
    if not loaded.config.rewards and python_rewards is None:
        python_rewards = [_rewards_are_missing]
    progress = Progress(show=loaded.config.observe.progress, console=console)
    with quiet_bars():
        assembly = assemble(loaded, UserInputs(rewards=python_rewards), training=False, needs_rows=False)
    assembly.start_engine(source.step)
    progress.say(f"{source.folder.path} as it was after step {source.step}")
    return Run(
        assembly=assembly,
        folder=source.folder,
        before=read_evaluation(source.folder, name=evaluation_name(0)),
        after=read_evaluation(source.folder, name=evaluation_name(source.step)) if source.step else None,
        steps=source.step,
        seconds=0.0,
        stopped=None,
    )


def _rewards_are_missing(completions: list[str]) -> list[float]:
    raise ConfigError(
        explain(
            "The rewards of this run were Python objects, which no folder can hold",
            where="rewards",
            fix="Hand them over again: mmgrpo.load(run, rewards=[…]).",
        )
    )


def _write(report: Report, source: _Source, loaded: LoadedConfig, target: str | Path, progress: Progress) -> None:
    folder = source.folder or common_folder(loaded.config.train.output_dir, _short(target))
    digest = report.settings["data_sha256"]
    name = f"eval_{digest[:8]}_{evaluation_name(source.step)}"
    name = free_name(folder, report, name=name)
    write_evaluation(folder, report, name=name)
    facts = {"model": loaded.config.model.name, "written to": str(folder.evaluations / f"{name}.json")}
    progress.console.print(results_table(table_rows(report), title=f"{report.first.score.rows} held-out rows"))
    print_facts(progress.console, facts)


def _short(target: str | Path) -> str:
    """Name a model: a folder by its last two parts, which tell ``step-40/policy`` apart."""
    path = Path(target).expanduser()
    return "-".join(path.absolute().parts[-2:]) if path.is_dir() else str(target)


def merge(run: str | Path, out: str | Path, *, dtype: str = "auto") -> Path:
    """Fold the adapter of a run into its base model: a plain folder that every tool loads.

    Args:
        run: A run folder or a checkpoint inside one.
        out: The folder to write; must be empty or not there.
        dtype: Of the merged weights: auto (that of the base), float32, bfloat16 or float16.

    Returns:
        ``out``.

    Raises:
        CheckpointError: There is no whole checkpoint, or ``out`` is in use.
    """
    with quiet_bars():
        return merge_adapter(Path(run), Path(out), dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a target turned out to be."""

    loaded: LoadedConfig
    model: Mapping[str, Any]
    """Values of the ``model`` section that load the target's weights."""
    folder: RunFolder | None
    step: int
    """Steps that the weights were trained for."""


def _find(target: str | Path, config: str | Path | None) -> _Source:
    """Tell a run, or a checkpoint inside one, from a bare model."""
    path = Path(target).expanduser()
    inside = [path, *path.parents[:3]] if path.exists() else []
    run = next((p for p in inside if (p / "config.yaml").is_file() and (p / "run.json").is_file()), None)
    if run is None:
        base = {"model": {"name": str(target)}, "rewards": [{"fn": DEFAULT_REWARD}], "eval": {}}
        # nothing is trained, so a YAML's adapters have no meaning; and only a tiny model has sizes
        bare = {"name": str(target), "tune": "full", "lora": None}
        bare |= {} if str(target).startswith("tiny:") else {"sizes": None}
        return _Source(loaded=resolve_config(config, base=base), model=bare, folder=None, step=0)
    folder = RunFolder(run.absolute())
    policy = find_policy_folder(path.absolute())
    settings = settings_of(policy).model_dump(include={"name", "tune", "lora", "sizes", "seed"})
    return _Source(
        loaded=resolve_config(folder.config, folder=folder.base_folder()),
        model=settings | {"revision": None},
        folder=folder,
        step=step_of(policy.parent) or 0,
    )


def _overridden(source: _Source, data: Any, overrides: Overrides) -> LoadedConfig:
    """Lay weights, rows and overrides over the configuration, in this order."""
    layers: Overrides = {"model": dict(source.model)}
    if isinstance(data, str | Path):
        layers = {**layers, "data": _data_layer(data)}
    if overrides:
        layers = joined(layers, nested(overrides))
    loaded = source.loaded
    return replace(loaded, config=resolve_config(loaded.config, layers, folder=loaded.folder).config)


def _data_layer(data: str | Path) -> dict[str, Any]:
    """Keys of ``data:`` that choose other rows: those of a file of ``datasets_configs/``, or a path."""
    if Path(data).suffix.lower() not in (".yaml", ".yml"):
        # what the user names starts from the working folder, not from where the run's YAML was
        return {"eval": {"path": str(Path(data).absolute()) if Path(data).exists() else str(data)}}
    named = find_file(data, what="data file").absolute()
    base = {"model": {"name": "tiny:none"}}  # only its rows are looked at
    chosen = resolve_config(None, {"data.config": str(named)}, base=base, folder=named.parent).config.data
    layer = chosen.model_dump(exclude_unset=True, exclude={"config", "train"})
    if "columns" in layer:  # the run's own columns are those of other rows
        layer["columns"] = chosen.columns.model_dump()
    eval_rows = layer.get("eval")
    if eval_rows and "path" in eval_rows:
        eval_rows["path"] = _from(named.parent, eval_rows["path"])
    return {"eval": None, **layer}


def _from(folder: Path, path: str) -> str:
    return str(folder / path) if (folder / path).exists() else path
