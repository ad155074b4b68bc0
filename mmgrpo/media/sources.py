"""Where a medium's bytes are: files, ``file://`` and ``data:`` addresses, base64, byte strings, dictionaries.

Gives bytes, or the array or picture that was given. Decodes nothing, and reads nothing from the network. Which paths
may be read was decided when the row became a sample.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmgrpo.addresses import address_form, decode_text, file_of
from mmgrpo.errors import MediaError, explain, shorten


def load(source: Any, *, name: str) -> Any:
    """Read what a medium's source stands for.

    Args:
        source: A path, an address, base64, bytes, ``{"bytes", "path"}``, an array or a picture.
        name: How messages call the medium.

    Returns:
        Bytes for whatever holds encoded bytes; anything else as it was given. No file stays open.

    Raises:
        MediaError: Missing, unreadable, malformed, or on the network.

    Example:
        >>> load("data:text/plain;base64,aGVsbG8=", name="a greeting")
        b'hello'
    """
    found = find(source, name=name)
    return _file(found, name) if isinstance(found, Path) else found


def find(source: Any, *, name: str) -> Any:
    """Find what a medium's source stands for, and leave files unread: clips may be larger than memory.

    Args:
        source: As for :func:`load`.
        name: How messages call the medium.

    Returns:
        A path, bytes, or the array or picture that was given.

    Raises:
        MediaError: Malformed, or on the network.

    Example:
        >>> find({"path": "a.mp4", "bytes": None}, name="a clip")
        PosixPath('a.mp4')
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, io.BytesIO):
        return source.getvalue()
    if isinstance(source, Mapping):
        return find(_held(source, name), name=name)
    return _text(source, name) if isinstance(source, str) else source


def _held(source: Mapping[str, Any], name: str) -> Any:
    for key in ("bytes", "path"):
        if source.get(key) is not None:
            return source[key]
    raise MediaError(
        explain(
            "A dictionary holds no medium",
            where=name,
            expected='{"bytes": …} or {"path": …}',
            got=f"the keys {', '.join(map(str, source)) or '(none)'}",
        )
    )


def _text(source: str, name: str) -> bytes | Path:
    form = address_form(source)
    if form == "data" or (form == "base64" and not _is_file(source)):
        return decode_text(source, name=name)
    if form == "file":
        return Path(file_of(source, where=name))
    if form in ("http", "foreign"):
        fix = "Download it, and name the local file."
        what = "A media item is on the network, and nothing is downloaded here"
        raise MediaError(explain(what, where=name, got=shorten(source), fix=fix))
    return Path(source)


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except OSError:  # longer than any file name may be
        return False


def require_file(path: Path, *, name: str) -> Path:
    """Check that a file can be opened.

    Args:
        path: The file.
        name: How messages call the medium.

    Returns:
        The path.

    Raises:
        MediaError: It does not exist or may not be read.
    """
    _reading(path, lambda: path.open("rb").close(), name)
    return path


def _file(path: Path, name: str) -> bytes:
    return _reading(path, path.read_bytes, name)


def _reading(path: Path, read: Callable[[], Any], name: str) -> Any:
    try:
        return read()
    except FileNotFoundError as error:
        raise MediaError(
            explain(
                "A media file does not exist",
                where=name,
                got="" if str(path.absolute()) == name else str(path.absolute()),
                fix="Paths are written with /, not with \\."
                if "\\" in str(path)
                else "Relative paths start from the data file's folder, or from media_root where that is set.",
            )
        ) from error
    except (OSError, ValueError) as error:
        raise MediaError(
            explain("A media file cannot be read", where=name, got=f"{path.absolute()}: {error}")
        ) from error
