"""All families by name: those that come with the package, and those that users register."""

from __future__ import annotations

from difflib import get_close_matches

from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families import (
    gemma,
    glm,
    idefics,
    internvl,
    lfm,
    llava_onevision,
    mistral,
    qwen_audio,
    qwen_omni,
    qwen_vl,
    text,
)
from mmgrpo.policy.families.spec import FamilySpec

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
    lfm,
    text,
)
_FAMILIES: dict[str, FamilySpec] = {spec.name: spec for file in _FILES for spec in file.FAMILIES}
_ALIASES: dict[str, str] = {alias: spec.name for spec in _FAMILIES.values() for alias in spec.aliases}


def all_families() -> list[FamilySpec]:
    """Every record there is, in the order of registration."""
    return list(_FAMILIES.values())


def family_of(model_type: str) -> FamilySpec:
    """Find the record of a ``model_type``.

    Raises:
        ConfigError: There is no such record.
    """
    model_type = _ALIASES.get(model_type, model_type)
    if model_type not in _FAMILIES:
        close = get_close_matches(model_type, _FAMILIES, n=1, cutoff=0.75)
        raise ConfigError(
            explain(
                f"No family record for {model_type!r}",
                where="model.name",
                expected=", ".join(sorted(_FAMILIES)),
                fix=f"Did you mean {close[0]!r}?" if close else "Add a record under mmgrpo/policy/families.",
            )
        )
    return _FAMILIES[model_type]


def tiny_names() -> list[str]:
    """Families that have a tiny model, as ``model.name`` wants them."""
    return [f"tiny:{name}" for name, spec in _FAMILIES.items() if spec.tiny]
