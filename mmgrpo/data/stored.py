"""Values in files: tensors, arrays, pictures, decoded media and plain Python, read without running any code.

A file is written whole or not at all, since another process may read it at any time; one that is damaged is as if it
were not there.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmgrpo.types import Decoded

_MARK = "mmgrpo:"
_SIMPLE = (str, int, float, bool, type(None), torch.Tensor)


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
    """
    try:
        content = _to_plain(value, tuple(plain))
    except _OtherTypeError:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            torch.save(content, file)
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)
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
        with torch.serialization.safe_globals(list(plain)):
            return _from_plain(torch.load(path, weights_only=True))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError):
        return None


def _to_plain(value: Any, plain: tuple[type, ...]) -> Any:
    if isinstance(value, (*_SIMPLE, *plain)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {_MARK: "array", "data": torch.from_numpy(value.copy())}
    if isinstance(value, Decoded):
        facts = {name: getattr(value, name) for name in ("kind", "rate", "name")}
        return {_MARK: "decoded", **facts, "data": _to_plain(value.data, plain), "times": list(value.times)}
    if isinstance(value, Mapping):
        return {str(key): _to_plain(inner, plain) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_plain(inner, plain) for inner in value)
    if hasattr(value, "getbands"):
        return {_MARK: "picture", "data": torch.from_numpy(np.array(value)), "mode": value.mode}
    raise _OtherTypeError(type(value).__name__)


def _from_plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_from_plain(inner) for inner in value)
    if type(value) is not dict:
        return value
    kind = value.get(_MARK)
    if kind == "array":
        return value["data"].numpy()
    if kind == "picture":
        from PIL import Image

        return Image.fromarray(value["data"].numpy()).convert(value["mode"])
    if kind == "decoded":
        data, times = _from_plain(value["data"]), tuple(value["times"])
        return Decoded(kind=value["kind"], data=data, rate=value["rate"], times=times, name=value["name"])
    return {key: _from_plain(inner) for key, inner in value.items()}
