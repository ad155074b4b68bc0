"""Keeping others from writing into a run's own output: other libraries, and the other processes of the run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console

from mmgrpo.config.load import LoadedConfig
from mmgrpo.parallel.strategy import Strategy


def only_first(loaded: LoadedConfig, console: Console | None, dist: Strategy) -> tuple[LoadedConfig, Console | None]:
    """Let the first process alone talk and write to trackers.

    Args:
        loaded: The configuration.
        console: Where the first prints.
        dist: This rank among those of the run.

    Returns:
        Both as this process uses them.
    """
    if dist.is_main_process:
        return loaded, console
    observe = loaded.config.observe.model_copy(update={"report_to": (), "progress": False})
    config = loaded.config.model_copy(update={"observe": observe})
    return replace(loaded, config=config), Console(file=io.StringIO())


@contextmanager
def quiet_bars() -> Iterator[None]:
    """Silence transformers' bars of loading and writing weights; those of downloads stay, for they take long."""
    import huggingface_hub.utils as hub
    from transformers.utils import logging

    shown, downloads = logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads:
        hub.enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
        if not downloads:
            hub.disable_progress_bars()
