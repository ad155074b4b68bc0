"""Open rows, whatever holds them: files, folders, the hub, a package, a Python list, or code.

Chooses the reader; how a row becomes a prompt is :mod:`mmgrpo.data.samples`' business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.config.data import Beeps, Clips, Files, Package, Scenes, Single
from mmgrpo.data.containers import find_path, open_path
from mmgrpo.data.easy_vqa import easy_vqa_rows
from mmgrpo.data.lazy import ListedRows, Rows, choose
from mmgrpo.data.synthetic.beeps import BeepRows
from mmgrpo.data.synthetic.clips import ClipRows
from mmgrpo.data.synthetic.counting import scene_rows
from mmgrpo.data.tables import TableRows, one_split
from mmgrpo.data.twins import TwinRows
from mmgrpo.errors import DatasetError, explain

_LIMITED = re.compile(r"(?P<path>.+)#(?P<limit>-?[0-9]+)")


def open_rows(source: Single, *, base: Path, seed: int = 0) -> Rows:
    """Open the rows of one source.

    Args:
        source: A files, scenes or package section.
        base: Folder that relative paths start from (that of the YAML); the working folder comes second.
        seed: Chooses the rows under ``limit``, unless the source has a seed of its own.

    Returns:
        Lazy rows, at least one.

    Raises:
        DatasetError: Missing, unreadable, malformed or empty.
    """
    if isinstance(source, Scenes | Beeps | Clips):
        return TwinRows(_made(source)) if isinstance(source, Clips) and source.shuffled_twins else _made(source)
    seed = seed if source.seed is None else source.seed
    if isinstance(source, Package):
        return choose(easy_vqa_rows(source.split), source.limit, seed=seed)
    source = _with_limit(source, base)
    rows = _with_root(open_path(source, base), source.media_root, base)
    rows.format = source.format
    rows = choose(_filled(rows), source.limit, seed=seed)
    return TwinRows(rows) if source.shuffled_twins else rows


def _with_limit(source: Files, base: Path) -> Files:
    """Read ``rows.jsonl#500`` as the first part and a limit of 500, unless a file has that name."""
    found = _LIMITED.fullmatch(source.path)
    if found is None or find_path(source.path, base).exists():
        return source
    if int(found["limit"]) < 1:
        raise DatasetError(
            explain(
                "The limit of rows is below 1",
                where=source.path,
                expected="1 or more",
                got=f"#{found['limit']}",
                fix="Leave it out to take all rows.",
            )
        )
    if source.limit is not None:
        raise DatasetError(
            explain(
                "The limit of rows is said twice",
                where=source.path,
                got=f"#{found['limit']} and limit: {source.limit}",
                fix="Remove one of them.",
            )
        )
    return source.model_copy(update={"path": found["path"], "limit": int(found["limit"])})


def rows_from_python(
    rows: Any, *, name: str = "the given rows", base: Path | None = None, split: str = "train"
) -> Rows:
    """Take rows given in Python.

    Args:
        rows: A list of dictionaries, a ``datasets.Dataset``, a dictionary of such splits, a data frame of pandas, or
            rows opened before.
        name: What messages call them.
        base: Folder that relative media paths start from; default: the working folder.
        split: Which split of a dictionary of splits.

    Returns:
        Rows, at least one.

    Raises:
        DatasetError: Of another kind, or empty.

    Example:
        >>> rows_from_python([{"problem": "1 + 1?", "solution": "2"}]).columns
        ('problem', 'solution')
    """
    folder = base or Path.cwd()
    if isinstance(rows, Rows):
        return _filled(rows)
    if hasattr(rows, "iloc") and hasattr(rows, "to_dict"):
        held = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return rows_from_python(held, name=name, base=base)
    if isinstance(rows, Mapping) and any(isinstance(column, list) for column in rows.values()):
        fix = "Write datasets.Dataset.from_dict(columns), or a list with a dictionary for each row."
        raise DatasetError(explain("These are columns, not rows", where=name, got=", ".join(map(repr, rows)), fix=fix))
    if isinstance(rows, Mapping):
        return rows_from_python(one_split(rows, split, name), name=f"{name} ({split})", base=base)
    if hasattr(rows, "with_format") and hasattr(rows, "column_names") and hasattr(rows, "__len__"):
        return _filled(TableRows(rows, name=name, base=folder))
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        wrong = next((i for i, row in enumerate(rows) if not isinstance(row, Mapping)), None)
        if wrong is None:
            return _filled(ListedRows(rows, name=name, base=folder))
        raise DatasetError(_not_rows(f"{type(rows).__name__} of {type(rows[wrong]).__name__}", f"{name}, row {wrong}"))
    raise DatasetError(_not_rows(type(rows).__name__, name))


def _made(source: Scenes | Beeps | Clips) -> Rows:
    if isinstance(source, Beeps):
        return BeepRows(
            source.rows,
            seed=source.seed,
            seconds=source.seconds,
            min_beeps=source.min_beeps,
            max_beeps=source.max_beeps,
            noise=source.noise,
        )
    if isinstance(source, Clips):
        return ClipRows(
            source.rows,
            seed=source.seed,
            question=source.question,
            image_size=source.image_size,
            frames=source.frames,
            fps=source.fps,
            blinks=(source.min_blinks, source.max_blinks),
        )
    return scene_rows(
        source.rows,
        seed=source.seed,
        image_size=source.image_size,
        min_objects=source.min_objects,
        max_objects=source.max_objects,
        max_hidden=source.max_hidden,
    )


def _with_root(rows: Rows, media_root: str | None, base: Path) -> Rows:
    if media_root is None:
        return rows
    root = find_path(media_root, base)
    if not root.is_dir():
        raise DatasetError(
            explain("The media folder does not exist", where=f"media_root: {media_root}", got=str(root))
        )
    rows.base, rows.confined = root, True
    return rows


def _filled(rows: Rows) -> Rows:
    if len(rows):
        return rows
    raise DatasetError(
        explain("The dataset is empty", where=rows.name, expected="at least one row", fix="Check the path and split.")
    )


def _not_rows(got: str, where: str) -> str:
    return explain(
        "These are not rows",
        where=where,
        expected="a list of dictionaries or a datasets.Dataset",
        got=got,
        fix="Turn a stream or a table into a list of dictionaries first, for example with list(rows).",
    )
