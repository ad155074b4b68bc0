"""Values kept by what they were made of: in memory up to a number of bytes, in files of a folder, or both.

Knows no processors: whoever asks names the key, and everything that changes the value is part of it. Files are read
without running any code, and written whole or not at all, since another process may read them at any time; each begins
with the hash of what follows, so that one that is damaged anywhere is as if it were not there.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import torch

from mmgrpo.errors import explain
from mmgrpo.types import Decoded

Value = TypeVar("Value")
FORMAT = 2
"""Of the files; part of whatever names them."""
_MARK = "mmgrpo:"
_SIMPLE = (str, int, float, bool, type(None), torch.Tensor)
_DIGEST_BYTES = 16


class ContentCache:
    """Makes each value once per key. Safe to use from several threads."""

    def __init__(self, *, max_bytes: int = 0, folder: Path | None = None, plain: Sequence[type] = ()) -> None:
        """Start empty, or with what the folder holds.

        Args:
            max_bytes: Held in memory, in bytes; what was used longest ago goes first.
            folder: Files, one per value; None: none. Nothing in it is ever deleted.
            plain: Types beside tensors, arrays, images and plain Python that may be written and read; a value
                that holds any other is kept in memory alone.
        """
        self._max_bytes, self._folder, self._plain = max_bytes, folder, tuple(plain)
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._making: dict[str, Future[Any]] = {}
        self._warned = False
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
                told, self._warned = self._warned, True
            if not told:
                what = "The media cache cannot be written; what is not in it is processed at each use"
                fix = "Free space or give write permission there, or set another cache.folder."
                warnings.warn(explain(what, where=str(self._folder), got=str(error), fix=fix), stacklevel=4)

    def _hold(self, key: str, value: Any) -> None:
        size = num_bytes(value)
        if size > self._max_bytes:
            return
        with self._lock:
            _, before = self._held.pop(key, (None, 0))
            self._held[key] = (value, size)
            self._bytes += size - before
            while self._bytes > self._max_bytes:
                _, (_, gone) = self._held.popitem(last=False)
                self._bytes -= gone


def num_bytes(value: Any) -> int:
    """Count the bytes of the tensors, arrays, images and text in a value.

    Args:
        value: Any.

    Example:
        >>> num_bytes({"pixels": torch.zeros(2, 3), "text": "abc"})
        27
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Decoded):
        return num_bytes(value.data) + num_bytes(value.times)
    if isinstance(value, Mapping):
        return sum(num_bytes(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return sum(num_bytes(inner) for inner in value)
    if isinstance(value, str | bytes):
        return len(value)
    if hasattr(value, "getbands"):
        return value.width * value.height * len(value.getbands())
    return 8


class _OtherTypeError(TypeError):
    """A value holds something that cannot be read back safely."""


def write_value(path: Path, value: Any, *, plain: Sequence[type] = ()) -> bool:
    """Write a value.

    Args:
        path: The file; its folder is made.
        value: Nested mappings, lists and tuples of tensors, arrays, images, decoded media and plain Python.
        plain: Further types, of plain attributes, that may be written.

    Returns:
        Whether it was written: False where the value holds another type.

    Raises:
        OSError: The folder cannot be written, or the disk is full; no part of the file is left.
    """
    held = io.BytesIO()
    try:
        torch.save(_to_plain(value, tuple(plain)), held)
    except _OtherTypeError:
        return False
    content = held.getbuffer()
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_name(f".{uuid4().hex}.tmp")  # with the usual rights: other users may share the folder
    try:
        with building.open("wb") as file:
            file.write(_digest(content))
            file.write(content)
        os.replace(building, path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise
    return True


def read_value(path: Path, *, plain: Sequence[type] = ()) -> Any:
    """Read a value.

    Args:
        path: The file.
        plain: As when it was written.

    Returns:
        The value; None where there is no whole file.
    """
    try:
        whole = memoryview(path.read_bytes())
    except OSError:
        return None
    content = whole[_DIGEST_BYTES:]
    if bytes(whole[:_DIGEST_BYTES]) != _digest(content):
        return None
    try:
        return _from_plain(torch.load(io.BytesIO(content), weights_only=True), {t.__qualname__: t for t in plain})
    except (RuntimeError, ValueError, LookupError, TypeError, EOFError, pickle.UnpicklingError):  # of another release
        return None


def _digest(content: memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _to_plain(value: Any, plain: tuple[type, ...]) -> Any:
    if isinstance(value, plain):
        attributes = {name: _to_plain(inner, plain) for name, inner in vars(value).items()}
        return {_MARK: "object", "type": type(value).__qualname__, "attributes": attributes}
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {_MARK: "array", "data": _tensor_of(value)}
    if isinstance(value, Decoded):
        facts = {name: getattr(value, name) for name in ("kind", "rate", "name")}
        return {_MARK: "decoded", **facts, "data": _to_plain(value.data, plain), "times": list(value.times)}
    if isinstance(value, Mapping):
        return {str(key): _to_plain(inner, plain) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_to_plain(inner, plain) for inner in value)
    if hasattr(value, "getbands"):
        return _plain_image(value)
    raise _OtherTypeError(type(value).__name__)


def _tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(array.copy())
    except TypeError as error:  # objects, text, bytes of the other order
        raise _OtherTypeError(str(array.dtype)) from error


def _plain_image(image: Any) -> dict[str, Any]:
    """Write pixels; a palette or a transparent colour is not among them."""
    if "P" in image.mode or "transparency" in image.info:
        raise _OtherTypeError(f"an image of mode {image.mode}")
    pixels = torch.frombuffer(bytearray(image.tobytes()) or bytearray(1), dtype=torch.uint8)
    return {_MARK: "image", "data": pixels, "mode": image.mode, "size": list(image.size)}


def _from_plain(value: Any, plain: Mapping[str, type]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_from_plain(inner, plain) for inner in value)
    if type(value) is not dict:
        return value
    kind = value.get(_MARK)
    if kind == "array":
        return value["data"].numpy()
    if kind == "image":
        from PIL import Image

        return Image.frombytes(value["mode"], tuple(value["size"]), value["data"].numpy().tobytes())
    if kind == "decoded":
        data, times = _from_plain(value["data"], plain), tuple(value["times"])
        return Decoded(kind=value["kind"], data=data, rate=value["rate"], times=times, name=value["name"])
    if kind == "object":
        found = object.__new__(plain[value["type"]])
        vars(found).update(_from_plain(value["attributes"], plain))
        return found
    return {key: _from_plain(inner, plain) for key, inner in value.items()}
