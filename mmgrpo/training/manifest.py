"""Which checkpoint folders are complete: writing the manifest, checking it, finding the newest.

A folder is complete when it holds a manifest, written last, whose every file is there with its size (and, for small
files, its SHA-256). Does not know what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

MANIFEST = "COMPLETE"
HASHED_BYTES = 1 << 20
"""Files up to this size are hashed, too: cheap, and where a damaged byte would hide (configs, tokenizers)."""

_NAME = re.compile(r"(?:\.old-)?step-(\d+)")


def step_of(path: Path) -> int | None:
    """Read the step from a checkpoint's name; None: it has no such name.

    Example:
        >>> step_of(Path("checkpoints/step-40"))
        40
    """
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else None


def finalize(folder: Path) -> None:
    """Flush every file of a folder to the disk and write its manifest last.

    Raises:
        OSError: The disk is full, or a file cannot be read back.
    """
    files = {str(path.relative_to(folder)): _record(path) for path in _files(folder)}
    for name in files:
        sync(folder / name)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
    sync(manifest)
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        sync(path)


def sync(path: Path) -> None:
    """Ask the system to write a file or folder entry to the disk now."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def why_incomplete(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint folder; None when it is complete."""
    try:
        expected = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        wrong = (_difference(folder / name, record) for name, record in expected.items())
        return next((text for text in wrong if text), None)
    except FileNotFoundError:
        return f"{MANIFEST} is missing: the save was interrupted" if folder.is_dir() else "there is no such folder"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """Find the complete checkpoints of a run.

    Args:
        folder: The run's ``checkpoints`` folder; need not exist.

    Returns:
        Path by step, rising. A checkpoint that was being replaced when the run died is found under its old name.
    """
    found: dict[int, Path] = {}
    for path in [*folder.glob("step-*"), *folder.glob(".old-step-*")]:
        step = step_of(path)
        if step is not None and step not in found and why_incomplete(path) is None:
            found[step] = path
    return dict(sorted(found.items()))


def latest(folder: Path) -> Path | None:
    """Find the newest complete checkpoint of a run; None when there is none."""
    return next(reversed(complete_checkpoints(folder).values()), None)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST)


def _record(path: Path) -> dict[str, int | str]:
    size = path.stat().st_size
    return {"bytes": size} if size > HASHED_BYTES else {"bytes": size, "sha256": _hash(path)}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _difference(path: Path, record: dict[str, int | str]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != record["bytes"]:
        return f"{path.name} has {path.stat().st_size} bytes instead of {record['bytes']}"
    if "sha256" in record and _hash(path) != record["sha256"]:
        return f"{path.name} is damaged: its SHA-256 is not that of the manifest"
    return None
