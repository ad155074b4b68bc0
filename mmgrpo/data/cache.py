"""Processed prompts kept by content: in memory up to a number of bytes, in files of a folder, or both.

Stands before the function that makes prompts; what it hands out is what that function gave, under the id, answer and
columns of the row that asks. Knows no processor: the fingerprint of its settings is part of every key.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmgrpo.data.content import key_of
from mmgrpo.types import Decoded, Prompt, Sample

Encode = Callable[[Sample, int], Prompt]


class PromptCache:
    """Makes each prompt once per content. Safe to use from several threads."""

    def __init__(self, encode: Encode, *, fingerprint: str, max_bytes: int = 0, folder: Path | None = None) -> None:
        """Start empty, or with what the folder holds.

        Args:
            encode: Makes a prompt of a sample and its occurrence.
            fingerprint: All settings that change what ``encode`` gives.
            max_bytes: Tensors and media held in memory, in bytes; those used longest ago go first.
            folder: Files, one per prompt; None: none. Nothing in it is ever deleted.
        """
        self._encode, self._fingerprint = encode, fingerprint
        self._max_bytes, self._folder = max_bytes, folder
        self._held: OrderedDict[str, tuple[Prompt, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self.made = 0
        """Prompts made, not found."""

    @property
    def held_bytes(self) -> int:
        """What is in memory now."""
        return self._bytes

    def __call__(self, sample: Sample, occurrence: int) -> Prompt:
        """Give the prompt of a sample.

        Args:
            sample: The row.
            occurrence: How many prompts the run had drawn before this one.

        Returns:
            The prompt; one that was found shares its tensors and media with all others of the same content.
        """
        key = key_of(sample, self._fingerprint)
        if key is None:
            self.made += 1
            return self._encode(sample, occurrence)
        found = self._find(key)
        if found is None and self._folder is not None:
            found = _read(self._folder / f"{key}.pt", sample)
            if found is not None:
                self._hold(key, found)
        if found is None:
            self.made += 1
            found = self._encode(sample, occurrence)
            self._hold(key, found)
            if self._folder is not None and len(found.sample.media) == len(sample.media):
                _write(self._folder / f"{key}.pt", found)
        own = replace(found.sample, id=sample.id, answer=sample.answer, extras=sample.extras)
        return replace(found, sample=own, occurrence=occurrence)

    def _find(self, key: str) -> Prompt | None:
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def _hold(self, key: str, prompt: Prompt) -> None:
        size = size_of(prompt)
        if size > self._max_bytes:
            return
        bare = replace(prompt, sample=replace(prompt.sample, extras={}, answer=None))
        with self._lock:
            _, before = self._held.pop(key, (None, 0))
            self._held[key] = (bare, size)
            self._bytes += size - before
            while self._bytes > self._max_bytes:
                _, (_, gone) = self._held.popitem(last=False)
                self._bytes -= gone


def size_of(prompt: Prompt) -> int:
    """Count the bytes of a prompt's tensors, media and text.

    Args:
        prompt: Any.
    """
    media = sum(_nbytes(medium.data) for medium in prompt.media)
    return _nbytes(prompt.token_ids) + _nbytes(prompt.model_inputs) + media + len(prompt.text)


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(_nbytes(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return sum(_nbytes(inner) for inner in value)
    if hasattr(value, "getbands"):
        return value.width * value.height * len(value.getbands())
    return 8


def _write(path: Path, prompt: Prompt) -> None:
    """Write the whole file or none of it: another process may read it at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    media = [
        {"kind": m.kind, "data": torch.from_numpy(np.array(m.data)), "rate": m.rate, "times": list(m.times)}
        for m in prompt.media
    ]
    content = {
        "text": prompt.text,
        "prefill": prompt.prefill,
        "token_ids": prompt.token_ids,
        "model_inputs": dict(prompt.model_inputs),
        "media": media,
    }
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        torch.save(content, file)
    os.replace(file.name, path)


def _read(path: Path, sample: Sample) -> Prompt | None:
    """Read a file; one that is missing or damaged is made anew."""
    try:
        content = torch.load(path, weights_only=True)
        media = tuple(_decoded(m, own.name) for m, own in zip(content["media"], sample.media, strict=True))
        return Prompt(
            sample=sample,
            text=content["text"],
            token_ids=content["token_ids"],
            model_inputs=content["model_inputs"],
            media=media,
            prefill=content["prefill"],
        )
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError):
        return None


def _decoded(content: Mapping[str, Any], name: str) -> Decoded:
    from PIL import Image

    data: Any = content["data"].numpy()
    if content["kind"] == "image":
        data = Image.fromarray(data)
    return Decoded(kind=content["kind"], data=data, rate=content["rate"], times=tuple(content["times"]), name=name)
