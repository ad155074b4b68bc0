"""Keeping other libraries from writing into a run's own output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
