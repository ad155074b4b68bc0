"""JSON files: small ones as they are, large ones row by row, scanned once for where their rows stand.

A list of a million rows, or one with images inside, would fill the memory as Python objects. Rows are the objects of
the outermost list, or of the only list that the outermost object holds.
"""

from __future__ import annotations

import json
import mmap
import re
from array import array
from pathlib import Path
from typing import Any

from mmgrpo.data.rows import JsonLinesRows, ListedRows, Row, Rows
from mmgrpo.errors import DatasetError, explain

LARGE_BYTES = 64_000_000
"""Files from this size on are read so."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
"""A text, or a bracket outside of texts."""
_BOM = b"\xef\xbb\xbf"
_RELEASE_ROWS = 4096
_LONGEST_LINE = 1 << 26


class JsonRows(Rows):
    """The rows of one large JSON file."""

    def __init__(self, path: Path) -> None:
        """Scan ``path`` once.

        Raises:
            DatasetError: It is no JSON, or holds no list of objects.
        """
        self._path, self.name, self.base = path, str(path), path.parent
        self._starts, self._stops = array("Q"), array("Q")
        columns: dict[str, None] = {}
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            self._check_frame(content, self._scan(content))
            end = self._starts[0] if len(self._starts) else 0
            for index, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
                if index and content[end:start].strip() != b",":
                    raise self._malformed(f"row {index} does not follow a comma")
                columns |= dict.fromkeys(self._parse(content[start:stop], index))
                end = stop
                if index % _RELEASE_ROWS == 0:
                    _release(content)
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, index: int) -> Row:
        """Read one row; columns that it lacks are None."""
        start, stop = self._starts[index], self._stops[index]
        with self._path.open("rb") as file:
            file.seek(start)
            return dict.fromkeys(self.columns) | self._parse(file.read(stop - start), index)

    def where(self, index: int) -> str:
        """Name the file and the row."""
        return f"{self.name}, row {index}"

    def _scan(self, content: mmap.mmap) -> tuple[int, int]:
        """Find the rows; give where the list that holds them begins and ends."""
        level, bounds, inside = 0, (-1, -1), 0
        for token in _TOKEN.finditer(content):
            mark = content[token.start() : token.start() + 1]
            if mark == b'"':
                continue
            if mark in b"[{":
                level += 1
                if mark == b"[" and level <= 2 and not inside:
                    if bounds[0] >= 0:
                        raise self._malformed("it holds more than one list")
                    bounds, inside = (token.start(), -1), level
                elif inside and level == inside + 1:
                    if mark != b"{":
                        raise self._malformed(f"row {len(self._starts)} is no object")
                    self._starts.append(token.start())
                    if len(self._starts) % _RELEASE_ROWS == 0:
                        _release(content)
            else:
                if inside and level == inside + 1:
                    self._stops.append(token.end())
                elif inside and level == inside:
                    if mark != b"]":
                        raise self._malformed("its list does not end as a list")
                    bounds, inside = (bounds[0], token.end()), 0
                level -= 1
        if level or inside or bounds[1] < 0:
            raise self._malformed("it ends inside a row" if level else "it holds no list")
        return bounds

    def _check_frame(self, content: mmap.mmap, bounds: tuple[int, int]) -> None:
        """Check what stands around the rows: nothing, or the object that holds their list."""
        first, last = (self._starts[0], self._stops[-1]) if len(self._starts) else (bounds[0] + 1, bounds[1] - 1)
        if content[bounds[0] + 1 : first].strip() or content[last : bounds[1] - 1].strip():
            raise self._malformed("its list holds more than objects")
        frame = content[: bounds[0]].removeprefix(_BOM) + b"[]" + content[bounds[1] :]
        try:
            whole = json.loads(frame)
        except (ValueError, RecursionError) as error:
            raise self._malformed(str(error)) from error
        if isinstance(whole, dict) and sum(isinstance(value, list) for value in whole.values()) != 1:
            raise self._malformed("its list is not directly below the outermost object")

    def _parse(self, text: bytes, index: int) -> dict[str, Any]:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._malformed(f"row {index}: {error}") from error

    def _malformed(self, got: str) -> DatasetError:
        return DatasetError(
            explain(
                "The JSON file does not hold rows",
                where=self.name,
                expected='a list of objects, or an object with one such list, for example {"data": [...]}',
                got=got,
                fix="One object per line is JSONL: name the file .jsonl.",
            )
        )


def _release(content: mmap.mmap) -> None:
    """Let the pages that were read leave the memory; they are read again where they are needed."""
    if hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def json_rows(path: Path) -> Rows:
    """Open a list of rows; many a file of that name holds one row per line instead, and is read so.

    Args:
        path: The file.

    Raises:
        DatasetError: It is no JSON, or holds no list of objects.
    """
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
