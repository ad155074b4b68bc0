"""The rows of a run: those given in Python, else those that the configuration names; every medium read once.

Gets the function that verifies a medium as an argument and knows no decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.config.data import Data, Mixture, Single, Source
from mmgrpo.config.schema import Config
from mmgrpo.data.check import check_media
from mmgrpo.data.feed import Share
from mmgrpo.data.lazy import Rows
from mmgrpo.data.mixture import AnySamples, MixedSamples
from mmgrpo.data.remote import Downloads
from mmgrpo.data.rows import open_rows, rows_from_python
from mmgrpo.data.samples import Samples
from mmgrpo.errors import ConfigError, MediaError, MmgrpoError, PromptTooLong, explain
from mmgrpo.types import Media


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The rows of a run."""

    train: AnySamples | None
    """Rows to learn from; None where only evaluation was asked for."""
    eval: AnySamples | None
    """Held-out rows; None where there are none."""
    warm_start: AnySamples | None
    """Rows to imitate; None where there is no warm start (any more)."""


def open_samples(
    data: Data, source: Source | None, given: Any = None, *, base: Path, needed: str
) -> AnySamples | None:
    """Open rows of Python or of the configuration.

    Args:
        data: Columns, template and seed.
        source: Where the configuration says the rows are.
        given: Rows given in Python; they win.
        base: Folder that relative paths start from.
        needed: The key that must name rows; empty where they may be absent.

    Returns:
        The samples; None where there are none and none are needed.

    Raises:
        ConfigError: They are needed and there are none.
        DatasetError: They cannot be read.
    """
    if given is not None:
        return _samples(data, rows_from_python(given, base=base))
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
    config: Config, train_rows: Any, eval_rows: Any, *, base: Path, training: bool, warm_start: bool
) -> Opened:
    """Open the rows to train on, the held-out rows, and those of the warm start.

    Args:
        config: Where they are.
        train_rows: Rows given in Python, in place of ``data.train``; None: none are.
        eval_rows: The same for ``data.eval``.
        base: Folder that relative paths start from.
        training: False: only what evaluation needs.
        warm_start: False: it is over.

    Raises:
        ConfigError: Rows are needed and there are none.
        DatasetError: They cannot be read.
    """
    data, warm = config.data, config.warm_start
    needed = "data.eval" if config.eval or not training else ""
    return Opened(
        train=open_samples(data, data.train, train_rows, base=base, needed="data.train") if training else None,
        eval=open_samples(data, data.eval, eval_rows, base=base, needed=needed),
        warm_start=open_samples(data, warm.data, base=base, needed="warm_start.data")
        if warm and training and warm_start
        else None,
    )


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


def left_out_errors(data: Data) -> tuple[type[MmgrpoError], ...]:
    """Give the errors whose training row is left out instead of stopping the run.

    Args:
        data: Says so under ``on_bad_media`` and ``on_long_prompt``.

    Example:
        >>> left_out_errors(Data(on_long_prompt="skip"))
        (<class 'mmgrpo.errors.PromptTooLong'>,)
    """
    choices = {MediaError: data.on_bad_media, PromptTooLong: data.on_long_prompt}
    return tuple(error for error, choice in choices.items() if choice == "skip")


def verify_media(
    data: Data, opened: Opened, verify: Callable[[Media], None], *, share: Share | None = None
) -> frozenset[int]:
    """Read every medium to learn from or to evaluate on once, before anything is loaded or trained.

    Args:
        data: What to do with a medium that cannot be read.
        opened: The rows.
        verify: Raises MediaError where a medium cannot be read.
        share: Processes that read a part each; default: this one reads all.

    Returns:
        Training rows to leave out, under ``data.on_bad_media: skip``.

    Raises:
        MediaError: A medium cannot be read: under ``error``, or of a held-out row, where leaving it out would change
            what is measured.
    """
    if opened.eval is not None:
        check_media(opened.eval, verify, on_bad_media="error", share=share)
    if opened.train is None:
        return frozenset()
    return frozenset(check_media(opened.train, verify, on_bad_media=data.on_bad_media, share=share).left_out)
