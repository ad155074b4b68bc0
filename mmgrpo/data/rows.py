"""Rows as a lazy sequence: in memory, in JSON lines and in CSV; read when asked for, and able to say where they stand.

A file of text is scanned once at opening, which finds malformed rows with their line, and then read row by row from
byte offsets: no row is held. Values keep the types that the file gives them, row by row: nothing is guessed from the
first rows, so a column may start with nulls. Knows no column by name.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np

from mmgrpo.errors import DatasetError, explain

Row = Mapping[str, Any]
_BOM = b"\xef\xbb\xbf"
_LONGEST_FIELD = 2**31 - 1


class Rows(ABC, Sequence[Row]):
    """Rows of one source, in their own order; each access makes a fresh row and keeps none."""

    name: str
    """What messages call the source: a path, a hub id, "scenes"."""
    columns: tuple[str, ...]
    """Every column that at least one row has; a row without it has None there."""
    base: Path | None = None
    """Folder that relative media paths start from; None: the source has no folder, so it may not name such paths."""
    confined: bool = False
    """Whether nothing outside ``base`` may be read."""
    generated: bool = False
    """Whether the rows are made in code, so that their media need no check."""
    controls_as_text: bool = False
    """Whether control tokens of the model in its texts are letters to the model."""
    rows_per_block: int = 1
    """How many rows behind one another belong in one step: 2 where they are shuffled pairs."""
    format: Any = "auto"
    """The form of the rows, where the configuration names one; auto: told by their columns."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Row:
        """Make row ``index`` (0 <= index < len)."""

    @abstractmethod
    def where(self, index: int) -> str:
        """Say where row ``index`` came from, for messages: file and line, or file and row."""

    def id(self, index: int) -> str:
        """Name row ``index`` uniquely in its source, the same in every run."""
        return str(index)

    def column(self, name: str) -> list[Any]:
        """Read one column of all rows, in order; a row without it has None."""
        return [self.read(i).get(name) for i in range(len(self))]

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Read one row, or a list of rows for a slice."""
        if isinstance(index, slice):
            return [self.read(i) for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"row {index} of {len(self)} rows of {self.name}")
        return self.read(position)


class ChosenRows(Rows):
    """Some rows of another source, under their old names and numbers."""

    def __init__(self, rows: Rows, indices: Sequence[int]) -> None:
        """Take the rows ``indices`` of ``rows``, in that order."""
        self._rows, self._indices = rows, list(indices)
        self.name, self.columns, self.base = rows.name, rows.columns, rows.base
        self.confined, self.generated, self.format = rows.confined, rows.generated, rows.format

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, index: int) -> Row:
        """Make row ``index`` of the choice."""
        return self._rows.read(self._indices[index])

    def where(self, index: int) -> str:
        """Say where the row came from in its own source."""
        return self._rows.where(self._indices[index])

    def id(self, index: int) -> str:
        """Keep the id that the row has in its own source."""
        return self._rows.id(self._indices[index])


class JoinedRows(Rows):
    """Rows of several files behind one another, as one source."""

    def __init__(self, parts: Sequence[Rows], *, name: str, base: Path | None) -> None:
        """Join ``parts``; columns are the union over all of them."""
        self._parts, self._starts = tuple(parts), [0, *accumulate(len(part) for part in parts)]
        self.name, self.base = name, base
        self.columns = tuple(dict.fromkeys(column for part in parts for column in part.columns))

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, index: int) -> Row:
        """Read the row with None for the columns that its file lacks."""
        part, inner = self._find(index)
        return dict.fromkeys(self.columns) | dict(part.read(inner))

    def where(self, index: int) -> str:
        """Say where the row came from in its own file."""
        part, inner = self._find(index)
        return part.where(inner)

    def _find(self, index: int) -> tuple[Rows, int]:
        number = bisect_right(self._starts, index) - 1
        return self._parts[number], index - self._starts[number]


class ListedRows(Rows):
    """Rows that are already in memory."""

    def __init__(self, rows: Sequence[Row], *, name: str, base: Path | None = None) -> None:
        """Hold ``rows``; columns are the union over all of them."""
        self._rows = rows
        self.name, self.base = name, base
        self.columns = tuple(dict.fromkeys(column for row in rows for column in row))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Row:
        """Return row ``index`` with None for the columns that it lacks."""
        return dict.fromkeys(self.columns) | plain(dict(self._rows[index]))

    def where(self, index: int) -> str:
        """Say which row of the list."""
        return f"{self.name}, row {index}"


def plain(value: Any) -> Any:
    """Write what data frames and numpy make of plain values as those again; arrays of numbers stay arrays.

    Args:
        value: A row, or what a row holds.

    Example:
        >>> plain({"n": np.int64(3), "images": np.array(["a.png", None], dtype=object)})
        {'n': 3, 'images': ['a.png', None]}
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return [plain(one) for one in value.tolist()]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def choose_rows(rows: Rows, limit: int | None, *, seed: int) -> Rows:
    """Take ``limit`` rows at random, in the source's order.

    Args:
        rows: The source.
        limit: How many; None, or more than there are, takes all.
        seed: Which choice.

    Returns:
        The chosen rows; the same for the same seed, in every version of numpy.
    """
    if limit is None or limit >= len(rows):
        return rows
    drawn = np.random.RandomState(seed).permutation(len(rows))[:limit]
    return ChosenRows(rows, sorted(int(i) for i in drawn))


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
        except (ValueError, RecursionError) as error:  # malformed JSON, or bytes that are not UTF-8
            raise DatasetError(
                explain(
                    "A line is not valid JSON",
                    where=f"{self.name}:{number}",
                    got="values nested too deep" if isinstance(error, RecursionError) else str(error),
                    fix=_fix(line),
                )
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
        csv.field_size_limit(_LONGEST_FIELD)  # the csv module's own limit would refuse images in base64
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
