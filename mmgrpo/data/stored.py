"""Values in files: tensors, arrays, pictures, decoded media and plain Python, read without running any code.

A file is written whole or not at all, since another process may read it at any time. It begins with the hash of what
follows, so that one that is damaged anywhere is as if it were not there.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from mmgrpo.types import Decoded

FORMAT = 2
"""Of the files; part of whatever names them."""
_MARK = "mmgrpo:"
_SIMPLE = (str, int, float, bool, type(None), torch.Tensor)
_DIGEST_BYTES = 16


class _OtherTypeError(TypeError):
    """A value holds something that cannot be read back safely."""


def write_value(path: Path, value: Any, *, plain: Sequence[type] = ()) -> bool:
    """Write a value.

    Args:
        path: The file; its folder is made.
        value: Nested mappings, lists and tuples of tensors, arrays, pictures, decoded media and plain Python.
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
        return _plain_picture(value)
    raise _OtherTypeError(type(value).__name__)


def _tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(array.copy())
    except TypeError as error:  # objects, text, bytes of the other order
        raise _OtherTypeError(str(array.dtype)) from error


def _plain_picture(picture: Any) -> dict[str, Any]:
    """Write pixels; a palette or a transparent colour is not among them."""
    if "P" in picture.mode or "transparency" in picture.info:
        raise _OtherTypeError(f"a picture of mode {picture.mode}")
    pixels = torch.frombuffer(bytearray(picture.tobytes()) or bytearray(1), dtype=torch.uint8)
    return {_MARK: "picture", "data": pixels, "mode": picture.mode, "size": list(picture.size)}


def _from_plain(value: Any, plain: Mapping[str, type]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_from_plain(inner, plain) for inner in value)
    if type(value) is not dict:
        return value
    kind = value.get(_MARK)
    if kind == "array":
        return value["data"].numpy()
    if kind == "picture":
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
