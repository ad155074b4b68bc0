"""Where a media item's bytes are: files, ``file://`` and ``data:`` addresses, base64, byte strings, dictionaries.

Gives bytes, or the array or image that was given. Decodes nothing, and reads nothing from the network. Which paths
may be read was decided when the row became a sample.
Containers are opened through PyAV, which is imported with the first.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmgrpo.addresses import address_form, decode_text, file_of
from mmgrpo.errors import MediaError, explain, shorten


def load_source(source: Any, *, name: str) -> Any:
    """Read what a media item's source stands for.

    Args:
        source: A path, an address, base64, bytes, ``{"bytes", "path"}``, an array or an image.
        name: How messages call the media item.

    Returns:
        Bytes for whatever holds encoded bytes; anything else as it was given. No file stays open.

    Raises:
        MediaError: Missing, unreadable, malformed, or on the network.

    Example:
        >>> load_source("data:text/plain;base64,aGVsbG8=", name="a greeting")
        b'hello'
    """
    found = resolve_source(source, name=name)
    return _file(found, name) if isinstance(found, Path) else found


def resolve_source(source: Any, *, name: str) -> Any:
    """Find what a media item's source stands for, and leave files unread: videos may be larger than memory.

    Args:
        source: As for :func:`load_source`.
        name: How messages call the media item.

    Returns:
        A path, bytes, or the array or image that was given.

    Raises:
        MediaError: Malformed, or on the network.

    Example:
        >>> resolve_source({"path": "a.mp4", "bytes": None}, name="a video")
        PosixPath('a.mp4')
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, io.BytesIO):
        return source.getvalue()
    if isinstance(source, Mapping):
        return resolve_source(_held(source, name), name=name)
    return _text(source, name) if isinstance(source, str) else source


def _held(source: Mapping[str, Any], name: str) -> Any:
    for key in ("bytes", "path"):
        if source.get(key) is not None:
            return source[key]
    raise MediaError(
        explain(
            "A dictionary holds no media item",
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
        name: How messages call the media item.

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


_FAULTS = (
    OSError, ValueError, RuntimeError, EOFError, MemoryError, OverflowError, TypeError, IndexError, AttributeError,
    ArithmeticError, AssertionError,
)  # fmt: skip


def av_errors() -> tuple[type[BaseException], ...]:
    """What PyAV raises on damaged files: errors of its own, and those of Python where a file has no such thing."""
    try:
        from av.error import FFmpegError
    except ImportError:
        return _FAULTS
    return (*_FAULTS, FFmpegError)


def open_container(source: bytes | Path, *, name: str, expected: str) -> Any:
    """Open a video or audio file; close it again.

    Args:
        source: Encoded bytes, or a file.
        name: How messages call the media item.
        expected: What it should have been, for messages.

    Returns:
        PyAV's container.

    Raises:
        MediaError: PyAV is not installed, or cannot read it.
    """
    try:
        import av
    except ImportError as error:
        fix = "Run: pip install 'mmgrpo[video]'"
        raise MediaError(explain("Reading this needs PyAV", where=name, expected=expected, fix=fix)) from error
    try:
        return av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source))
    except av_errors() as error:
        raise MediaError(
            explain(
                "This is not a media item that can be read",
                where=name,
                expected=f"an undamaged {expected}",
                got=f"{type(error).__name__}: {error}",
            )
        ) from error
