"""All families by name: those that come with the package, and those that users register."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path

from mmgrpo.errors import ConfigError, explain
from mmgrpo.plugins import load_object
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
_BUILT_IN: dict[str, FamilySpec] = {spec.name: spec for file in _FILES for spec in file.FAMILIES}
_registered: dict[str, FamilySpec] = {}


def register_family(spec: FamilySpec) -> FamilySpec:
    """Make a family known to this process: its checkpoints load, and ``tiny:NAME`` if it has a tiny model.

    Registering a name again replaces the record, as a notebook does. Packages offer records under the entry points
    ``mmgrpo.families``, named by model type; a YAML names a file's record under ``model.family``.

    Args:
        spec: The record.

    Returns:
        The same record.

    Raises:
        ConfigError: A family that comes with mmgrpo has this name or alias.
    """
    taken = {spec.name, *spec.aliases} & set(_by_type(_BUILT_IN))
    if taken:
        raise ConfigError(
            explain(
                f"The family {min(taken)!r} comes with mmgrpo",
                where="register_family",
                fix="Choose another name, or name the record under model.family to use it in place of this one.",
            )
        )
    _registered[spec.name] = spec
    return spec


def all_families() -> list[FamilySpec]:
    """Every record there is: those that come with the package, then those that were registered."""
    return [*_BUILT_IN.values(), *_registered.values()]


def _by_type(families: dict[str, FamilySpec]) -> dict[str, FamilySpec]:
    return {name: spec for spec in families.values() for name in (spec.name, *spec.aliases)}


def find_family(model_type: str, *, named: str | None = None, folder: Path | None = None) -> FamilySpec | None:
    """Find the record of a ``model_type``.

    Args:
        model_type: As in the checkpoint's configuration.
        named: ``model.family`` of the YAML, which goes before everything else.
        folder: Of the YAML.

    Returns:
        The record; None where nobody knows the family.

    Raises:
        ConfigError: What ``named`` names is not there, or is no record.
    """
    known = _by_type(_BUILT_IN) | _by_type(_registered)
    if named is None and model_type in known:
        return known[model_type]
    if named is None and model_type not in entry_points(group="mmgrpo.families").names:
        return None
    spec = load_object(named or model_type, kind="families", folder=folder or Path.cwd(), where="model.family")
    if not isinstance(spec, FamilySpec):
        raise ConfigError(
            explain(
                "This is no record of a family",
                where=f"model.family: {named or model_type}",
                expected="a mmgrpo.FamilySpec",
                got=type(spec).__name__,
            )
        )
    return spec


def family_of(model_type: str) -> FamilySpec:
    """Find the record of a ``model_type``.

    Raises:
        ConfigError: There is no such record.
    """
    spec = find_family(model_type)
    if spec is None:
        names = [family.name for family in all_families()]
        close = get_close_matches(model_type, names, n=1, cutoff=0.75)
        raise ConfigError(
            explain(
                f"No family record for {model_type!r}",
                where="model.name",
                expected=", ".join(sorted(names)),
                fix=f"Did you mean {close[0]!r}?" if close else "Add a record: see docs/families.md.",
            )
        )
    return spec


def tiny_names() -> list[str]:
    """Families that have a tiny model, as ``model.name`` wants them."""
    return [f"tiny:{spec.name}" for spec in all_families() if spec.tiny]
