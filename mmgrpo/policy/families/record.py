"""What a family record says: which keys feed what, how prompts join, where the parts are.

A record is data and plain functions; the rest of ``policy/`` works from it and knows no family. Adding a family is
adding one file that fills a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.errors import ProcessorError, explain
from mmgrpo.types import Prompt

Layout = Literal["packed", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What one key of the processor's output is for."""

    feeds: Literal["encoder", "language"]
    """An encoder, or the language model (positions, token types)."""
    join: Literal["concat", "tiles", "tokens", "list"]
    """concat: one entry per medium (or patch, tile, frame), prompts after one another along the first axis; tiles:
    ``[1, tiles, …]``, after one another along the second; tokens: one value per prompt token, ``[1, P]``; list: kept
    per prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One prompt as the language model reads it."""

    embeddings: Float[Tensor, "P D"]
    """Token embeddings with encoder features in place of placeholders."""
    positions: Int[Tensor, "A P"]
    """On each of the A position axes."""
    extras: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What the family hands to its language model beside (deepstack features, per-layer inputs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An encoded prompt and where it stands in the language model's input."""

    encoded: Encoded
    row: int
    """Batch row: 0 under the packed layout."""
    start: int
    """First column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of models."""

    name: str
    """transformers' ``model_type``."""
    kinds: frozenset[str]
    """Media kinds that it reads."""
    model_class: str = "AutoModelForMultimodalLM"
    """The transformers class that loads it; named only where the automatic one is not the right one."""
    parts: Mapping[str, tuple[str, ...]]
    """Part (language, vision, projector, audio) to prefixes of parameter names; the longest prefix wins."""
    keys: Mapping[str, Key]
    """The processor's keys."""
    decoder: str
    """Path of the language model inside the model, for example ``model.language_model``."""
    axes: int
    """Position axes: 3 for M-RoPE, 1 else."""
    layout: Layout
    """Whether its attention can be shared over a group: a "rows" family has no other layout."""
    encode: Callable[[nn.Module, Sequence[Prompt]], list[Encoded]]
    """Run the encoders once per prompt, all prompts in one call."""
    media_tokens: Callable[[Any], Mapping[str, tuple[int, ...]]]
    """Model config to placeholder token ids by media kind. Kinds may share a token."""
    count_features: Callable[[Prompt, Any], Mapping[str, int]]
    """Encoder features of a prompt by media kind, from the processor's keys and the model config; runs no encoder.
    Kinds that share a placeholder share a count."""
    language_inputs: Callable[[Sequence[Placed], tuple[int, int]], dict[str, Any]] = lambda placed, shape: {}
    """Keyword arguments of the language model beside embeddings and positions, for an input of ``[B, L]``."""
    row_positions: Callable[[nn.Module, Prompt, int], Tensor | None] = lambda model, prompt, length: None
    """Position ids of a prompt and so many completion tokens in one plain row, ``[A, 1, L]``, where transformers' own
    are not those of the checkpoint; None: its own are right."""
    finish_logits: Callable[[Tensor, Any], Tensor] | None = None
    """What the family does after its LM head (soft-capping, scaling), given logits and model config."""
    fixed: tuple[str, ...] = ()
    """Prefixes of parameters that never learn (tables of sines), whatever is set free."""
    sound_in_clips: bool = False
    """Whether the sound of a clip stands inside the clip, moment by moment, where the processor can lay it out so."""
    counts_pictures: bool = False
    """Whether its processor treats pictures by how many a prompt has, and must be told which are one prompt's."""
    set_pixel_limits: Callable[[Any, int | None, int | None], None] | None = None
    """Writes ``model.min_pixels`` and ``model.max_pixels`` (None keeps the checkpoint's) into its processor; None: it
    has no such limits."""
    tiny: Callable[[Mapping[str, int], int], tuple[nn.Module, Any]] | None = None
    """Build a twin of about one million parameters and its processor from size overrides and a seed."""


def part_of(family: Family, parameter: str) -> str:
    """Tell which part a parameter belongs to.

    Args:
        family: The record.
        parameter: Its name in the model, without wrappers' prefixes.

    Returns:
        The part with the longest matching prefix; "language" where none matches.
    """
    best, length = "language", -1
    for part, prefixes in family.parts.items():
        for prefix in prefixes:
            if parameter.startswith(prefix) and len(prefix) > length:
                best, length = part, len(prefix)
    return best


def join_inputs(family: Family, prompts: Sequence[Prompt], device: torch.device) -> dict[str, Any]:
    """Join the processor's keys of several prompts, each by its rule.

    Every key reaches the model: one that the record does not know joins along its first axis if that has one entry
    per medium of the prompt, and is refused by name otherwise.

    Args:
        family: Says how each key joins.
        prompts: In order.
        device: Where tensors go.

    Returns:
        Joined tensors by key; keys that no prompt has are left out.

    Raises:
        ProcessorError: A key is unknown and does not have one entry per medium.
    """
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(k for p in prompts for k in p.model_inputs):
        holders = [p for p in prompts if name in p.model_inputs]
        rule = family.keys.get(name) or _rule_of_unknown(family, name, holders)
        values = [_as_tensor(p.model_inputs[name], device) for p in holders]
        if rule.join == "concat":
            joined[name] = torch.cat(values)
        elif rule.join == "tiles":
            joined[name] = torch.cat(values, dim=1)
        elif rule.join == "tokens":
            joined[name] = torch.cat([v.reshape(-1) for v in values])
        else:
            joined[name] = values
    return joined


def _as_tensor(value: Any, device: torch.device) -> Tensor:
    return (value if isinstance(value, Tensor) else torch.as_tensor(value)).to(device)


def _rule_of_unknown(family: Family, name: str, holders: Sequence[Prompt]) -> Key:
    for prompt in holders:
        value = prompt.model_inputs[name]
        length = len(value) if hasattr(value, "__len__") else -1
        if length != len(prompt.media) or not prompt.media:
            raise ProcessorError(
                explain(
                    f"The processor returned a key that the {family.name} record does not know",
                    where=f"key {name!r}, sample {prompt.sample.id}",
                    expected=f"one of {', '.join(sorted(family.keys))}, or one entry per medium ({len(prompt.media)})",
                    got=f"{length} entries",
                    fix="Add the key to the family's record with the rule by which prompts join.",
                )
            )
    return Key(feeds="encoder", join="concat")


def text_positions(length: int, device: torch.device) -> Int[Tensor, "1 P"]:
    """Positions 0, 1, 2, … on one axis."""
    return torch.arange(length, device=device)[None]
