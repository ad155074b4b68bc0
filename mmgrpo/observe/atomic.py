"""Files that are whole or not there: written beside their place, flushed, then renamed over it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from pathlib import Path

from mmgrpo.errors import CheckpointError, explain

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEMPORARY = ".tmp"
_ABANDONED_SECONDS = 60.0
"""No file takes longer to write; what is older was left by a process that was killed."""
_OLD_NAME = re.compile(
    r"\.(run\.json|config\..*yaml|metrics\..*jsonl|(eval_.*|step_\d+).*\.(jsonl?|parquet))\.[a-z0-9_]{8}"
)
"""Names of temporary files before they had an ending of their own."""


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a later run, never sees half of it.

    Args:
        path: The file; its folder must exist. An existing file is replaced.
        content: Text (written as UTF-8) or bytes.

    Raises:
        CheckpointError: The disk is full or the folder cannot be written; an existing file is still as it was.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder.

    Args:
        folder: Where :func:`write_atomic` writes; need not exist.
    """
    for path in folder.glob(".*"):
        if path.is_file() and (path.suffix == _TEMPORARY or _OLD_NAME.fullmatch(path.name)):
            with contextlib.suppress(OSError):  # another process may be faster
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()


def cannot_write(path: str | Path, error: OSError) -> CheckpointError:
    """Say why a file cannot be written, and what to do.

    Args:
        path: The file.
        error: What the system said.

    Returns:
        The error to raise.
    """
    if error.errno in _FULL:
        fix = "Free space there, or set train.output_dir to another disk; then resume the run."
        return CheckpointError(explain("The disk is full", where=str(Path(path).parent), got=str(path), fix=fix))
    fix = "Check the folder and its permissions, or set train.output_dir."
    return CheckpointError(explain("Cannot write a file", where=str(path), got=error.strerror or str(error), fix=fix))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
