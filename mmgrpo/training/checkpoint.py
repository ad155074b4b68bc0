"""Saving and resuming a run so that being killed at any moment loses nothing that was saved.

A checkpoint is built in ``.tmp-step-N``, finalized with a manifest, and renamed to ``step-N``: a name without a dot is
only ever on a finished one. Does not know what the policy writes into its folder.

    checkpoints/step-40/
    ├── policy/          weights or adapter and processor, as transformers and peft load them
    ├── state.pt         optimizer, reference, random streams
    ├── progress.json    step, policy version, feed, metrics
    └── COMPLETE         manifest: every file with its size
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mmgrpo.contracts import TrainablePolicy
from mmgrpo.errors import CheckpointError, explain
from mmgrpo.training import random_streams
from mmgrpo.training.manifest import complete_checkpoints, finalize, latest, sync, why_incomplete
from mmgrpo.training.optimizer import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands, beside weights, optimizer and random streams. All of it must be writable as JSON."""

    step: int
    """Steps done; the next step has this number."""
    policy_version: int
    """Weight updates of the policy so far."""
    feed: Mapping[str, Any]
    """What :meth:`mmgrpo.contracts.Feed.state` said of the prompts consumed."""
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What later decisions need, for example the best value of ``train.save_best``."""
    best_step: int | None = None
    """Step of the best checkpoint, which is never removed."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """State of controllers, moments and the like, by name."""


def save(
    folder: Path,
    progress: Progress,
    *,
    policy: TrainablePolicy,
    optimizer: Optimizer,
    limit: int | None = None,
    random: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint, and only when it is complete remove those past the limit.

    Args:
        folder: The run's ``checkpoints`` folder; made where missing.
        progress: Where the run stands.
        policy: Writes its own part.
        optimizer: Its state is saved.
        limit: Keep the newest so many, and the best one; None keeps all.
        random: Random streams as they were at that step; None: as they are now.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: It could not be written; earlier checkpoints are untouched.
    """
    building, target = folder / f".tmp-step-{progress.step}", folder / f"step-{progress.step}"
    try:
        _finish_replacing(folder)
        _remove(building)
        building.mkdir(parents=True)
        policy.save(building / "policy")
        state = {
            "optimizer": optimizer.state_dict(),
            "random": random_streams.capture() if random is None else dict(random),
        }
        torch.save(state | {"reference": policy.reference_state()}, building / "state.pt")
        (building / "progress.json").write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")
        finalize(building)
        _put_in_place(building, target)
    # torch and safetensors report a full disk as RuntimeError and as their own error.
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(building, ignore_errors=True)
        raise CheckpointError(_cannot_save(folder, progress.step, error)) from error
    _prune(folder, limit=limit, best_step=progress.best_step)
    return target


def load(path: Path, *, policy: TrainablePolicy, optimizer: Optimizer) -> Progress:
    """Continue from a checkpoint: weights, reference, optimizer, schedule and random streams.

    No code of the file is run. The caller hands ``progress.feed`` to the feed.

    Args:
        path: A checkpoint's folder.
        policy: Loaded as for the saved run.
        optimizer: Built as for the saved run.

    Returns:
        Where the run stood.

    Raises:
        CheckpointError: The checkpoint is not complete, or does not fit this policy or optimizer.
    """
    wrong = why_incomplete(path)
    if wrong:
        raise CheckpointError(_cannot_load(path, wrong))
    try:
        progress = Progress(**json.loads((path / "progress.json").read_text(encoding="utf-8")))
        state = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
    except (OSError, ValueError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(_cannot_load(path, str(error))) from error
    policy.load_weights_from(path / "policy")
    policy.load_reference(state["reference"])
    optimizer.load_state_dict(state["optimizer"])
    random_streams.restore(state["random"])
    return progress


def _put_in_place(building: Path, target: Path) -> None:
    """Rename; a checkpoint of the same step is renamed first, and found there should the run die in between."""
    backup = target.with_name(f".old-{target.name}")
    if target.exists():
        _remove(backup)
        os.rename(target, backup)
    os.rename(building, target)
    sync(target.parent)
    _remove(backup)


def _finish_replacing(folder: Path) -> None:
    """Give a checkpoint its name back when a run died between the two renames of replacing it."""
    for step, path in complete_checkpoints(folder).items():
        if path.name.startswith("."):
            _remove(folder / f"step-{step}")
            os.rename(path, folder / f"step-{step}")


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _prune(folder: Path, *, limit: int | None, best_step: int | None) -> None:
    """Remove checkpoints past the limit, oldest first, never the newest or the best; and what a crash left."""
    steps = list(complete_checkpoints(folder))
    spared = set(steps if limit is None else steps[-limit:]) | {best_step}
    try:
        for step in steps:
            if step not in spared:
                # Renamed first: a half-deleted folder must not bear a checkpoint's name.
                _remove(folder / f".old-step-{step}")
                os.rename(folder / f"step-{step}", folder / f".old-step-{step}")
        for path in [*folder.glob(".old-step-*"), *folder.glob(".tmp-step-*")]:
            shutil.rmtree(path)
    except OSError as error:
        message = explain("An old checkpoint could not be removed", where=str(folder), got=str(error))
        warnings.warn(message, stacklevel=3)


def _cannot_save(folder: Path, step: int, error: Exception) -> str:
    newest = latest(folder)
    kept = f"the newest complete checkpoint is {newest}" if newest else "there is no earlier checkpoint"
    return explain(
        f"The checkpoint of step {step} could not be written; {kept}",
        where=str(folder),
        got=str(error) or type(error).__name__,
        fix="Free disk space or give write permission (or set another train.output_dir), then resume the run.",
    )


def _cannot_load(path: Path, wrong: str) -> str:
    newest = latest(path.parent)
    fix = (
        f"Resume from {newest}, the newest complete checkpoint." if newest else "There is no complete checkpoint here."
    )
    return explain("The checkpoint cannot be loaded", where=str(path), got=wrong, fix=fix)
