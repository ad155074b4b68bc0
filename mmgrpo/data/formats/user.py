"""A format of a user's own: a file that only they know how to read, or rows whose columns mean something else.

The plug-in is a function from a row to a row in a form that mmgrpo knows, or a class with ``read`` (the same) and
``open`` (a path to rows), of which it needs one. Knows nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.reading import ParsedRow, RowFormat
from mmgrpo.data.formats.table import detect
from mmgrpo.data.rows import ListedRows, Row, Rows
from mmgrpo.errors import ConfigError, DatasetError, explain, shorten
from mmgrpo.plugins import build_object, load_object, plugin_errors

_FIX = "Correct the plug-in, or leave the row out."


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFormat:
    """What a plug-in offers."""

    form: RowFormat | str
    """How its rows are read; "auto" where it only opens files."""
    open: Callable[[Path], Rows] | None
    """Opens a file of its kind; None: files are opened as ever."""


def load_format(spec: str, *, folder: Path, where: str) -> UserFormat:
    """Load a format that a YAML names.

    Args:
        spec: ``path.py:name``, ``module:name``, or an installed entry point of the group ``mmgrpo.formats``.
        folder: Folder of the YAML.
        where: The key of the YAML, for messages.

    Raises:
        ConfigError: It cannot be loaded, or offers neither ``read`` nor ``open``.
    """
    target = load_object(spec, kind="formats", folder=folder, where=where)
    built = build_object(target, {}, spec=spec, where=where)
    read, open_file = getattr(built, "read", None), getattr(built, "open", None)
    if read is None and open_file is None and callable(built):
        read = built
    if read is None and open_file is None:
        expected = "a function from a row to a row, or a class with read(row) or open(path)"
        raise ConfigError(explain("This is no format", where=where, expected=expected, got=shorten(spec)))
    form = AUTO if read is None else RowFormat(name=spec, custom=_reader(spec, read), checks_columns=False)
    return UserFormat(form=form, open=None if open_file is None else _opener(spec, open_file))


def _reader(spec: str, read: Callable[[dict[str, Any]], Any]) -> Callable[[Row, Columns, str, RowFormat], ParsedRow]:
    def parse(row: Row, columns: Columns, where: str, form: RowFormat) -> ParsedRow:
        """Let the plug-in translate the row, and read what it gives back by the form that this has."""
        with plugin_errors(f"{form.name} raised while it read a row", where=where, fix=_FIX, error=DatasetError):
            translated = read(dict(row))
        if not isinstance(translated, Mapping):
            expected, got = "a dictionary of columns", type(translated).__name__
            raise DatasetError(explain(f"{spec} gave no row", where=where, expected=expected, got=got, fix=_FIX))
        known = detect(list(translated), columns, lambda: [translated], f"{where}, as {spec} gave it")
        parsed = known.read(translated, columns, where)
        return replace(parsed, added={**translated, **parsed.added})

    return parse


def _opener(spec: str, open_file: Callable[[Path], Iterable[Any]]) -> Callable[[Path], Rows]:
    def open_rows(path: Path) -> Rows:
        """Let the plug-in open a file; its rows are held in memory, unless they are a sequence that reads lazily."""
        with plugin_errors(f"{spec} raised while it opened a file", where=str(path), fix=_FIX, error=DatasetError):
            rows = open_file(path)
            rows = rows if isinstance(rows, Rows | list | tuple) else list(rows)
        if isinstance(rows, Rows):
            return rows
        wrong = next((i for i, row in enumerate(rows) if not isinstance(row, Mapping)), None)
        if wrong is not None:
            got = type(rows[wrong]).__name__
            expected = "a dictionary for each row"
            raise DatasetError(
                explain(f"{spec} gave no rows", where=f"{path}, row {wrong}", expected=expected, got=got)
            )
        return ListedRows(rows, name=str(path), base=path if path.is_dir() else path.parent)

    return open_rows
