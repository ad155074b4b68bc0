"""What holds rows on disk or on the hub: single files, folders, tar shards. Chooses the reader by the path.

How a row becomes a prompt is not known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from mmgrpo.addresses import kind_of_ending
from mmgrpo.config.data import Files
from mmgrpo.data.jsonfile import LARGE_BYTES, JsonRows
from mmgrpo.data.lazy import JoinedRows, ListedRows, Rows
from mmgrpo.data.lines import CsvRows, JsonLinesRows, RenamedRows
from mmgrpo.data.shards import shard_rows
from mmgrpo.data.tables import arrow_rows, loaded_rows, parquet_rows, saved_rows, streamed_rows
from mmgrpo.errors import DatasetError, explain

_LONGEST_LINE = 1 << 26
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SAVED = ("state.json", "dataset_dict.json")
_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")


def open_path(source: Files, base: Path) -> Rows:
    """Open what a path names.

    Args:
        source: The section; its ``limit`` is not applied here, but for a stream.
        base: Folder that relative paths start from.

    Raises:
        DatasetError: Missing, unreadable or malformed.
    """
    path = find_path(source.path, base)
    shards = _shards(path)
    if shards:
        return shard_rows(shards, name=str(path))
    if path.is_dir():
        return _open_folder(path, source)
    reader = _READERS.get(path.suffix.lower())
    several = _matching(path)
    if several and reader:
        _refuse_parts(source, path)
        return JoinedRows([_open_file(file, reader) for file in several], name=str(path), base=path.parent)
    if path.is_file() and reader:
        _refuse_parts(source, path)
        return _open_file(path, reader)
    if path.is_file():
        raise DatasetError(
            explain(
                "The data file is of an unknown kind",
                where=str(path),
                expected=f"a name that ends in {', '.join([*_READERS, '.tar'])}",
                got=path.suffix or "no ending",
            )
        )
    if not reader and _HUB_ID.fullmatch(source.path):
        return _open_hub(source)
    raise DatasetError(
        explain(
            "The data file does not exist",
            where=str(path),
            fix="Correct the path: relative ones start from the YAML's folder, then from the working folder; a hub id "
            "is written owner/name.",
        )
    )


def find_path(path: str, base: Path) -> Path:
    """Resolve a path of the configuration: absolute, else from ``base``, else from the working folder.

    Args:
        path: As written; ``~`` stands for the home folder, and the last part may hold ``*``.
        base: The YAML's folder.

    Returns:
        The first that exists; where none does, the one from ``base``.
    """
    written = Path(path).expanduser()
    places = [written] if written.is_absolute() else [base / written, Path.cwd() / written]
    return next(
        (place for place in places if place.exists() or _shards(place) or _matching(place)), places[0]
    ).absolute()


def _matching(path: Path) -> list[Path]:
    """List the files that a pattern names; none for a path without ``*``, or where a file has that very name."""
    return sorted(path.parent.glob(path.name)) if "*" in path.name and not path.exists() else []


def _shards(path: Path) -> list[Path]:
    """List the tar files that a path names: one, a pattern, or a folder of nothing else."""
    if path.suffix.lower() == ".tar" and "*" in path.name:
        return sorted(path.parent.glob(path.name))
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]
        return files if files and all(file.suffix.lower() == ".tar" for file in files) else []
    return [path] if path.suffix.lower() == ".tar" and path.is_file() else []


def _open_hub(source: Files) -> Rows:
    if not source.streaming:
        return loaded_rows(source.path, split=source.split, config=source.config, revision=source.revision)
    if source.limit is None:
        raise DatasetError(
            explain(
                "A stream needs to know how many rows to take",
                where=source.path,
                fix="Set limit beside streaming: true; rows are drawn in a seeded order, which a stream has not.",
            )
        )
    return streamed_rows(
        source.path, split=source.split, config=source.config, revision=source.revision, limit=source.limit
    )


def _refuse_parts(source: Files, path: Path) -> None:
    """Refuse keys that mean nothing for one file, or a user would believe that they chose a part of it."""
    if source.split != "train" or source.config is not None or source.revision is not None or source.streaming:
        raise DatasetError(
            explain(
                "One file has no splits, configurations or revisions, and is no stream",
                where=str(path),
                got=f"split: {source.split}, config: {source.config}, revision: {source.revision}, "
                f"streaming: {str(source.streaming).lower()}",
                fix="Remove these keys, and name the file of the split that you want.",
            )
        )


def _open_file(path: Path, reader: Callable[[Path], Rows]) -> Rows:
    try:
        return reader(path)
    except OSError as error:
        raise DatasetError(explain("The data file cannot be read", where=str(path), got=str(error))) from error


def _open_folder(path: Path, source: Files) -> Rows:
    if source.streaming:
        fix = "Remove streaming: rows of a local folder are read one by one as they are."
        raise DatasetError(explain("A folder is no stream", where=str(path), fix=fix))
    if any((path / name).is_file() for name in _SAVED):
        return saved_rows(path, split=source.split)
    for folder in (path / source.split, path):
        for name in _METADATA:
            if (folder / name).is_file():
                return _with_files(_open_file(folder / name, _READERS[Path(name).suffix]))
    return loaded_rows(str(path), split=source.split, base=path)


def _with_files(rows: Rows) -> Rows:
    """Offer the ``file_name`` of a metadata file as a column of its kind of medium, row by row."""
    if "file_name" not in rows.columns or not len(rows):
        return rows
    names = [kind_of_ending(str(name)) or "image" for name in rows.column("file_name")]
    return RenamedRows(rows, column="file_name", names=names)


def _json_rows(path: Path) -> Rows:
    """Read a list of rows; many a file of that name holds one row per line instead, and is read so."""
    if path.stat().st_size >= LARGE_BYTES:
        return JsonLinesRows(path) if _first_line_is_a_row(path) else JsonRows(path)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        if _first_line_is_a_row(path):
            return JsonLinesRows(path)
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


def _first_line_is_a_row(path: Path) -> bool:
    """Tell whether the first line is an object of its own, and more lines follow."""
    with path.open("rb") as file:
        first = b"\n"
        while first and not first.strip():
            first = file.readline(_LONGEST_LINE)
        follows = any(line.strip() for line in file) if first.endswith(b"\n") else False
    try:
        return follows and isinstance(json.loads(first.removeprefix(b"\xef\xbb\xbf")), dict)
    except (ValueError, RecursionError):
        return False


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": JsonLinesRows,
    ".ndjson": JsonLinesRows,
    ".json": _json_rows,
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
}
