"""Rows as a lazy sequence: read when asked for, and able to say where they came from.

Knows no file format and no column: readers fill in how one row is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np

Row = Mapping[str, Any]


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
    together: int = 1
    """How many rows behind one another belong in one step: 2 where each has a twin."""
    format: str = "auto"
    """The form of the rows, where it was said; auto: told by their columns."""

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


def choose(rows: Rows, limit: int | None, *, seed: int) -> Rows:
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
