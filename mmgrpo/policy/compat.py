"""Differences between the versions of transformers that are supported (5.16 to 5.x), in one place."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_REENTRANT_OFF = {"use_reentrant": False}


def enable_gradient_checkpointing(model: Any) -> None:
    """Recompute layers in backward. Renamed in 5.24; non-reentrant, so that adapters and keywords survive."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=_REENTRANT_OFF)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_REENTRANT_OFF)


def cache_keyword(decoder: Any) -> str:
    """Name of the cache argument of a language model: ``cache`` from 5.20 on, ``past_key_values`` before."""
    return "cache" if "cache" in inspect.signature(type(decoder).forward).parameters else "past_key_values"


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Keep back two warnings of peft that a user can do nothing about.

    One is of a name that transformers 5.24 renamed and peft still reads; the other says that adapters on tied
    embeddings are lost in merging, while merging here unties them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")
        yield
