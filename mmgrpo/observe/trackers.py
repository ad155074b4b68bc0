"""TensorBoard, Trackio and Weights & Biases, each behind the sink protocol.

A tracker that is not installed is an error before training; one that fails later is warned about once, and the run
goes on without it: ``metrics.jsonl`` has everything. The libraries are imported only when they are asked for.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import ConfigError, explain

if TYPE_CHECKING:
    from mmgrpo.contracts import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class RunName:
    """What a tracker is told about the run."""

    name: str
    """Name of the run: its folder's name."""
    folder: Path
    """The run folder."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The resolved configuration as plain values, for the tracker's overview."""
    last_step: int | None = None
    """On resume, the last step that the checkpoint holds; None: a new run."""
    project: str = "mmgrpo"
    """Under which the tracker files the run."""

    @property
    def resumed(self) -> bool:
        """Whether an earlier run goes on."""
        return self.last_step is not None


class TensorBoardSink:
    """Writes event files to ``tensorboard/`` in the run folder."""

    def __init__(self, run: RunName) -> None:
        """Open the event file; on resume TensorBoard hides what will be computed again."""
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        purge = None if run.last_step is None else run.last_step + 1
        self._writer = writer(log_dir=str(run.folder / "tensorboard"), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each metric as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class TrackioSink:
    """Writes to Trackio's local database (or to wherever its own settings say)."""

    def __init__(self, run: RunName) -> None:
        """Start or go on with the run of this name."""
        library = importlib.import_module("trackio")
        self._run = library.init(
            project=run.project,
            name=run.name,
            config=dict(run.config),
            resume="allow" if run.resumed else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one row."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and end the run."""
        self._run.finish()


class WandbSink:
    """Writes to Weights & Biases; files go to the run folder.

    The step travels as a metric that all others are drawn over: W&B throws rows away whose own step falls.
    """

    def __init__(self, run: RunName) -> None:
        """Start or go on with the run of this folder."""
        library = importlib.import_module("wandb")
        identity = run.folder / "wandb_id"
        known = identity.read_text(encoding="utf-8").strip() if run.resumed and identity.exists() else None
        self._run = library.init(
            project=run.project, name=run.name, id=known, resume="allow", dir=str(run.folder), config=dict(run.config)
        )
        identity.write_text(str(self._run.id), encoding="utf-8")
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one row."""
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        """Upload what is left and end the run."""
        self._run.finish()


class Guarded:
    """A tracker that may fail: the first failure is warned about, and the tracker is left alone from then on."""

    def __init__(self, name: str, start: Callable[[], Sink]) -> None:
        """Start the tracker.

        Args:
            name: How the warning calls it.
            start: Makes the sink.
        """
        self._name = name
        self._sink: Sink | None = None
        self._sink = self._safely(start)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand one row on."""
        if self._sink is not None:
            self._safely(self._sink.log, step, metrics)

    def close(self) -> None:
        """Close it."""
        if self._sink is not None:
            self._safely(self._sink.close)

    def _safely(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:  # the network edge: whatever a tracker raises must not end a run
            self._sink = None
            told = f"{self._name} failed and is switched off; metrics.jsonl has all metrics ({error!r})"
            warnings.warn(told, RuntimeWarning, stacklevel=4)
            return None


_TRACKERS: Mapping[str, tuple[str, "Callable[[RunName], Sink]"]] = {
    "tensorboard": ("tensorboard", TensorBoardSink),
    "trackio": ("trackio", TrackioSink),
    "wandb": ("wandb", WandbSink),
}


def open_tracker(name: str, run: RunName) -> Sink:
    """Start one tracker of ``observe.report_to``.

    Args:
        name: "tensorboard", "trackio" or "wandb".
        run: What it is told about the run.

    Returns:
        A sink that never raises.

    Raises:
        ConfigError: The tracker is not known, or not installed.
    """
    if name not in _TRACKERS:
        raise ConfigError(
            explain("Unknown tracker", where="observe.report_to", expected=", ".join(_TRACKERS), got=name)
        )
    module, make = _TRACKERS[name]
    try:
        importlib.import_module(module)
    except ImportError as error:
        fix = f'Install it with pip install "mmgrpo[track]", or remove {name} from observe.report_to.'
        raise ConfigError(explain(f"{name} is not installed", where="observe.report_to", fix=fix)) from error
    return Guarded(name, lambda: make(run))
