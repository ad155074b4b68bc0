"""Open rows, whatever holds them: files, folders, tar shards, the hub, a package, a Python list, or code.

Chooses the reader by the path; how a row becomes a prompt is :mod:`mmgrpo.data.samples`' business.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.addresses import kind_of_ending
from mmgrpo.config.data import AUTO, Beeps, Clips, Files, Package, Scenes, Single
from mmgrpo.config.paths import nearest_path
from mmgrpo.data.formats.reading import RowFormat
from mmgrpo.data.formats.table import ROW_FORMATS
from mmgrpo.data.formats.user import load_format
from mmgrpo.data.json_file import json_rows
from mmgrpo.data.rows import CsvRows, JoinedRows, JsonLinesRows, ListedRows, RenamedRows, Rows, choose_rows
from mmgrpo.data.shards import shard_rows
from mmgrpo.data.shuffled_pairs import ShuffledPairRows
from mmgrpo.data.synthetic.beeps import BeepRows
from mmgrpo.data.synthetic.scenes import scene_rows
from mmgrpo.data.synthetic.videos import VideoRows
from mmgrpo.data.tables import TableRows, arrow_rows, loaded_rows, one_split, parquet_rows, saved_rows, streamed_rows
from mmgrpo.errors import DatasetError, explain, shorten

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SAVED = ("state.json", "dataset_dict.json")
_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": JsonLinesRows,
    ".ndjson": JsonLinesRows,
    ".json": json_rows,
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
}
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
        return (
            ShuffledPairRows(_made(source)) if isinstance(source, Clips) and source.shuffled_twins else _made(source)
        )
    seed = seed if source.seed is None else source.seed
    if isinstance(source, Package):
        return choose_rows(easy_vqa_rows(source.split), source.limit, seed=seed)
    source = _with_limit(source, base)
    form: RowFormat | str = source.format
    reader = None
    if form not in (AUTO, *ROW_FORMATS):
        user = load_format(source.format, folder=base, where="format")
        form, reader = user.form, user.open
    rows = _with_root(_open_path(source, base, reader), source.media_root, base)
    rows.format = form
    rows = choose_rows(_filled(rows), source.limit, seed=seed)
    rows = ShuffledPairRows(rows) if source.shuffled_twins else rows
    rows.controls_as_text = source.control_tokens == "text"
    return rows


def _with_limit(source: Files, base: Path) -> Files:
    """Read ``rows.jsonl#500`` as the first part and a limit of 500, unless a file has that name."""
    match = _LIMITED.fullmatch(source.path)
    if match is None or find_path(source.path, base).exists():
        return source
    if int(match["limit"]) < 1:
        raise DatasetError(
            explain(
                "The limit of rows is below 1",
                where=source.path,
                expected="1 or more",
                got=f"#{match['limit']}",
                fix="Leave it out to take all rows.",
            )
        )
    if source.limit is not None:
        raise DatasetError(
            explain(
                "The limit of rows is given twice",
                where=source.path,
                got=f"#{match['limit']} and limit: {source.limit}",
                fix="Remove one of them.",
            )
        )
    return source.model_copy(update={"path": match["path"], "limit": int(match["limit"])})


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
        return VideoRows(
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
            explain(
                "The media folder does not exist",
                where=f"media_root: {media_root}",
                got=str(root),
                fix=f"Did you mean {near}?" if (near := nearest_path(root)) else "",
            )
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


def _open_path(source: Files, base: Path, reader: Callable[[Path], Rows] | None) -> Rows:
    """Open what a path names, with a reader of the user's own where there is one; a stream applies ``limit``."""
    path = find_path(source.path, base)
    if reader is not None and path.exists():
        _refuse_parts(source, path)
        return _open_file(path, reader)
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
    near = nearest_path(path)
    fix = f"Did you mean {near}?" if near else "Correct the path."
    fix += " Paths start from the YAML's folder, then from the working folder; a hub id is written owner/name."
    raise DatasetError(explain("The data file does not exist", where=shorten(str(path), limit=1000), fix=fix))


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
    with contextlib.suppress(OSError, ValueError):  # a name that is too long, or holds a NUL
        for place in places:
            if place.exists() or _shards(place) or _matching(place):
                return place.absolute()
    return places[0].absolute()


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
    """Offer the ``file_name`` of a metadata file as a column of its kind of media, row by row."""
    if "file_name" not in rows.columns or not len(rows):
        return rows
    names = [kind_of_ending(str(name)) or "image" for name in rows.column("file_name")]
    return RenamedRows(rows, column="file_name", names=names)


def easy_vqa_rows(split: Literal["train", "test"] = "train") -> ListedRows:
    """Open the questions of one split.

    Args:
        split: "train" has 38,575 questions on 4,000 images, "test" 9,673 on 1,000.

    Returns:
        Rows with the columns image (a path inside the package), problem and solution.

    Raises:
        DatasetError: The package is not installed.
    """
    try:
        import easy_vqa
    except ImportError as error:
        raise DatasetError(
            explain("The package easy-vqa is not installed", fix="Run: pip install easy-vqa")
        ) from error
    questions = easy_vqa.get_train_questions() if split == "train" else easy_vqa.get_test_questions()
    images = easy_vqa.get_train_image_paths() if split == "train" else easy_vqa.get_test_image_paths()
    base = Path(easy_vqa.__file__).parent
    places = {number: str(Path(path).resolve().relative_to(base.resolve())) for number, path in images.items()}
    rows = [
        {"image": places[number], "problem": question, "solution": answer}
        for question, answer, number in zip(*questions, strict=True)
    ]
    return ListedRows(rows, name=f"easy-vqa {split}", base=base)
