"""Samples to one parquet file that carries its media: read back, it gives the same samples.

Its own columns are named in :mod:`mmgrpo.data.formats.table`; all columns for rewards keep their names and, where
arrow can hold them exactly, their types.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.data.formats.table import ANSWER, ID, JSON, MEDIA, MESSAGES
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.row_errors import with_row
from mmgrpo.errors import DatasetError, MediaError, explain
from mmgrpo.types import Media, Sample

_BATCH = 64
SerializeMedia = Callable[[Media], tuple[list[bytes], bool, float | None]]
"""A media item to its bytes, or to those of its frames; whether it has frames; and its rate."""


def write_parquet(
    samples: AnySamples,
    out: Path,
    *,
    encoded: SerializeMedia,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write all samples; the file appears when it is whole.

    Args:
        samples: What to write.
        out: The file.
        encoded: Gives one media item as bytes or as those of its frames, whether it has frames, and its rate.
        progress: Told how many rows are written, and of how many.

    Returns:
        Rows written.

    Raises:
        DatasetError: A row is malformed, or a column holds what neither arrow nor JSON can.
        MediaError: A media item cannot be read.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    plan = _plan(samples)
    schema = pa.schema([*((name, kind) for name, kind in plan.items()), (MEDIA, _media_type())])
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=out.parent, suffix=".part", delete=False) as file:
        partial = Path(file.name)
    try:
        with ParquetWriter(str(partial), schema) as writer:
            for start in range(0, len(samples), _BATCH):
                rows = range(start, min(start + _BATCH, len(samples)))
                writer.write_table(pa.table(_columns(samples, rows, list(plan), encoded), schema=schema))
                if progress is not None:
                    progress(rows.stop, len(samples))
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    return len(samples)


def _media_type() -> Any:
    import pyarrow as pa

    fields = [("kind", pa.string()), ("rate", pa.float64()), ("name", pa.string()), ("frames", pa.bool_())]
    return pa.list_(pa.struct([*fields, ("bytes", pa.list_(pa.binary()))]))


def _plan(samples: AnySamples) -> dict[str, Any]:
    """Choose the type of every column but the media: one look at all rows, without their media."""
    import pyarrow as pa

    values: dict[str, list[Any]] = {name: [] for name in samples.columns}
    for count, sample in enumerate(samples):
        for name in sample.extras.keys() | values.keys():
            values.setdefault(name, [None] * count).append(_listed(sample.extras.get(name)))
    plan: dict[str, Any] = {MESSAGES: pa.string(), ANSWER: pa.string(), ID: pa.string()}
    for name, column in values.items():
        kind = _exact_type(column)
        if kind is not None:
            plan[name] = kind
        else:
            _check_json(name, column)
            plan[f"{name}{JSON}"] = pa.string()
    return plan


def _listed(value: Any) -> Any:
    """Write tuples and arrays as lists, which is how any file gives them back."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_listed(one) for one in value]
    return {key: _listed(one) for key, one in value.items()} if isinstance(value, dict) else value


def _exact_type(column: Sequence[Any]) -> Any:
    """Find the arrow type that gives these very values back; None: there is none."""
    import pyarrow as pa

    try:
        array = pa.array(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    same = repr(array.to_pylist()) == repr(list(column))  # 0.0 == False, but they are not the same
    plain = not any(word in str(array.type) for word in ("struct", "null"))  # parquet has neither when empty
    return array.type if same and plain else None


def _check_json(name: str, column: Sequence[Any]) -> None:
    for value in column:
        try:
            same = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            same = False
        if not same:
            raise DatasetError(
                explain(
                    "A column holds what a parquet file cannot",
                    where=f"column {name}",
                    expected="text, numbers, booleans, lists and mappings",
                    got=repr(value)[:80],
                    fix="Write it as text or numbers, or leave the column out.",
                )
            )


def _columns(
    samples: AnySamples, numbers: Sequence[int], names: Sequence[str], encoded: SerializeMedia
) -> dict[str, list[Any]]:
    rows = [samples[i] for i in numbers]
    written = {
        MESSAGES: [json.dumps(row.messages, ensure_ascii=True) for row in rows],
        ANSWER: [json.dumps(_listed(row.answer)) for row in rows],
        ID: [row.id for row in rows],
        MEDIA: [_carried(row, encoded, samples.where(i)) for i, row in zip(numbers, rows, strict=True)],
    }
    columns: dict[str, list[Any]] = {}
    for name in [*names, MEDIA]:
        if name in written:
            columns[name] = written[name]
        elif name.endswith(JSON):
            columns[name] = [json.dumps(_listed(row.extras.get(name.removesuffix(JSON)))) for row in rows]
        else:
            columns[name] = [_listed(row.extras.get(name)) for row in rows]
    return columns


def _carried(row: Sample, encoded: SerializeMedia, where: str) -> list[dict[str, Any]]:
    carried = []
    for item in row.media:
        try:
            pieces, frames, rate = encoded(item)
        except MediaError as error:
            raise MediaError(with_row(str(error), where)) from error
        carried.append({"kind": item.kind, "rate": rate, "name": item.name, "frames": frames, "bytes": pieces})
    return carried
