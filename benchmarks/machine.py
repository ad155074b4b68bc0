"""What a committed benchmark result must say: machine, versions, commit, command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Machine, versions, commit and command of this process."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers")},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def peak_rss_bytes() -> int:
    """Peak resident memory of this process since :func:`reset_peak` (Linux), in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this benchmark reads /proc, which only Linux has")


def reset_peak() -> None:
    """Let the peak start from what the process holds now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
