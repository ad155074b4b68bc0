"""Media containers through PyAV: opened from bytes or a file, and what may go wrong in them.

PyAV is imported with the first container. Knows no frames and no samples.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from mmgrpo.errors import MediaError, explain

_FAULTS = (
    OSError, ValueError, RuntimeError, EOFError, MemoryError, OverflowError, TypeError, IndexError, AttributeError,
    ArithmeticError, AssertionError,
)  # fmt: skip


def faults() -> tuple[type[BaseException], ...]:
    """What PyAV raises on damaged files: errors of its own, and those of Python where a file has no such thing."""
    try:
        from av.error import FFmpegError
    except ImportError:
        return _FAULTS
    return (*_FAULTS, FFmpegError)


def open_container(source: bytes | Path, *, name: str, expected: str) -> Any:
    """Open a film or a sound; close it again.

    Args:
        source: Encoded bytes, or a file.
        name: How messages call the medium.
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
    except faults() as error:
        raise MediaError(
            explain(
                "This is not a medium that can be read",
                where=name,
                expected=f"an undamaged {expected}",
                got=f"{type(error).__name__}: {error}",
            )
        ) from error
