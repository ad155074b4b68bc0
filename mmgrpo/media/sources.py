"""Where a medium's bytes are: files, ``file://`` and ``data:`` addresses, base64, byte strings, dictionaries.

Gives bytes, or the array or picture that was given. Decodes nothing, and reads nothing from the network. Which paths
may be read was decided when the row became a sample.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from mmgrpo.errors import MediaError, explain

_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]{40,}=*\s*")


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
    scheme = source[:6].lower()
    if scheme.startswith("data:"):
        return _data_address(source, name)
    if scheme.startswith("file:"):
        return Path(unquote(urlsplit(source).path))
    if scheme.startswith(("http:", "https:")):
        raise MediaError(
            explain(
                "A medium lies on the network", where=name, got=source, fix="Download it, and name the local file."
            )
        )
    if _BASE64.fullmatch(source) and not _is_file(source):
        return _base64(source, name)
    return Path(source)


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except OSError:  # longer than any file name may be
        return False


def _data_address(source: str, name: str) -> bytes:
    head, comma, body = source.partition(",")
    if not comma:
        raise MediaError(explain("A data: address has no data", where=name, got=source[:80]))
    return _base64(unquote(body), name) if head.lower().endswith(";base64") else unquote_to_bytes(body)


def _base64(text: str, name: str) -> bytes:
    plain = "".join(text.split()).translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(explain("Base64 text is malformed", where=name, got=str(error))) from error


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
