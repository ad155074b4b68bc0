"""What a family's record says: which keys feed what, how prompts join, where the parts are.

A record is data and plain functions; the rest of ``policy/`` works from it and knows no family. Adding a family is
filling one :class:`FamilySpec` and registering it.
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

Layout = Literal["packed", "unpacked"]
Join = Literal["concat", "tiles", "tokens", "list"]
"""How one key of several prompts joins. concat: one entry per media item (or patch, tile, frame), along the first
axis; tiles: ``[1, tiles, …]``, along the second; tokens: one value per prompt token, ``[1, P]``; list: kept per
prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """One prompt as the language model reads it."""

    embeddings: Float[Tensor, "P D"]
    """Token embeddings with encoder features in place of placeholders."""
    positions: Int[Tensor, "A P"] | Float[Tensor, "A P"]
    """On each of the A position axes; fractions where a family does not round the times of a video."""
    extras: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What the family hands to its language model beside (deepstack features, per-layer inputs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPrompt:
    """An encoded prompt and where it stands in the language model's input."""

    encoded: EncodedPrompt
    row: int
    """Batch row: 0 under the packed layout."""
    start: int
    """First column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """One family of models."""

    name: str
    """transformers' ``model_type``."""
    aliases: tuple[str, ...] = ()
    """Other values of ``model_type`` that mean this family."""
    kinds: frozenset[str]
    """Media kinds that it reads."""
    model_class: str = "AutoModelForMultimodalLM"
    """The transformers class that loads it; named only where the automatic one is not the right one."""
    parts: Mapping[str, tuple[str, ...]]
    """Part (language, vision, projector, audio) to prefixes of parameter names; the longest prefix wins."""
    keys: Mapping[str, Join]
    """The processor's keys, and how those of several prompts join."""
    decoder: str
    """Path of the language model inside the model, for example ``model.language_model``."""
    axes: int
    """Position axes: 3 for M-RoPE, 1 else."""
    layout: Layout
    """Whether its attention can be shared over a group: an "unpacked" family has no other layout."""
    encode_media: Callable[[Any, Sequence[Prompt], Mapping[str, Any]], list[EncodedPrompt]]
    """Run the encoders once per prompt, all prompts in one call: model, prompts, and their keys joined by ``keys``."""
    media_tokens: Callable[[Any], Mapping[str, tuple[int, ...]]]
    """Model config to placeholder token ids by media kind. Kinds may share a token."""
    count_features: Callable[[Prompt, Any], Mapping[str, int]]
    """Encoder features of a prompt by media kind, from the processor's keys and the model config; runs no encoder.
    Kinds that share a placeholder share a count."""
    language_inputs: Callable[[Sequence[PlacedPrompt], tuple[int, int]], dict[str, Any]] = lambda placed, shape: {}
    """Keyword arguments of the language model beside embeddings and positions, for an input of ``[B, L]``."""
    row_positions: Callable[[nn.Module, Prompt, int], Tensor | None] = lambda model, prompt, length: None
    """Position ids of a prompt and so many completion tokens in one plain row, ``[A, 1, L]``, where transformers' own
    are not those of the checkpoint; None: its own are right."""
    finish_logits: Callable[[Tensor, Any], Tensor] | None = None
    """What the family does after its LM head (soft-capping, scaling), given logits and model config."""
    never_trained: tuple[str, ...] = ()
    """Prefixes of parameters that never learn (tables of sines), whatever ``model.freeze`` says."""
    unused_weights: tuple[str, ...] = ()
    """Prefixes of weights that its checkpoints have and its model does not use (a speech decoder)."""
    generic: bool = False
    """Whether it was made from a model without a record; a self-check then looks whether it fits."""
    audio_in_video: bool = False
    """Whether a video's audio stands inside the video, moment by moment, where the processor can lay it out so."""
    counts_images: bool = False
    """Whether its processor treats images by how many a prompt has, and must be told which are one prompt's."""
    set_pixel_limits: Callable[[Any, int | None, int | None], None] | None = None
    """Writes ``model.min_pixels`` and ``model.max_pixels`` (None keeps the checkpoint's) into its processor; None: it
    has no such limits."""
    tiny: Callable[[Mapping[str, int], int], tuple[nn.Module, Any]] | None = None
    """Build a model of about one million parameters and its processor from size overrides and a seed."""

    def encode(self, model: Any, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Join the keys of prompts and run the encoders, all in one call."""
        return self.encode_media(
            model, prompts, join_inputs(self, prompts, model.get_input_embeddings().weight.device)
        )

    def part_of(self, parameter: str) -> str:
        """Tell which part a parameter belongs to.

        Args:
            parameter: Its name in the model, without wrappers' prefixes.

        Returns:
            The part with the longest matching prefix; "language" where none matches.
        """
        best, length = "language", -1
        for part, prefixes in self.parts.items():
            for prefix in prefixes:
                if parameter.startswith(prefix) and len(prefix) > length:
                    best, length = part, len(prefix)
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFamily:
    """A family's record for one loaded model (``contracts.FamilyInfo``)."""

    spec: FamilySpec
    config: Any
    """The model's config."""

    @property
    def name(self) -> str:
        """For example ``qwen2_5_vl``."""
        return self.spec.name

    @property
    def kinds(self) -> frozenset[str]:
        """Media kinds that the family reads."""
        return self.spec.kinds

    @property
    def audio_in_video(self) -> bool:
        """Whether a video's audio is interleaved with its frames."""
        return self.spec.audio_in_video

    @property
    def counts_images(self) -> bool:
        """Whether its processor treats images by how many a prompt has."""
        return self.spec.counts_images

    @property
    def separable_kinds(self) -> frozenset[str]:
        """Images, unless they are cut into tiles: then those of a prompt share a shape."""
        return frozenset({"image"}) if self.spec.keys.get("pixel_values") == "concat" else frozenset()

    def count_media_tokens(self, token_ids: Int[Tensor, "P"]) -> Mapping[str, int]:
        """Placeholder tokens in a prompt, by media kind; kinds that share one token share its count."""
        return {
            kind: int(torch.isin(token_ids, torch.tensor(ids)).sum())
            for kind, ids in self.spec.media_tokens(self.config).items()
        }

    def count_all_media_tokens(self, token_ids: Int[Tensor, "P"]) -> int:
        """Placeholder tokens in a prompt, of whatever kind, each counted once."""
        ids = {i for ids in self.spec.media_tokens(self.config).values() for i in ids}
        return int(torch.isin(token_ids, torch.tensor(sorted(ids), dtype=torch.long)).sum())

    def check_media_count(self, prompts: Sequence[Prompt]) -> None:
        """Compare each prompt's placeholder tokens with the features its media will give, kind by kind.

        A prompt that was cut, an image that was dropped or placeholders that were expanded twice would train on the
        wrong image without any error.

        Raises:
            ProcessorError: The counts of one kind differ.
        """
        for prompt in prompts:
            placeholders = self.count_media_tokens(prompt.token_ids)
            features = self.spec.count_features(prompt, self.config)
            for kind in sorted({*placeholders, *features}):
                expected, got = features.get(kind, 0), placeholders.get(kind, 0)
                if expected != got:
                    raise ProcessorError(
                        explain(
                            "Placeholder tokens and encoder features do not match",
                            where=f"sample {prompt.sample.id}, {kind}",
                            expected=f"{expected} features, one placeholder each",
                            got=f"{got} placeholders",
                            fix="The prompt was cut inside a media item, its media were dropped, or placeholders were "
                            "expanded twice: give the processor's own token ids and tensors to the model.",
                        )
                    )


def join_inputs(spec: FamilySpec, prompts: Sequence[Prompt], device: torch.device) -> dict[str, Any]:
    """Join the processor's keys of several prompts, each by its rule.

    Every key reaches the model: one that the record does not know joins along its first axis if that has one entry
    per media item of the prompt, and is refused by name otherwise.

    Args:
        spec: Says how each key joins.
        prompts: In order.
        device: Where tensors go.

    Returns:
        Joined tensors by key; keys that no prompt has are left out.

    Raises:
        ProcessorError: A key is unknown and does not have one entry per media item.
    """
    inputs: dict[str, Any] = {}
    for name in dict.fromkeys(k for p in prompts for k in p.model_inputs):
        holders = [p for p in prompts if name in p.model_inputs]
        join = spec.keys.get(name) or _join_of_unknown(spec, name, holders)
        values = [torch.as_tensor(p.model_inputs[name]).to(device) for p in holders]
        if join == "concat":
            inputs[name] = torch.cat(values)
        elif join == "tiles":
            inputs[name] = torch.cat(values, dim=1)
        elif join == "tokens":
            inputs[name] = torch.cat([v.reshape(-1) for v in values])
        else:
            inputs[name] = values
    return inputs


def _join_of_unknown(spec: FamilySpec, name: str, holders: Sequence[Prompt]) -> Join:
    for prompt in holders:
        value = prompt.model_inputs[name]
        length = len(value) if hasattr(value, "__len__") else -1
        if length != len(prompt.media) or not prompt.media:
            raise ProcessorError(
                explain(
                    f"The processor returned a key that the {spec.name} record does not know",
                    where=f"key {name!r}, sample {prompt.sample.id}",
                    expected=f"one of {', '.join(sorted(spec.keys))}, or one per media item ({len(prompt.media)})",
                    got=f"{length} entries",
                    fix="Add the key to the family's record with the rule by which prompts join.",
                )
            )
    return "concat"
