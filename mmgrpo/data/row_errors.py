"""Rows that cannot be used: which row a message is about, and what is told of the rows that are left out.

Knows messages and row numbers; what is wrong with a row is found elsewhere.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mmgrpo.errors import counted, shorten

_NAMED = 3


def with_row(message: str, where: str) -> str:
    """Add the row to a message that does not name it yet.

    Args:
        message: An error's message.
        where: The row's place.

    Example:
        >>> print(with_row("An image is damaged.", "data.jsonl:3"))
        An image is damaged.
          row: data.jsonl:3
    """
    return message if where in message else f"{message}\n  row: {where}"


def left_out_line(message: str) -> str:
    r"""Put a message about a row that is left out on one line, without its advice: it was taken.

    Args:
        message: An error's message, with its row.

    Example:
        >>> left_out_line("An image is damaged.\n  fix: Replace it.\n  row: data.jsonl:3")
        'Row left out: An image is damaged; row: data.jsonl:3'
    """
    first, *facts = message.splitlines()
    kept = [fact.strip() for fact in facts if not fact.startswith("  fix:")]
    return "; ".join([f"Row left out: {first.rstrip('.')}", *kept])


class SkippedRow(NamedTuple):
    """One row that is left out."""

    row: int
    """Its number."""
    where: str
    """File and line."""
    message: str
    """Why, as the error says it."""

    @property
    def kind(self) -> str:
        """The fault, in words that are the same for every row with it: numbers and names of rows left out."""
        return self.message.splitlines()[0].split(":")[0].rstrip(".")


@dataclass(slots=True, kw_only=True)
class SkippedRows:
    """Rows of one source that are left out: told in few lines, and listed in a file.

    A line comes for each of the first three, and again at ten, a hundred, a thousand rows; it counts each kind of
    fault and names the first three rows of each.

    Example:
        >>> skipped = SkippedRows(source="rows.jsonl", total=9)
        >>> for row in range(4):
        ...     _ = skipped.add(row, f"rows.jsonl:{row + 1}", "A media file does not exist.")
        >>> skipped.summary()
        'rows.jsonl: 4 of 9 rows left out: A media file does not exist (4 rows: :1, :2, :3, …)'
    """

    source: str
    """What messages call it."""
    total: int
    """Rows that it has."""
    rows: dict[int, SkippedRow] = field(default_factory=dict[int, SkippedRow])
    """By number."""
    beside: SkippedRows | None = None
    """Those of another source, whose file is this one's too."""
    _file: Path | None = None
    _told: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def add(self, row: int, where: str, message: str) -> SkippedRow:
        """Note a row; it is told by the next :meth:`tell`.

        Args:
            row: Its number.
            where: File and line.
            message: The error's.
        """
        skipped = SkippedRow(row, where, message)
        if row not in self.rows:
            self.rows[row] = skipped
            self._write([skipped])
        return skipped

    def tell(self) -> None:
        """Warn in one line, if so many more rows are left out that it is worth one."""
        count = len(self.rows)
        if count == self._told or (count > _NAMED and self._told and len(str(count)) == len(str(self._told))):
            return
        self._told = count
        only = next(iter(self.rows.values()))
        warnings.warn(left_out_line(only.message) if len(self.rows) == 1 else self.summary(), stacklevel=3)

    def summary(self) -> str:
        """Write one line: how many rows, and for each kind of fault how many and the first three."""
        kinds: dict[str, list[SkippedRow]] = {}
        for skipped in self.rows.values():
            kinds.setdefault(skipped.kind, []).append(skipped)
        parts = []
        for kind, rows in sorted(kinds.items(), key=lambda item: -len(item[1])):
            named = ", ".join(shorten(row.where.removeprefix(self.source), limit=80) for row in rows[:_NAMED])
            parts.append(f"{kind} ({counted(len(rows), 'row')}: {named}{', …' if len(rows) > _NAMED else ''})")
        path = self._path
        listed = f". All are listed in {path}" if path is not None else ""
        return f"{self.source}: {len(self.rows)} of {self.total} rows left out: {'; '.join(parts)}{listed}"

    def write_to(self, path: Path) -> None:
        """List every row in a file, those of before and those to come; rows that it lists already stay.

        Args:
            path: A JSON lines file: source, row, where, message.
        """
        self._file = path
        listed: set[tuple[str, int]] = set()
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                listed.add((entry["source"], entry["row"]))
        self._write([row for row in self.rows.values() if (self.source, row.row) not in listed])

    @property
    def _path(self) -> Path | None:
        return self.beside._path if self.beside is not None else self._file

    def _write(self, rows: list[SkippedRow]) -> None:
        path = self._path
        if path is None or not rows:
            return
        with path.open("a", encoding="utf-8") as file:
            for row in rows:
                entry = {"source": self.source, "row": row.row, "where": row.where, "message": row.message}
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
