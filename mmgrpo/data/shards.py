"""WebDataset tar shards: files of one key are one row, read from where they stand in the archive.

``0001.png`` is its image, ``0001.mp4`` its video, ``0001.wav`` its audio; the keys of ``0001.json`` are columns;
``0001.txt`` is the question and ``0001.cls`` the ground truth, where the JSON has none. Rows need not hold the same
files: opening looks at every header and every JSON once, and nothing is unpacked or copied.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmgrpo.addresses import ENDINGS, kind_of_ending
from mmgrpo.data.rows import Row, Rows
from mmgrpo.errors import DatasetError, explain

_JSON, _TEXT = ("json", "jsn"), ("txt", "cls", "text", "transcript", "caption")
_ROLES = {"txt": ("problem", ("problem", "prompt", "question", "query", "messages", "conversations")),
          "cls": ("solution", ("solution", "answer", "ground_truth"))}  # fmt: skip


class _File(NamedTuple):
    """Where one file of a row stands."""

    ending: str
    start: int
    size: int


class _Place(NamedTuple):
    """One row: its shard, its key, its files."""

    shard: int
    key: str
    files: tuple[_File, ...]


class ShardRows(Rows):
    """Rows of tar shards."""

    def __init__(self, shards: Sequence[Path], *, name: str) -> None:
        """Look through ``shards`` once.

        Raises:
            DatasetError: One is no tar file, is cut off, or holds a row that is malformed.
        """
        self.name, self._shards = name, list(shards)
        self._places: list[_Place] = []
        columns: dict[str, None] = {}
        for number, shard in enumerate(self._shards):
            for key, files in _grouped(shard).items():
                self._places.append(_Place(number, key, tuple(files)))
                columns |= dict.fromkeys(self._columns(len(self._places) - 1))
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> Row:
        """Read one row."""
        words = self._words(index)
        files = [file for file in self._places[index].files if file.ending not in (*_JSON, *_TEXT)]
        held = [(file.ending, self._bytes(index, file)) for file in files]
        return dict.fromkeys(self.columns) | words | dict(_media(held)) | dict(_others(held))

    def column(self, name: str) -> list[Any]:
        """Read one column, and no media for a column of words."""
        if name in ENDINGS:
            return super().column(name)
        return [self._words(i).get(name) for i in range(len(self))]

    def where(self, index: int) -> str:
        """Name the shard and the key."""
        place = self._places[index]
        return f"{self._shards[place.shard]}, key {place.key}"

    def id(self, index: int) -> str:
        """Name the row by its key and number: two shards may use one key."""
        return f"{self._places[index].key}-{index}"

    def _columns(self, index: int) -> list[str]:
        held = [(file.ending, b"") for file in self._places[index].files if file.ending not in (*_JSON, *_TEXT)]
        return [*self._words(index), *dict(_media(held)), *dict(_others(held))]

    def _words(self, index: int) -> dict[str, Any]:
        """Read what is not media: the columns of the JSON, and texts."""
        words: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for file in self._places[index].files:
            if file.ending in _JSON:
                words |= self._fields(index, file)
            elif file.ending in _TEXT:
                texts[file.ending] = self._text(index, file)
        for ending, text in texts.items():
            name, taken = _ROLES.get(ending, (ending, (ending,)))
            if not any(words.get(other) is not None for other in taken):
                words[name] = text
        return words

    def _fields(self, index: int, file: _File) -> Mapping[str, Any]:
        try:
            fields = json.loads(self._bytes(index, file))
        except (ValueError, RecursionError) as error:
            raise DatasetError(explain("A row is not valid JSON", where=self.where(index), got=str(error))) from error
        if not isinstance(fields, dict):
            expected, got = 'a JSON object such as {"problem": "…"}', type(fields).__name__
            raise DatasetError(
                explain("A JSON file is not a row", where=self.where(index), expected=expected, got=got)
            )
        return fields

    def _text(self, index: int, file: _File) -> str:
        try:
            return self._bytes(index, file).decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            got = f".{file.ending}: {error}"
            raise DatasetError(explain("A text is not UTF-8", where=self.where(index), got=got)) from error

    def _bytes(self, index: int, file: _File) -> bytes:
        with self._shards[self._places[index].shard].open("rb") as shard:
            shard.seek(file.start)
            return shard.read(file.size)


def _grouped(shard: Path) -> dict[str, list[_File]]:
    """List the files of each key, in the order of the archive."""
    rows: dict[str, list[_File]] = {}
    try:
        total = shard.stat().st_size
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                stem, dot, ending = name.partition(".")
                if not member.isreg() or not stem or not dot:
                    continue
                if member.issparse() or member.offset_data + member.size > total:
                    raise tarfile.ReadError(f"{member.name} is sparse or cut off")
                file = _File(ending.lower(), member.offset_data, member.size)
                rows.setdefault(f"{folder}/{stem}" if folder else stem, []).append(file)
                archive.members = []  # type: ignore[attr-defined]  # or every header would stay in memory
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise DatasetError(
            explain(
                "A tar shard cannot be loaded",
                where=str(shard),
                expected="an undamaged tar file without compression",
                got=f"{type(error).__name__}: {error}",
            )
        ) from error
    return rows


def _media(held: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, Any]]:
    """Find the media of each kind: by the ending of the file, which may have a part before it (``1.left.png``)."""
    for kind in ENDINGS:
        contents = [content for name, content in held if kind_of_ending(f"_.{name}") == kind]
        if contents:
            yield kind, contents[0] if len(contents) == 1 else contents


def _others(held: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Offer any other file under its ending, as bytes."""
    yield from ((name, content) for name, content in held if kind_of_ending(f"_.{name}") is None)


def shard_rows(shards: Sequence[Path], *, name: str) -> ShardRows:
    """Open tar shards.

    Args:
        shards: The files, in order.
        name: What messages call them.

    Raises:
        DatasetError: They cannot be read.
    """
    return ShardRows(shards, name=name)
