"""Whether the hub can be reached, asked once and quickly, so that nobody waits through retries to hear that it cannot.

Where it cannot, the hub's libraries are told for a moment to use what they have in their caches. Knows addresses;
nothing of models or data sets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_SECONDS = 5.0
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_FLAGS = {
    "huggingface_hub.constants": ("HF_HUB_OFFLINE",),
    "datasets.config": ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
}


def unreachable() -> str:
    """Say why the hub cannot be reached.

    Returns:
        The reason; empty where it can be, or where a proxy stands between and nothing is known.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return ""
    parts = urlsplit(constants.ENDPOINT)
    host, port = parts.hostname or "huggingface.co", parts.port or (80 if parts.scheme == "http" else 443)
    return _try(lambda: socket.create_connection((host, port), timeout=_SECONDS).close(), host)


def _try(connect: Callable[[], Any], host: str) -> str:
    """Connect, and once more after a moment: one lost packet is no missing network."""
    reason = ""
    for pause in (0.0, 0.5):
        time.sleep(pause)
        try:
            connect()
        except OSError as error:
            reason = f"{host}: {error.strerror or error}"
        else:
            return ""
    return reason


@contextlib.contextmanager
def hub_or_cache(name: str | Path) -> Generator[str]:
    """Let the hub's libraries load something: from the hub, or at once from their caches where it is out of reach.

    Args:
        name: A hub id, or a local path, for which nothing is asked.

    Yields:
        Why the hub cannot be reached; empty where it can, or is not needed.
    """
    reason = "" if Path(name).expanduser().exists() else unreachable()
    if not reason:
        yield ""
        return
    before = [
        (sys.modules[module], flag, getattr(sys.modules[module], flag))
        for module, flags in _FLAGS.items()
        for flag in flags
        if module in sys.modules and hasattr(sys.modules[module], flag)
    ]
    for module, flag, _ in before:
        setattr(module, flag, True)
    try:
        yield reason
    finally:
        for module, flag, value in before:
            setattr(module, flag, value)
