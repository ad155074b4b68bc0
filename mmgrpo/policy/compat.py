"""Differences between the versions of transformers that are supported (5.16 to 5.x), in one place."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

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


def decoder_of(model: Any, path: str) -> Any:
    """The language model inside a model: at ``path``, or where older versions of the family keep it."""
    try:
        return attrgetter(path)(model)
    except AttributeError:
        return model.get_decoder()


def media_base(model: Any) -> Any:
    """What has the encoders: ``model.model``, or in older versions of the omni Thinker the model itself."""
    inner = getattr(model, "model", model)
    return inner if hasattr(inner, "visual") or hasattr(inner, "audio_tower") else model


def joined(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Encoder features of all media in one tensor: newer versions return a list, one tensor per medium."""
    return features if isinstance(features, Tensor) else torch.cat(list(features))
