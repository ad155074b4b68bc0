"""JSONL and CSV files, read row by row from byte offsets: the file is scanned once, and no row is held.

Scanning at opening finds malformed rows before training, with their line. Values keep the types that the file gives
them, row by row: nothing is guessed from the first rows, so a column may start with nulls.
"""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.data.lazy import Row, Rows
from mmgrpo.errors import DatasetError, explain

_BOM = b"\xef\xbb\xbf"
_LONGEST_FIELD = 2**31 - 1


class JsonLinesRows(Rows):
    """One JSON object per line; empty lines are passed over."""

    def __init__(self, path: Path) -> None:
        """Scan ``path`` once.

        Raises:
            DatasetError: A line is not a JSON object.
        """
        self._path, self.name, self.base = path, str(path), path.parent
        self._starts, self._lines = array("Q"), array("Q")
        columns: dict[str, None] = {}
        for number, start, line in _lines(path):
            if line.strip():
                columns |= dict.fromkeys(self._parse(line, number))
                self._starts.append(start)
                self._lines.append(number)
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, index: int) -> Row:
        """Read one line; columns that it lacks are None."""
        with self._path.open("rb") as file:
            file.seek(self._starts[index])
            return dict.fromkeys(self.columns) | self._parse(file.readline(), self._lines[index])

    def where(self, index: int) -> str:
        """Name the file and the line."""
        return f"{self.name}:{self._lines[index]}"

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:  # malformed JSON, or bytes that are not UTF-8
            raise DatasetError(
                explain("A line is not valid JSON", where=f"{self.name}:{number}", got=str(error), fix=_fix(line))
            ) from error
        if not isinstance(row, dict):
            raise DatasetError(
                explain(
                    "A line is not a row",
                    where=f"{self.name}:{number}",
                    expected='a JSON object such as {"problem": "…"}',
                    got=type(row).__name__,
                    fix="A list of rows is JSON: name the file .json." if isinstance(row, list) else "",
                )
            )
        return row


class CsvRows(Rows):
    """A CSV file with a header line; every value is text, and an empty cell is None."""

    def __init__(self, path: Path) -> None:
        """Scan ``path`` once; cells may hold line breaks in quotes.

        Raises:
            DatasetError: No header, a row of more cells than the header, or text that is not UTF-8.
        """
        csv.field_size_limit(_LONGEST_FIELD)  # the csv module's own limit would refuse pictures in base64
        self._path, self.name, self.base = path, str(path), path.parent
        self._starts, self._lines = array("Q"), array("Q")
        self._delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(path)
        header: list[str] | None = None
        for number, start, cells in self._records():
            if header is None:
                header = cells
                continue
            self._check_width(cells, header, number)
            self._starts.append(start)
            self._lines.append(number)
        self.columns = tuple(header or ())
        self._starts.append(path.stat().st_size)

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, index: int) -> Row:
        """Read one record."""
        start, stop = self._starts[index], self._starts[index + 1]
        with self._path.open("rb") as file:
            file.seek(start)
            text = file.read(stop - start).decode()
        cells = next(csv.reader(text.splitlines(keepends=True), delimiter=self._delimiter))
        return dict.fromkeys(self.columns) | {
            column: cell or None for column, cell in zip(self.columns, cells, strict=False)
        }

    def where(self, index: int) -> str:
        """Name the file and the line on which the record starts."""
        return f"{self.name}:{self._lines[index]}"

    def _records(self) -> Iterator[tuple[int, int, list[str]]]:
        """Give each record with its first line and byte; the csv module pulls as many lines as a record has."""
        number, stop = 0, 0

        def pull() -> Iterator[str]:
            """Give line after line, and remember where the reading stands."""
            nonlocal number, stop
            for line_number, start, line in _lines(self._path):
                number, stop = line_number, start + len(line)
                yield line.decode()

        first_line, first_byte = 1, 0
        try:
            for cells in csv.reader(pull(), delimiter=self._delimiter):
                if cells:
                    yield first_line, first_byte, cells
                first_line, first_byte = number + 1, stop
        except (csv.Error, UnicodeDecodeError) as error:
            raise DatasetError(
                explain("A CSV record cannot be read", where=f"{self.name}:{number}", got=str(error), fix=_UTF8)
            ) from error

    def _check_width(self, cells: list[str], header: list[str], number: int) -> None:
        if len(cells) > len(header):
            raise DatasetError(
                explain(
                    "A CSV record has more cells than the header",
                    where=f"{self.name}:{number}",
                    expected=f"{len(header)} cells: {', '.join(header)}",
                    got=f"{len(cells)} cells",
                    fix="Put text with commas in double quotes.",
                )
            )


class RenamedRows(Rows):
    """Rows with columns more: the value of one column, under a name that may differ from row to row."""

    def __init__(self, rows: Rows, *, column: str, names: Sequence[str]) -> None:
        """Offer ``column`` of row i as ``names[i]`` too, unless the rows have such a column."""
        self._rows, self._column, self._names = rows, column, names
        self.name, self.base, self.confined, self.format = rows.name, rows.base, rows.confined, rows.format
        self.columns = tuple(dict.fromkeys((*rows.columns, *names)))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Row:
        """Read the row and add the column."""
        row = self._rows.read(index)
        return dict.fromkeys(self.columns) | {self._names[index]: row[self._column], **row}

    def where(self, index: int) -> str:
        """Say where the row came from."""
        return self._rows.where(index)


_UTF8 = "Save the file as UTF-8."


def _fix(line: bytes) -> str:
    """Say what to do about a line that is no JSON, where that is plain."""
    if line.strip() in (b"[", b"{", b"[{"):
        return "A file whose rows take several lines is JSON: name it .json."
    try:
        line.decode()
    except UnicodeDecodeError:
        return _UTF8
    return _UTF8 if b"\0" in line else ""


def _delimiter(path: Path) -> str:
    """Tell what separates the cells of a CSV file: the first of comma, semicolon and tab that its header has."""
    with path.open("rb") as file:
        header = file.readline()
    return next((mark for mark in (",", ";", "\t") if mark.encode() in header), ",")


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Give each line's number (from 1), first byte and bytes, without a byte-order mark."""
    start = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(_BOM) if number == 1 else raw
            start += len(raw) - len(line)
            yield number, start, line
            start += len(line)
