"""The rows of a run: those given in Python, else those that the configuration names; every media item read once.

What cannot be read is found before anything is loaded or trained, so that no row can stop a run hours later. Gets the
function that verifies a media item as an argument and knows no decoder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mmgrpo.addresses import KINDS
from mmgrpo.config.data import Data, Mixture, Single, Source
from mmgrpo.config.schema import Config
from mmgrpo.data.mixture import AnySamples, MixedSamples
from mmgrpo.data.network import Downloads
from mmgrpo.data.prompt_loader import DataShard
from mmgrpo.data.row_errors import SkippedRows, with_row
from mmgrpo.data.rows import Rows
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows, rows_from_python
from mmgrpo.errors import (
    ConfigError,
    DataError,
    DatasetError,
    MediaError,
    MmgrpoError,
    PromptTooLong,
    counted,
    explain,
)
from mmgrpo.types import Media

OnBadMedia = Literal["error", "skip"]
Verified = dict[tuple[str, Path, str], str | None]
"""Files read as one kind of media item under some settings, and what was wrong: a video file may be good as audio."""
_CHUNK = 512
_LISTED = 10
_SPREAD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The rows of a run."""

    train: AnySamples | None
    """Rows to learn from; None where only evaluation was asked for."""
    eval: AnySamples | None
    """Held-out rows; None where there are none."""
    suites: Mapping[str, AnySamples]
    """Further held-out rows, by the name of their suite."""
    warm_start: AnySamples | None
    """Rows to imitate; None where there is no warm start (any more)."""


def open_samples(
    data: Data, source: Source | None, python_rows: Any = None, *, base: Path, needed: str
) -> AnySamples | None:
    """Open rows of Python or of the configuration.

    Args:
        data: Columns, template and seed.
        source: Where the configuration says the rows are.
        python_rows: Rows handed over in Python; they win.
        base: Folder that relative paths start from.
        needed: The key that must name rows; empty where they may be absent.

    Returns:
        The samples; None where there are none and none are needed.

    Raises:
        ConfigError: They are needed and there are none.
        DatasetError: They cannot be read.
    """
    if python_rows is not None:
        return _samples(data, rows_from_python(python_rows, base=base))
    if isinstance(source, Mixture):
        return MixedSamples([_samples(data, _opened(data, part.source, base)) for part in source.mixture])
    if source is not None:
        return _samples(data, _opened(data, source, base))
    if needed:
        raise ConfigError(
            explain(
                "There are no rows",
                where=needed,
                fix=f"Add {needed}.path (or {needed}.synthetic) to the YAML, or hand rows over in Python.",
            )
        )
    return None


def open_all(
    config: Config,
    train_rows: Any,
    eval_rows: Any,
    *,
    base: Path,
    training: bool,
    warm_start: bool,
    needs_rows: bool = True,
) -> Opened:
    """Open the rows to train on, the held-out rows, and those of the warm start.

    Args:
        config: Where they are.
        train_rows: Rows given in Python, in place of ``data.train``; None: none are.
        eval_rows: The same for ``data.eval``.
        base: Folder that relative paths start from.
        training: False: only what evaluation needs.
        warm_start: False: it is over.
        needs_rows: False: held-out rows may be absent.

    Raises:
        ConfigError: Rows are needed and there are none.
        DatasetError: They cannot be read.
    """
    data, warm = config.data, config.warm_start
    suites = config.eval.suites if config.eval else ()
    needed = "data.eval" if needs_rows and (config.eval or not training) and not suites else ""
    return Opened(
        suites={suite.name: _needed(data, suite.data, base, f"eval.suites ({suite.name})") for suite in suites},
        train=open_samples(data, data.train, train_rows, base=base, needed="data.train") if training else None,
        eval=open_samples(data, data.eval, eval_rows, base=base, needed=needed),
        warm_start=open_samples(data, warm.data, base=base, needed="warm_start.data")
        if warm and training and warm_start
        else None,
    )


def _needed(data: Data, source: Source, base: Path, key: str) -> AnySamples:
    samples = open_samples(data, source, base=base, needed=key)
    assert samples is not None  # its absence was refused
    return samples


def _opened(data: Data, source: Single, base: Path) -> Rows:
    return open_rows(source, base=base, seed=data.seed)


def _samples(data: Data, rows: Rows) -> Samples:
    remote = Downloads(max_bytes=data.remote_bytes, max_seconds=data.remote_seconds) if data.allow_remote else None
    return Samples(
        rows,
        columns=data.columns,
        template=data.template,
        allow_absolute_media=data.allow_absolute_media,
        remote=remote,
    )


def source_notes(samples: AnySamples, *, kinds: Collection[str], prompts_per_step: int) -> list[str]:
    """Say what is odd about rows to train on, a line each: that none has media, that a step repeats rows.

    Args:
        samples: The rows.
        kinds: Kinds of media that the model reads.
        prompts_per_step: Rows that one step draws.
    """
    notes = []
    if kinds and not _any_media(samples):
        named = " or ".join(f"data.columns.{kind}" for kind in KINDS if kind in kinds)
        notes.append(
            f"no row of {samples.name} has media: a model of {', '.join(sorted(kinds))} learns from text alone"
        )
        notes[-1] += f" (name the column as {named} if there is one)"
    if prompts_per_step > len(samples):
        notes.append(
            f"train.prompts_per_step is {prompts_per_step} and {samples.name} has {counted(len(samples), 'row')}: one "
            f"step draws each row about {prompts_per_step / len(samples):.0f} times"
        )
    return notes


