"""All family records by name, and what ``media/`` may know of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families import (
    gemma,
    glm,
    idefics,
    internvl,
    lfm,
    llava_onevision,
    mistral,
    qwen3_omni,
    qwen_audio,
    qwen_omni,
    qwen_vl,
    text,
)
from mmgrpo.policy.families.record import Family

_FILES = (
    qwen_vl,
    qwen_omni,
    qwen_audio,
    idefics,
    gemma,
    internvl,
    llava_onevision,
    glm,
    mistral,
    qwen3_omni,
    lfm,
    text,
)
_ALL = {family.name: family for file in _FILES for family in file.FAMILIES}


def family_of(model_type: str) -> Family:
    """Find the record of a ``model_type``.

    Raises:
        ConfigError: There is no such record.
    """
    model_type = (qwen_omni.ALIASES | qwen3_omni.ALIASES).get(model_type, model_type)
    if model_type not in _ALL:
        close = get_close_matches(model_type, _ALL, n=1, cutoff=0.75)
        raise ConfigError(
            explain(
                f"No family record for {model_type!r}",
                where="model.name",
                expected=", ".join(sorted(_ALL)),
                fix=f"Did you mean {close[0]!r}?" if close else "Add a record under mmgrpo/policy/families.",
            )
        )
    return _ALL[model_type]


def tiny_names() -> list[str]:
    """Families that have a tiny twin, as ``model.name`` wants them."""
    return [f"tiny:{name}" for name, family in _ALL.items() if family.tiny]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A family's facts for one loaded model (``contracts.FamilyFacts``)."""

    family: Family
    config: Any

    @property
    def name(self) -> str:
        """For example ``qwen2_5_vl``."""
        return self.family.name

    @property
    def kinds(self) -> frozenset[str]:
        """Media kinds that the family reads."""
        return self.family.kinds

    @property
    def sound_in_clips(self) -> bool:
        """Whether the sound of a clip is woven into it."""
        return self.family.sound_in_clips

    @property
    def counts_pictures(self) -> bool:
        """Whether its processor treats pictures by how many a prompt has."""
        return self.family.counts_pictures

    @property
    def joined_one_by_one(self) -> frozenset[str]:
        """Pictures, unless they are cut into tiles: then those of a prompt share a shape."""
        pixels = self.family.keys.get("pixel_values")
        return frozenset({"image"}) if pixels is not None and pixels.join == "concat" else frozenset()

    def count_media_tokens(self, token_ids: Int[Tensor, "P"]) -> Mapping[str, int]:
        """Placeholder tokens in a prompt, by media kind; kinds that share one token share its count."""
        return {
            kind: int(torch.isin(token_ids, torch.tensor(ids)).sum())
            for kind, ids in self.family.media_tokens(self.config).items()
        }

    def count_all_media_tokens(self, token_ids: Int[Tensor, "P"]) -> int:
        """Placeholder tokens in a prompt, of whatever kind, each counted once."""
        found = {i for ids in self.family.media_tokens(self.config).values() for i in ids}
        return int(torch.isin(token_ids, torch.tensor(sorted(found), dtype=torch.long)).sum())
