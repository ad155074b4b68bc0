"""WebDataset tar shards through ``datasets``: files of one key are one row.

``0001.png`` is its picture, ``0001.mp4`` its clip, ``0001.wav`` its sound; the keys of ``0001.json`` are columns;
``0001.txt`` is the question and ``0001.cls`` the truth, where the JSON has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.data.lazy import Row, Rows
from mmgrpo.data.tables import TableRows, reading

_OWN = {"__key__", "__url__"}
_KINDS = {
    "image": ("png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff", "ppm"),
    "video": ("mp4", "mov", "mkv", "avi", "webm"),
    "audio": ("wav", "flac", "mp3", "ogg", "m4a"),
}
_TEXTS = {"txt": ("problem", ("problem", "prompt", "question", "messages", "conversations")),
          "cls": ("solution", ("solution", "answer", "ground_truth"))}  # fmt: skip


class ShardRows(Rows):
    """Rows of tar shards, read from the memory-mapped copy that ``datasets`` keeps."""

    def __init__(self, table: TableRows) -> None:
        """Rename the columns of ``table``."""
        self._table = table
        self.name = table.name
        self._first = table[0] if len(table) else {}
        self.columns = tuple(self._renamed(self._first))

    def __len__(self) -> int:
        return len(self._table)

    def read(self, index: int) -> Row:
        """Read one row."""
        return dict.fromkeys(self.columns) | self._renamed(self._table[index])

    def where(self, index: int) -> str:
        """Name the shard and the key."""
        row = self._table[index]
        return f"{row.get('__url__') or self.name}, key {row.get('__key__')}"

    def id(self, index: int) -> str:
        """Name the row by its key and number: two shards may use one key."""
        return f"{self._table[index].get('__key__')}-{index}"

    def _renamed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        fields = row.get("json")
        columns = {k: v for k, v in fields.items() if v is not None} if isinstance(fields, Mapping) else {}
        columns |= dict(_media(row))
        for ending, (name, taken) in _TEXTS.items():
            if row.get(ending) is not None and not any(other in columns for other in taken):
                columns[name] = row[ending]
        known = {"json", *_OWN, *_TEXTS, *(ending for endings in _KINDS.values() for ending in endings)}
        return columns | {name: value for name, value in row.items() if name not in known}


def _media(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Find the medium of each kind: by the ending of its file, which may have a part before it (``1.left.png``)."""
    for kind, endings in _KINDS.items():
        found = [value for name, value in row.items() if name.split(".")[-1] in endings and value is not None]
        if found:
            yield kind, found[0] if len(found) == 1 else found


def shard_rows(shards: Sequence[Path], *, name: str) -> ShardRows:
    """Open tar shards.

    Args:
        shards: The files, in order.
        name: What messages call them.

    Raises:
        DatasetError: They cannot be read.
    """
    from datasets import load_dataset

    files = [str(path) for path in shards]
    dataset = reading(name, lambda: load_dataset("webdataset", data_files={"train": files}, split="train"))
    return ShardRows(TableRows(dataset, name=name, base=None))
