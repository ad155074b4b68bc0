"""The protocols between rooms: what an engine, a processor, a reward function and a family of models promise.

A room that needs one of these names the protocol, and ``assemble.py`` hands it the thing. No class inherits from
these; having the methods is enough. This module knows none of the implementations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from mmgrpo.types import Group, Prompt, Sample, Sampling, ScoredGroup


class Engine(Protocol):
    """Writes completions."""

    def generate(self, prompts: Sequence[Prompt], counts: Sequence[int], sampling: Sampling) -> list[Group]:
        """Write ``counts[i]`` completions for ``prompts[i]``, each prompt computed once.

        Raises:
            RolloutError: The engine failed.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the trainer's weights; completions written after this carry ``policy_version == version``."""
        ...


class Processor(Protocol):
    """Turns samples into prompts."""

    def encode(self, sample: Sample, *, occurrence: int = 0) -> Prompt:
        """Decode the media, render the chat template and tokenise.

        Raises:
            MediaError: A medium cannot be read.
            ProcessorError: No template, too long, or placeholders do not match the media.
        """
        ...

    def decode(self, token_ids: Tensor) -> str:
        """Turn completion ids into text without the tokens that end a turn."""
        ...


class RewardFunction(Protocol):
    """Scores completions: keyword arguments in, one number (or None: does not apply) per completion out."""

    def __call__(self, **columns: Any) -> Sequence[float | None]:
        """Return one number or None per completion."""
        ...


class Scorer(Protocol):
    """All rewards of a run together."""

    names: tuple[str, ...]

    def score(self, groups: Sequence[Group], *, step: int = 0) -> list[ScoredGroup]:
        """Score every completion with every reward.

        Raises:
            RewardError: A reward raised or broke its contract.
        """
        ...


class Feed(Protocol):
    """An endless, resumable source of prompts."""

    def take(self, count: int) -> list[Prompt]:
        """Hand out the next ``count`` prompts."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Where consumption stands (JSON-serialisable)."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood."""
        ...


class FamilyFacts(Protocol):
    """What ``media/`` needs to know of a model family without importing it."""

    @property
    def name(self) -> str:
        """For example ``qwen2_5_vl``."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """Media kinds that the family reads."""
        ...

    @property
    def joined_one_by_one(self) -> frozenset[str]:
        """Kinds of media that, processed alone and joined along the first axis, are what they are together."""
        ...

    @property
    def sound_in_clips(self) -> bool:
        """Whether it was made to hear the sound of a clip woven into the clip, and not after it."""
        ...

    @property
    def counts_pictures(self) -> bool:
        """Whether its processor treats pictures by how many a prompt has."""
        ...

    def count_media_tokens(self, token_ids: Tensor) -> Mapping[str, int]:
        """Placeholder tokens in a prompt, by media kind."""
        ...


class Sink(Protocol):
    """Takes metrics: a file, TensorBoard, a tracking service."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one row of metrics."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...
