"""The folder of one run: where everything about it is written, and how it is found again.

It knows names of files, not what is in a checkpoint.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.errors import CheckpointError, explain
from mmgrpo.observe.atomic import cannot_write, remove_abandoned, write_atomic
from mmgrpo.observe.environment import describe_environment


def scratch_run_folder() -> RunFolder:
    """Make a folder for a process whose records nobody reads; it goes when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="mmgrpo-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return RunFolder(path)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder that exists."""

    path: Path
    """The folder, absolute."""

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def origin(self) -> Path:
        """Where the configuration came from, versions, git commit, machine; one entry per start."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """One row per logged step."""
        return self.path / "metrics.jsonl"

    @property
    def completions(self) -> Path:
        """A sample of completions per logged step."""
        return self.path / "completions"

    @property
    def skipped_rows(self) -> Path:
        """Every row that was left out and why; there is no file where none was."""
        return self.path / "skipped_rows.jsonl"

    @property
    def checkpoints(self) -> Path:
        """What can be resumed, or loaded."""
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        """Evaluations with all their settings."""
        return self.path / "evaluations"

    def write_start(self, *, config: str, folder: Path, source: Path | None, facts: Mapping[str, Any]) -> None:
        """Write what is known when a run starts or is resumed.

        Args:
            config: The resolved configuration, as YAML. On resume an existing one is kept, until
                :meth:`replace_config`.
            folder: Where relative paths of the configuration start.
            source: The YAML that it came from, if any.
            facts: More to keep, for example the device.

        Raises:
            CheckpointError: The disk is full.
        """
        starts = self.starts()
        if not self.config.exists():
            write_atomic(self.config, config)
        entry = {"folder": str(folder), "source": str(source) if source else None, **describe_environment(), **facts}
        write_atomic(self.origin, json.dumps([*starts, entry], indent=2, default=str) + "\n")

    def replace_config(self, config: str, *, changed: Mapping[str, str]) -> None:
        """Make the configuration of this start that of the run, so that the next resume goes on with it.

        The one of before is kept as ``config.before-start-N.yaml``, and the newest entry of ``run.json`` says what has
        changed.

        Args:
            config: The resolved configuration, as YAML.
            changed: By key: old and new value.

        Raises:
            CheckpointError: The disk is full.
        """
        starts = self.starts()
        write_atomic(self.path / f"config.before-start-{len(starts)}.yaml", self.config.read_bytes())
        write_atomic(self.config, config)
        written = json.dumps([*starts[:-1], {**starts[-1], "changed": dict(changed)}], indent=2, default=str)
        write_atomic(self.origin, written + "\n")

    def remove_if_empty(self) -> bool:
        """Remove the folder of a start that came to nothing: no step, evaluation or checkpoint, no file of others.

        Returns:
            Whether it is gone.
        """
        found = {path.name for path in self.path.iterdir()}
        if not found <= {self.config.name, self.origin.name, self.metrics.name}:
            return False
        if self.metrics.exists() and self.metrics.stat().st_size:
            return False
        for name in found:
            (self.path / name).unlink()
        self.path.rmdir()
        return True

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Keep other processes from training in this folder; the system lets go when this one ends, however it ends.

        Raises:
            CheckpointError: Another one trains here: metrics would be mixed, and checkpoints removed by each other.
        """
        import fcntl  # not on Windows, where mmgrpo is not tested

        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            fix = "Wait for it or stop it, or start a run of its own."
            raise CheckpointError(
                explain("Another process trains in this run", where=str(self.path), fix=fix)
            ) from error
        except OSError:  # a file system without locks
            pass
        for folder in (self.path, self.evaluations, self.completions):
            remove_abandoned(folder)
        try:
            yield
        finally:
            os.close(handle)

    def starts(self) -> list[dict[str, Any]]:
        """Give what was written at each start; the last is the newest.

        Raises:
            CheckpointError: The file is damaged.
        """
        if not self.origin.exists():
            return []
        try:
            return json.loads(self.origin.read_text(encoding="utf-8"))
        except ValueError as error:
            fix = "Move it away; the run then resumes without its history."
            raise CheckpointError(explain("run.json is damaged", where=str(self.origin), fix=fix)) from error

    def base_folder(self) -> Path:
        """Give the folder where relative paths of the stored configuration start."""
        starts = self.starts()
        return Path(starts[-1]["folder"]) if starts else self.path


def create_run_folder(template: str, name: str) -> RunFolder:
    """Make the folder of a new run.

    Args:
        template: ``train.output_dir``; ``{name}`` stands for the run's name. Relative to the working folder.
        name: The run's name, usually that of its YAML.

    Returns:
        The folder; where it is taken, the next number is added: ``runs/count``, ``runs/count-2``, …

    Raises:
        CheckpointError: It cannot be made.
    """
    wanted = _place(template, name)
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(wanted, error) from error
    number = 1
    while True:
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir()
            return RunFolder(path)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise cannot_write(path, error) from error


def common_folder(template: str, name: str) -> RunFolder:
    """Make the folder that all evaluations of a model without a run share, unless it is there.

    Args:
        template: As for :func:`create_run_folder`.
        name: Of the model, whatever its characters.

    Returns:
        ``runs/eval-NAME``.

    Raises:
        CheckpointError: It cannot be made.
    """
    path = _place(template, "eval-" + re.sub(r"[^\w.-]+", "-", name).strip("-"))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return RunFolder(path)


def open_run_folder(path: str | Path) -> RunFolder:
    """Open the folder of an earlier run.

    Raises:
        CheckpointError: There is no such folder, or it is not a run folder.
    """
    folder = RunFolder(Path(path).expanduser().absolute())
    if not folder.path.is_dir():
        raise CheckpointError(explain("No such run folder", where=str(path), fix="Check the path."))
    if not folder.config.is_file():
        fix = "Give the folder that `mmgrpo train` made, not one inside it."
        raise CheckpointError(explain("Not a run folder: it has no config.yaml", where=str(path), fix=fix))
    return folder


def newest_run_folder(template: str, name: str) -> RunFolder:
    """Find the newest folder of a run's name.

    Args:
        template: ``train.output_dir``.
        name: The run's name.

    Returns:
        The one with the highest number.

    Raises:
        CheckpointError: There is none.
    """
    wanted = _place(template, name)
    numbered = re.compile(re.escape(wanted.name) + r"(?:-(\d+))?\Z")
    found = {
        int(match.group(1) or 1): path
        for path in (wanted.parent.iterdir() if wanted.parent.is_dir() else ())
        if (match := numbered.match(path.name)) and (path / "config.yaml").is_file()
    }
    if not found:
        fix = "Start it without --resume, or give its folder: --resume RUN_FOLDER."
        raise CheckpointError(explain("There is no run to resume", where=str(wanted), fix=fix))
    return RunFolder(found[max(found)])


def _place(template: str, name: str) -> Path:
    return Path(template.replace("{name}", name)).expanduser().absolute()
