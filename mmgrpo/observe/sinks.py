"""Where metrics go: always a JSONL file, and whatever trackers were asked for.

A sink gets a step and plain numbers. It does not know what they mean, nor when a step ends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.observe.atomic import cannot_write, write_atomic

if TYPE_CHECKING:
    from mmgrpo.contracts import Sink


class JsonlSink:
    """Writes ``metrics.jsonl``: one JSON object per row, ``step`` first.

    A number that is not finite is written as null, and named under ``not_finite`` (``{"loss": "nan"}``), so that
    every reader of JSON can read the file and nothing is hidden. Each row is in the file at once.
    """

    def __init__(self, path: str | Path, *, last_step: int | None = None) -> None:
        """Open the file.

        Args:
            path: The file; rows are added at its end.
            last_step: On resume, the last step that the checkpoint holds. Rows after it (they will be computed
                again), and a last line that was cut off, move to ``metrics.replaced.jsonl``.

        Raises:
            CheckpointError: The file cannot be written.
        """
        self.path = Path(path)
        if last_step is not None and self.path.exists():
            _keep_through(self.path, last_step)
        try:
            self._file = self.path.open("ab", buffering=0)  # unbuffered: after a full disk nothing is left to write
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one row.

        Raises:
            CheckpointError: The disk is full.
        """
        rest = f"{json.dumps(row(step, metrics), allow_nan=False)}\n".encode()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Sinks:
    """Several sinks as one. Steps never fall: a row that comes late is written at the last step, and says so."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        """Take the sinks; each gets every row."""
        self._sinks = tuple(sinks)
        self._last = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand a row to every sink; a step lower than the last one is kept as the metric ``late_step``."""
        if step < self._last:
            step, metrics = self._last, {**metrics, "late_step": float(step)}
        self._last = step
        for sink in self._sinks:
            sink.log(step, metrics)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()


def row(step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Build the JSON object of one row.

    Example:
        >>> row(3, {"reward": 0.5, "kl": float("inf")})
        {'step': 3, 'reward': 0.5, 'kl': None, 'not_finite': {'kl': 'inf'}}
    """
    odd = {name: str(float(value)) for name, value in metrics.items() if not math.isfinite(value)}
    plain = {name: None if name in odd else _number(value) for name, value in metrics.items()}
    return {"step": int(step), **plain, **({"not_finite": odd} if odd else {})}


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read a ``metrics.jsonl``; a last line that was cut off is left out.

    Args:
        path: The file.

    Returns:
        Its rows, with the numbers under ``not_finite`` back in their places.

    Raises:
        FileNotFoundError: There is no such file.
    """
    rows: list[dict[str, Any]] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        found = _parsed(line)
        if found is not None:
            odd = found.pop("not_finite", {})
            rows.append({**found, **{name: float(text) for name, text in odd.items()}})
    return rows


def _number(value: float) -> float | int:
    return int(value) if isinstance(value, int) else float(value)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None


def _keep_through(path: Path, last_step: int) -> None:
    """Move the rows after ``last_step``, and lines that are no rows, to a file beside."""
    kept: list[str] = []
    moved: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="backslashreplace").splitlines():
        found = _parsed(line)
        (kept if found is not None and found["step"] <= last_step else moved).append(line)
    if moved:
        beside = path.with_name(f"{path.stem}.replaced{path.suffix}")
        earlier = beside.read_text(encoding="utf-8") if beside.exists() else ""
        write_atomic(beside, earlier + "".join(f"{line}\n" for line in moved))
        write_atomic(path, "".join(f"{line}\n" for line in kept))
