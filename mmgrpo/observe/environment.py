"""What a run ran on: versions, git commit, machine. It starts no device and imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "mmgrpo",
    "torch",
    "torchvision",
    "transformers",
    "peft",
    "datasets",
    "pydantic",
    "numpy",
    "pillow",
    "vllm",
)
"""Distributions whose versions are kept."""


def describe_environment() -> dict[str, Any]:
    """Describe versions, code and machine as plain values.

    Returns:
        ``started`` (UTC), ``command``, ``python``, ``packages``, ``git`` (of the working folder and of mmgrpo's own
        source, None where there is none) and ``machine``.
    """
    source = Path(__file__).resolve().parent
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "working_folder": str(Path.cwd()),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "git": {"working_folder": git_commit(Path.cwd()), "mmgrpo": git_commit(source)},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cpus": os.cpu_count()},
    }


def git_commit(folder: Path) -> dict[str, Any] | None:
    """Give the commit of the checkout that a folder belongs to.

    Args:
        folder: Any folder.

    Returns:
        ``commit``, and ``changed``: whether tracked files differ from it; None without git or a checkout.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
