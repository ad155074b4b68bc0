"""Open rows, whatever holds them: files, folders, the hub, a package, a Python list, or code.

Chooses the reader; how a row becomes a prompt is :mod:`mmgrpo.data.samples`' business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.config.data import Files, Package, Scenes, Source
from mmgrpo.data.easy_vqa import easy_vqa_rows
from mmgrpo.data.lazy import ListedRows, Rows, choose
from mmgrpo.data.lines import CsvRows, JsonLinesRows, RenamedRows
from mmgrpo.data.synthetic.counting import scene_rows
from mmgrpo.data.tables import TableRows, arrow_rows, loaded_rows, one_split, parquet_rows, saved_rows
from mmgrpo.errors import DatasetError, explain

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SAVED = ("state.json", "dataset_dict.json")
_METADATA = ("metadata.jsonl", "metadata.csv")


def open_rows(source: Source, *, base: Path, seed: int = 0) -> Rows:
    """Open the rows that a configuration names.

    Args:
        source: A files, scenes or package section.
        base: Folder that relative paths start from (that of the YAML); the working folder comes second.
        seed: Chooses the rows under ``limit``.

    Returns:
        Lazy rows, at least one.

    Raises:
        DatasetError: Missing, unreadable, malformed or empty.
    """
    if isinstance(source, Scenes):
        return _scenes(source)
    if isinstance(source, Package):
        return choose(easy_vqa_rows(source.split), source.limit, seed=seed)
    rows = _with_root(_open_path(source, base), source.media_root, base)
    return choose(_filled(rows), source.limit, seed=seed)


def rows_from_python(
    rows: Any, *, name: str = "the given rows", base: Path | None = None, split: str = "train"
) -> Rows:
    """Take rows given in Python.

    Args:
        rows: A list of dictionaries, a ``datasets.Dataset``, a dictionary of such splits, or rows opened before.
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


def find_path(path: str, base: Path) -> Path:
    """Resolve a path of the configuration: absolute, else from ``base``, else from the working folder.

    Args:
        path: As written; ``~`` stands for the home folder.
        base: The YAML's folder.

    Returns:
        The first that exists; where none does, the one from ``base``.
    """
    written = Path(path).expanduser()
    places = [written] if written.is_absolute() else [base / written, Path.cwd() / written]
    return next((place for place in places if place.exists()), places[0]).absolute()


def _scenes(source: Scenes) -> Rows:
    return scene_rows(
        source.rows,
        seed=source.seed,
        image_size=source.image_size,
        min_objects=source.min_objects,
        max_objects=source.max_objects,
        max_hidden=source.max_hidden,
    )


def _open_path(source: Files, base: Path) -> Rows:
    path = find_path(source.path, base)
    if path.is_dir():
        return _open_folder(path, source)
    reader = _READERS.get(path.suffix.lower())
    if path.is_file() and reader:
        _refuse_parts(source, path)
        return _open_file(path, reader)
    if path.is_file():
        raise DatasetError(
            explain(
                "The data file is of an unknown kind",
                where=str(path),
                expected=f"a name that ends in {', '.join(_READERS)}",
                got=path.suffix or "no ending",
            )
        )
    if not reader and _HUB_ID.fullmatch(source.path):
        return loaded_rows(source.path, split=source.split, config=source.config, revision=source.revision)
    raise DatasetError(
        explain(
            "The data file does not exist",
            where=str(path),
            fix="Check data.train.path or data.eval.path: relative paths start from the YAML's folder, then from the "
            "working folder; a hub id is written owner/name.",
        )
    )


def _refuse_parts(source: Files, path: Path) -> None:
    """Refuse keys that mean nothing for one file, or a user would believe that they chose a part of it."""
    if source.split != "train" or source.config is not None or source.revision is not None:
        raise DatasetError(
            explain(
                "One file has no splits, configurations or revisions",
                where=str(path),
                got=f"split: {source.split}, config: {source.config}, revision: {source.revision}",
                fix="Remove these keys, and name the file of the split that you want.",
            )
        )


def _open_file(path: Path, reader: Callable[[Path], Rows]) -> Rows:
    try:
        return reader(path)
    except OSError as error:
        raise DatasetError(explain("The data file cannot be read", where=str(path), got=str(error))) from error


def _open_folder(path: Path, source: Files) -> Rows:
    if any((path / name).is_file() for name in _SAVED):
        return saved_rows(path, split=source.split)
    for folder in (path / source.split, path):
        for name in _METADATA:
            if (folder / name).is_file():
                rows = _open_file(folder / name, _READERS[Path(name).suffix])
                return RenamedRows(rows, column="file_name", name="image") if "file_name" in rows.columns else rows
    return loaded_rows(str(path), split=source.split, base=path)


def _json_rows(path: Path) -> Rows:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DatasetError(explain("The file is not valid JSON", where=str(path), got=str(error))) from error
    lists = (
        [value for value in content.values() if isinstance(value, list)] if isinstance(content, dict) else [content]
    )
    if len(lists) != 1 or not isinstance(lists[0], list) or not all(isinstance(row, dict) for row in lists[0]):
        raise DatasetError(
            explain(
                "The JSON file does not hold rows",
                where=str(path),
                expected='a list of objects, or an object with one such list, for example {"data": [...]}',
                got=type(content).__name__,
                fix="One object per line is JSONL: name the file .jsonl.",
            )
        )
    return ListedRows(lists[0], name=str(path), base=path.parent)


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": JsonLinesRows,
    ".ndjson": JsonLinesRows,
    ".json": _json_rows,
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
}


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
