"""Differences between the versions of transformers that are supported (5.16 to 5.x), in one place."""

from __future__ import annotations

import inspect
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
