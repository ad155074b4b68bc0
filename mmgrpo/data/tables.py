"""Rows through the ``datasets`` library: parquet, arrow, saved datasets, folders and the hub.

Values are taken as they are stored: ``datasets`` decodes no image, audio or video, so that every media item, wherever
it comes from, passes through the one decoder of mmgrpo. The library is imported when a table is opened.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmgrpo.data.network import hub_or_cache
from mmgrpo.data.rows import Row, Rows, plain
from mmgrpo.errors import DatasetError, explain


class TableRows(Rows):
    """Rows of a ``datasets.Dataset``, memory-mapped by the library."""

    def __init__(self, dataset: Any, *, name: str, base: Path | None) -> None:
        """Read ``dataset`` undecoded; a transform that the user set on it is left to work."""
        transformed = dataset.format["type"] == "custom"
        self._dataset = dataset if transformed else dataset.with_format("arrow")
        self._transformed = transformed
        self.name, self.base = name, base
        self.columns = tuple(dataset[0] if transformed and len(dataset) else dataset.column_names)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, index: int) -> Row:
        """Read one row as plain Python values."""
        return plain(self._dataset[index]) if self._transformed else self._dataset[index : index + 1].to_pylist()[0]

    def where(self, index: int) -> str:
        """Name the source and the row."""
        return f"{self.name}, row {index}"

    def column(self, name: str) -> list[Any]:
        """Read one column without the others."""
        if self._transformed or name not in self.columns:
            return super().column(name)
        return self._dataset.select_columns([name])[:][name].to_pylist()


def parquet_rows(path: Path) -> TableRows:
    """Open one parquet file.

    Args:
        path: The file; ``datasets`` keeps a memory-mapped copy in its cache.

    Raises:
        DatasetError: The file cannot be read.
    """
    from datasets import Dataset

    dataset = reading(path, lambda: Dataset.from_parquet(str(path)))
    return TableRows(dataset, name=str(path), base=path.parent)


def arrow_rows(path: Path) -> TableRows:
    """Open one arrow file: in the stream form that ``datasets`` writes, or in the file form (Feather).

    Args:
        path: The file.

    Raises:
        DatasetError: The file cannot be read.
    """
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    def load() -> Any:
        """Map the file into memory."""
        with path.open("rb") as file:
            if file.read(6) != b"ARROW1":
                return Dataset.from_file(str(path))
        return Dataset(InMemoryTable(pa.ipc.open_file(pa.memory_map(str(path))).read_all()))

    return TableRows(reading(path, load), name=str(path), base=path.parent)


def saved_rows(path: Path, *, split: str) -> TableRows:
    """Open a folder written by ``save_to_disk``.

    Args:
        path: The folder of one dataset, or of a dictionary of splits.
        split: Which split of a dictionary.

    Raises:
        DatasetError: The folder cannot be read or has no such split.
    """
    from datasets import load_from_disk

    return TableRows(
        one_split(reading(path, lambda: load_from_disk(str(path))), split, str(path)), name=str(path), base=path
    )


def loaded_rows(
    path: str, *, split: str, config: str | None = None, revision: str | None = None, base: Path | None = None
) -> TableRows:
    """Open a hub id, or a folder of data files, with ``datasets.load_dataset``.

    Args:
        path: ``owner/name`` on the hub, or a folder.
        split: Which split.
        config: Configuration of a hub id.
        revision: Branch, tag or commit of a hub id.
        base: Folder that relative media paths start from, where there is one.

    Raises:
        DatasetError: Not found, not reachable, no such split or configuration, or malformed.
    """
    from datasets import load_dataset

    dataset = reading(path, lambda: load_dataset(path, config, split=split, revision=revision), hub=not base)
    return TableRows(dataset, name=path if base else f"{path} ({split})", base=base)


def one_split(dataset: Any, split: str, name: str) -> Any:
    """Pick a split where ``dataset`` is a dictionary of splits.

    Args:
        dataset: A dataset, or a dictionary of datasets.
        split: The split's name.
        name: What to call the source in a message.

    Raises:
        DatasetError: There is no such split.
    """
    if not isinstance(dataset, Mapping):
        return dataset
    if split not in dataset:
        raise DatasetError(
            explain(
                f"There is no split {split!r}",
                where=name,
                expected=f"one of {', '.join(map(repr, dataset))}",
                fix="Set split under data.train or data.eval.",
            )
        )
    return dataset[split]


def streamed_rows(path: str, *, split: str, config: str | None, revision: str | None, limit: int) -> TableRows:
    """Take the first rows of a hub id, downloading no more than those; ``datasets`` keeps them in its cache.

    Args:
        path: ``owner/name`` on the hub.
        split: Which split.
        config: Configuration of the hub id.
        revision: Branch, tag or commit.
        limit: How many rows.

    Raises:
        DatasetError: Not found, not reachable, no such split or configuration, or malformed.
    """
    from datasets import Dataset, load_dataset

    def load() -> Any:
        """Download the first rows, their media undecoded, into the cache."""
        stream = load_dataset(path, config, split=split, revision=revision, streaming=True).decode(False)
        return Dataset.from_generator(_first, features=stream.features, gen_kwargs={"stream": stream, "limit": limit})

    return TableRows(reading(path, load, hub=True), name=f"{path} ({split}, the first {limit})", base=None)


def _first(stream: Any, limit: int) -> Iterator[Row]:
    yield from stream.take(limit)


def _cause(error: BaseException) -> str:
    """Give the error beneath, where ``datasets`` wraps it in one that says nothing."""
    below = error.__cause__
    return "" if below is None else f" ({type(below).__name__}: {str(below).strip()[:300]})"


@contextlib.contextmanager
def _quiet() -> Generator[None, None, None]:
    """Keep the progress bars of ``datasets`` out of the terminal, unless its environment variable asks for them."""
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled() or "HF_DATASETS_DISABLE_PROGRESS_BARS" in os.environ:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def reading(path: str | Path, load: Callable[[], Any], *, hub: bool = False) -> Any:
    """Run ``load`` and turn what ``datasets`` and its readers raise into one kind of error.

    Args:
        path: What is read, for the message.
        load: Reads it.
        hub: Whether it may be downloaded: then ``datasets`` shows how far it is.

    Raises:
        DatasetError: It cannot be loaded.
    """
    from datasets.exceptions import DatasetsError
    from pyarrow import ArrowException

    reason = ""
    try:
        with hub_or_cache(path if hub else ".") as reason, contextlib.nullcontext() if hub else _quiet():
            return load()
    except (OSError, ValueError, KeyError, TypeError, ArrowException, DatasetsError) as error:
        got = f"{type(error).__name__}: {str(error).strip() or 'no details'}{_cause(error)}"
        fix = "Check path, split, config and revision; a hub id needs the network, or a copy in the cache of datasets."
        if reason:
            got = f"the hub cannot be reached ({reason}), and the cache of datasets has no copy"
            fix = "Connect this machine, or download the rows elsewhere."
        raise DatasetError(
            explain(
                "The dataset cannot be loaded",
                where=str(path),
                got=got,
                fix=f"{fix} A file or folder of your own works without: give its path.",
            )
        ) from error
