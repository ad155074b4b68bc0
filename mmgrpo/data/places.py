"""Where the media of a row lie: paths resolved against the right folder, and kept inside it.

Only finds; opens and decodes nothing. What is not a path (bytes, pictures, data URIs, base64) passes through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mmgrpo.errors import MediaError, explain

_NOT_A_PATH = re.compile(r"data:", re.IGNORECASE)
_REMOTE = re.compile(r"https?:", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{40,}[A-Za-z0-9+/_\s-]*=*\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Which files the rows of one source may name."""

    base: Path | None
    """Folder that relative paths start from, and may not leave; None: relative paths are refused."""
    confined: bool = False
    """Read nothing outside ``base``, whatever the path; links are followed before judging."""
    allow_absolute: bool = True
    """Read paths that are absolute."""
    remote: Callable[[str], Path] | None = None
    """Downloads an ``http(s)`` address and gives the file; None: such addresses are refused."""


def locate(value: Any, places: Places, *, where: str) -> Any:
    """Turn what a row names as a medium into something to open.

    Args:
        value: A path, ``file://`` address, ``{"bytes", "path"}`` or ``{"frames", "fps"}`` dictionary, a list of such
            frames, or the medium itself.
        places: Which files may be named.
        where: Row and column, for messages.

    Returns:
        An absolute path, or ``value`` where it is no path, base64 as a ``data:`` address. The file need not exist.

    Raises:
        MediaError: The path leaves its folder, or is of a kind that is not allowed.
    """
    if isinstance(value, Mapping):
        return _held(value, places, where)
    if isinstance(value, list | tuple):
        return [locate(one, places, where=where) for one in value]
    if isinstance(value, str) and _REMOTE.match(value):
        return _downloaded(value, places, where)
    if isinstance(value, Path):
        return _inside(str(value), places, where)
    if not isinstance(value, str) or _NOT_A_PATH.match(value):
        return value
    if value.lower().startswith("file:"):
        return _inside(unquote(urlsplit(value).path), places, where)
    if _BASE64.fullmatch(value) and not _exists(value, places):
        return f"data:;base64,{value}"  # said for good: whoever opens it must not find a file of that name elsewhere
    return _inside(value, places, where)


def _held(value: Mapping[str, Any], places: Places, where: str) -> Any:
    """Judge every path that a dictionary may hold: decoders look under all of these keys."""
    for key in ("bytes", "path"):
        if isinstance(value.get(key), str | Path):
            return locate(value[key], places, where=where)
        if value.get(key) is not None:
            return value
    named = {key: value[key] for key in ("frames", "video") if isinstance(value.get(key), _NAMING)}
    return {**value, **{key: locate(one, places, where=where) for key, one in named.items()}}


_NAMING = (str, Path, list, tuple, Mapping)


def _downloaded(address: str, places: Places, where: str) -> Path:
    if places.remote is not None:
        return places.remote(address)
    raise MediaError(
        explain(
            "A medium lies on the network",
            where=where,
            got=address[:200],
            fix="Download it and name the local file, or set data.allow_remote: true.",
        )
    )


def _exists(value: str, places: Places) -> bool:
    try:
        return (places.base or Path()).joinpath(value).exists()
    except OSError:  # longer than any file name may be
        return False


def _inside(written: str, places: Places, where: str) -> Path:
    if "\0" in written:
        raise MediaError(explain("A media path holds a NUL character", where=where, got=repr(written)))
    path = Path(written)
    if path.is_absolute():
        if not places.allow_absolute and not places.confined:
            raise MediaError(
                explain(
                    "An absolute media path is not allowed",
                    where=where,
                    got=written,
                    fix="Set data.allow_absolute_media: true, or media_root to the folder that may be read.",
                )
            )
        return _confined(Path(os.path.normpath(path)), places, where, written)
    if places.base is None:
        raise MediaError(
            explain(
                "A relative media path has no folder to start from",
                where=where,
                got=written,
                fix="Set media_root to the folder of the media files.",
            )
        )
    base = Path(os.path.abspath(places.base))
    full = Path(os.path.normpath(base / path))
    if not full.is_relative_to(base):
        raise MediaError(
            explain(
                "A media path climbs out of its folder",
                where=where,
                expected=f"a path below {base}",
                got=written,
                fix="Set media_root to a folder that holds all media, and write paths relative to it.",
            )
        )
    return _confined(full, places, where, written)


def _confined(full: Path, places: Places, where: str, written: str) -> Path:
    if not places.confined or places.base is None:
        return full
    root = places.base.resolve()
    if full.resolve().is_relative_to(root):
        return full
    raise MediaError(
        explain(
            "A media path lies outside media_root",
            where=where,
            expected=f"a path below {root}",
            got=f"{written} ({full.resolve()})",
            fix="Move the file, or set media_root to a folder that holds all media.",
        )
    )
