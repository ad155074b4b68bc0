"""Read every row and every medium once before a run, so that none of them can stop it hours later.

Gets the function that verifies a medium as an argument and knows no decoder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmgrpo.data.feed import Share
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.refusals import left_out_line, with_row
from mmgrpo.errors import DatasetError, MediaError, explain
from mmgrpo.types import Media

OnBadMedia = Literal["error", "skip"]
Known = dict[tuple[str, Path], str | None]
"""Files that were read as one kind of medium, and what was wrong: a clip may be sound where it is no film."""
_CHUNK = 512
_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReport:
    """What :func:`check_media` found."""

    rows: int
    """Rows looked at."""
    media: int
    """Media looked at; one file named by several rows is read once."""
    left_out: dict[int, str]
    """Rows with a medium that cannot be read, by number, and the reason."""


def check_media(
    samples: AnySamples,
    verify: Callable[[Media], None],
    *,
    on_bad_media: OnBadMedia = "error",
    rows: Sequence[int] | None = None,
    threads: int = 4,
    progress: Callable[[int, int], None] | None = None,
    share: Share | None = None,
) -> MediaReport:
    """Make every sample and verify every medium.

    Rows that are made in code are not looked at: their media cannot be damaged.

    Args:
        samples: Where rows come from.
        verify: Raises MediaError where a medium cannot be read.
        on_bad_media: Raise at the end with all that was found, or warn of each row and leave it out.
        rows: Which rows; default: all.
        threads: Media read side by side.
        progress: Told how many rows are done, and of how many.
        share: Processes that look at a part each, and find what all found: a medium that one alone could not read
            must not set their rows apart. Default: this one looks at all.

    Returns:
        How much was looked at, and the rows to leave out.

    Raises:
        MediaError: Media that cannot be read, under ``on_bad_media: error``; names rows and files.
        DatasetError: A row is malformed, or no row is left.
    """
    wanted = samples.checkable()
    if rows is not None:
        wanted = sorted(set(rows) & set(wanted)) if len(wanted) else ()
    together = share or Share()
    own = wanted[together.rank :: together.world]
    known: Known = {}
    left_out: dict[int, str] = {}
    media = 0
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for start in range(0, len(own), _CHUNK):
            chunk = own[start : start + _CHUNK]
            found = pool.map(lambda row: _faults(samples, row, verify, known), chunk)
            for row, (count, fault) in zip(chunk, found, strict=True):
                media += count
                if fault is not None:
                    left_out[row] = with_row(fault, samples.where(row))
            (progress or _silent)(min(start + _CHUNK, len(own)), len(own))
    found_by = together.gather((left_out, media))
    left_out, media = {row: fault for part, _ in found_by for row, fault in part.items()}, sum(n for _, n in found_by)
    _report(left_out, samples, len(wanted), on_bad_media, tell=together.rank == 0)
    return MediaReport(rows=len(wanted), media=media, left_out=left_out)


def _silent(done: int, total: int) -> None:
    """Where progress goes when nobody looks."""


def _faults(samples: AnySamples, row: int, verify: Callable[[Media], None], known: Known) -> tuple[int, str | None]:
    """Count the media of a row that were read, and give the first fault."""
    count = 0
    try:
        for medium in samples[row].media:
            read, fault = _verified(medium, verify, known)
            count += read
            if fault is not None:
                return count, fault
    except MediaError as error:
        return count, str(error)
    return count, None


def _verified(medium: Media, verify: Callable[[Media], None], known: Known) -> tuple[bool, str | None]:
    """Tell whether a medium was read now, and what is wrong with it."""
    place = (medium.kind, medium.source) if isinstance(medium.source, Path) else None
    if place in known:
        return False, known[place]
    try:
        verify(medium)
        fault = None
    except MediaError as error:
        fault = str(error)
    if place is not None:
        known[place] = fault
    return True, fault


def _report(
    left_out: dict[int, str], samples: AnySamples, total: int, on_bad_media: OnBadMedia, *, tell: bool
) -> None:
    if not left_out:
        return
    if on_bad_media == "error":
        listed = [left_out[row] for row in sorted(left_out)[:_LISTED]]
        more = f"\n… and {len(left_out) - _LISTED} more rows." if len(left_out) > _LISTED else ""
        raise MediaError(
            f"{len(left_out)} of {total} rows have media that cannot be read.\n" + "\n".join(listed) + more
        )
    for row in sorted(left_out) if tell else ():
        warnings.warn(left_out_line(left_out[row]), stacklevel=4)
    if len(left_out) == total:
        raise DatasetError(explain("No row is left whose media can be read", where=samples.name))
    if tell:
        warnings.warn(
            f"{samples.name}: {len(left_out)} of {total} rows left out because their media cannot be read.",
            stacklevel=4,
        )
