"""Values kept by what they were made of: in memory up to a number of bytes, in files of a folder, or both.

Knows neither media nor processors: whoever asks names the key, and everything that changes the value is part of it.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from mmgrpo.data.stored import read_value, write_value
from mmgrpo.errors import explain
from mmgrpo.types import Decoded

Value = TypeVar("Value")


class ContentCache:
    """Makes each value once per key. Safe to use from several threads."""

    def __init__(self, *, max_bytes: int = 0, folder: Path | None = None, plain: Sequence[type] = ()) -> None:
        """Start empty, or with what the folder holds.

        Args:
            max_bytes: Held in memory, in bytes; what was used longest ago goes first.
            folder: Files, one per value; None: none. Nothing in it is ever deleted.
            plain: Types beside tensors, arrays, pictures and plain Python that may be written and read; a value
                that holds any other is kept in memory alone.
        """
        self._max_bytes, self._folder, self._plain = max_bytes, folder, tuple(plain)
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._making: dict[str, Future[Any]] = {}
        self._told = False
        self.made = 0
        """Values made, not found."""

    @property
    def held_bytes(self) -> int:
        """What is in memory now."""
        return self._bytes

    def get(self, key: str, make: Callable[[], Value]) -> Value:
        """Give the value of a key; threads that ask for one key at once make it once.

        Args:
            key: Names all that the value depends on; a file name.
            make: Makes the value; what it raises is raised, and nothing is kept.

        Returns:
            The value itself, shared with all who ask: do not change it.

        Warns:
            UserWarning: The folder cannot be written (any more): values are made, and not kept there. Said once.
        """
        own: Future[Any] = Future()
        while True:
            with self._lock:
                if key in self._held:
                    self._held.move_to_end(key)
                    return self._held[key][0]
                working = self._making.setdefault(key, own)
            if working is own:
                break
            if working.exception() is None:  # else it is tried here, and the error is this caller's own
                return working.result()
        try:
            own.set_result(self._read_or_made(key, make))
        except BaseException as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._making[key]
        return own.result()

    def _read_or_made(self, key: str, make: Callable[[], Value]) -> Value:
        found = None if self._folder is None else read_value(self._folder / f"{key}.pt", plain=self._plain)
        if found is None:
            found = make()
            with self._lock:
                self.made += 1
            self._write(key, found)
        self._hold(key, found)
        return found

    def _write(self, key: str, value: Any) -> None:
        """Write a value where there is a folder; a disk that is full costs time, and no run."""
        if self._folder is None:
            return
        try:
            write_value(self._folder / f"{key}.pt", value, plain=self._plain)
        except OSError as error:
            with self._lock:
                told, self._told = self._told, True
            if not told:
                what = "The media cache cannot be written; what is not in it is processed at each use"
                fix = "Free space or give write permission there, or set another cache.folder."
                warnings.warn(explain(what, where=str(self._folder), got=str(error), fix=fix), stacklevel=4)

    def _hold(self, key: str, value: Any) -> None:
        size = size_of(value)
        if size > self._max_bytes:
            return
        with self._lock:
            _, before = self._held.pop(key, (None, 0))
            self._held[key] = (value, size)
            self._bytes += size - before
            while self._bytes > self._max_bytes:
                _, (_, gone) = self._held.popitem(last=False)
                self._bytes -= gone


def size_of(value: Any) -> int:
    """Count the bytes of the tensors, arrays, pictures and text in a value.

    Args:
        value: Any.

    Example:
        >>> size_of({"pixels": torch.zeros(2, 3), "text": "abc"})
        27
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Decoded):
        return size_of(value.data) + size_of(value.times)
    if isinstance(value, Mapping):
        return sum(size_of(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return sum(size_of(inner) for inner in value)
    if isinstance(value, str | bytes):
        return len(value)
    if hasattr(value, "getbands"):
        return value.width * value.height * len(value.getbands())
    return 8