def _any_media(samples: AnySamples) -> bool:
    """Look for media in some rows from everywhere."""
    for row in range(0, len(samples), max(1, len(samples) // _SPREAD)):
        with contextlib.suppress(DataError):  # told where rows are drawn or checked
            if samples[row].media:
                return True
    return False


def left_out_errors(data: Data) -> tuple[type[MmgrpoError], ...]:
    """Give the errors whose training row is left out instead of stopping the run.

    Args:
        data: Says so under ``on_bad_media`` and ``on_long_prompt``.

    Example:
        >>> left_out_errors(Data(max_prompt_tokens=100, on_long_prompt="skip"))
        (<class 'mmgrpo.errors.PromptTooLong'>,)
    """
    choices = {MediaError: data.on_bad_media, PromptTooLong: data.on_long_prompt}
    return tuple(error for error, choice in choices.items() if choice == "skip")


def verify_media(
    data: Data, opened: Opened, verify: Callable[[Media], None], *, shard: DataShard | None = None
) -> SkippedRows:
    """Read every media item to learn from or to evaluate on once, before anything is loaded or trained.

    Args:
        data: What to do with a media item that cannot be read.
        opened: The rows.
        verify: Raises MediaError where a media item cannot be read.
        shard: The rows that this rank reads; default: all.

    Returns:
        Training rows to leave out, under ``data.on_bad_media: skip``.

    Raises:
        MediaError: A media item cannot be read: under ``error``, or of a held-out row, where leaving it out would
            change what is measured.
    """
    for held_out in (*([opened.eval] if opened.eval is not None else []), *opened.suites.values()):
        check_media(held_out, verify, on_bad_media="error", shard=shard)
    if opened.train is None:
        return SkippedRows(source="", total=0)
    return check_media(opened.train, verify, on_bad_media=data.on_bad_media, shard=shard).left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReport:
    """What :func:`check_media` found."""

    rows: int
    """Rows looked at."""
    media: int
    """Media looked at; one file named by several rows is read once."""
    left_out: SkippedRows
    """Rows with a media item that cannot be read."""


def check_media(
    samples: AnySamples,
    verify: Callable[[Media], None],
    *,
    on_bad_media: OnBadMedia = "error",
    rows: Sequence[int] | None = None,
    threads: int = 4,
    progress: Callable[[int, int], None] | None = None,
    shard: DataShard | None = None,
) -> MediaReport:
    """Make every sample and verify every media item.

    Rows that are made in code are not looked at: their media cannot be damaged.

    Args:
        samples: Where rows come from.
        verify: Raises MediaError where a media item cannot be read.
        on_bad_media: Raise at the end with all that was found, or warn of the rows and leave them out.
        rows: Which rows; default: all.
        threads: Media read side by side.
        progress: Told how many rows are done, and of how many.
        shard: The rows that this rank looks at; each rank gets what all found: a media item that one alone could not
            read must not set their rows apart. Default: this one looks at all.

    Returns:
        How much was looked at, and the rows to leave out.

    Raises:
        MediaError: Media that cannot be read, under ``on_bad_media: error``; names rows and files.
        DatasetError: A row is malformed, or no row is left.
    """
    wanted = samples.checkable()
    if rows is not None:
        wanted = sorted(set(rows) & set(wanted)) if len(wanted) else ()
    shard = shard or DataShard()
    local = wanted[shard.rank :: shard.world_size]
    verified: Verified = {}
    faults: dict[int, str] = {}
    media = 0
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for start in range(0, len(local), _CHUNK):
            chunk = local[start : start + _CHUNK]
            results = pool.map(lambda row: _first_fault(samples, row, verify, verified), chunk)
            for row, (count, fault) in zip(chunk, results, strict=True):
                media += count
                if fault is not None:
                    faults[row] = with_row(fault, samples.where(row))
            (progress or _silent)(min(start + _CHUNK, len(local)), len(local))
    gathered = shard.all_gather((faults, media))
    faults, media = {row: fault for part, _ in gathered for row, fault in part.items()}, sum(n for _, n in gathered)
    if faults and on_bad_media == "error":
        raise MediaError(_unreadable(faults, len(wanted)))
    left_out = SkippedRows(source=samples.name, total=len(wanted))
    for row in sorted(faults):
        left_out.add(row, samples.where(row), faults[row])
    if shard.rank == 0:
        left_out.tell()
    if faults and len(left_out) == len(wanted):
        raise DatasetError(explain("No row is left whose media can be read", where=samples.name))
    return MediaReport(rows=len(wanted), media=media, left_out=left_out)


def _silent(done: int, total: int) -> None:
    """Where progress goes when nobody looks."""


def _first_fault(
    samples: AnySamples, row: int, verify: Callable[[Media], None], verified: Verified
) -> tuple[int, str | None]:
    """Count the media of a row that were read, and give the first fault."""
    count = 0
    try:
        for item in samples[row].media:
            is_read, fault = _verify_once(item, verify, verified)
            count += is_read
            if fault is not None:
                return count, fault
    except MediaError as error:
        return count, str(error)
    return count, None


def _verify_once(item: Media, verify: Callable[[Media], None], verified: Verified) -> tuple[bool, str | None]:
    """Tell whether a media item was read now, and what is wrong with it."""
    key = (item.kind, item.source, repr(sorted(item.options.items()))) if isinstance(item.source, Path) else None
    if key in verified:
        return False, verified[key]
    try:
        verify(item)
        fault = None
    except MediaError as error:
        fault = str(error)
    if key is not None:
        verified[key] = fault
    return True, fault


def _unreadable(faults: dict[int, str], total: int) -> str:
    listed = [faults[row] for row in sorted(faults)[:_LISTED]]
    more = f"\n… and {len(faults) - _LISTED} more rows." if len(faults) > _LISTED else ""
    return f"{len(faults)} of {total} rows have media that cannot be read.\n" + "\n".join(listed) + more
