"""The keys of the configuration, read off the schema: where each stands, what it means, which values it takes.

Messages, the resolved view and the documentation all come from here. It knows no values and no files.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bounds
from pydantic.fields import FieldInfo

from mmgrpo.config.base import Section, admits_none, only_with
from mmgrpo.config.schema import Config

_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "any value"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of the schema."""

    path: tuple[str, ...]
    """From the top; ``N`` stands for a position in a list."""
    section: type[Section]
    """The section that holds it."""
    field: FieldInfo
    """What pydantic knows of it."""

    @property
    def name(self) -> str:
        """The key itself."""
        return self.path[-1]

    @property
    def dotted(self) -> str:
        """The whole path, as in ``rollout.num_generations``."""
        return ".".join(self.path)

    @property
    def parent(self) -> str:
        """The dotted path of its section; empty at the top."""
        return ".".join(self.path[:-1])

    @property
    def doc(self) -> str:
        """What it means, on one line; for a key of a variant, with which."""
        only = only_with(self.field)
        return one_line(f"Only with {only.condition}: {self.field.description}" if only else self.field.description)

    @property
    def sections(self) -> tuple[type[Section], ...]:
        """The sections that may stand under it: none for a plain value, several where one of them is chosen."""
        return sections_of(self.field.annotation)


def one_line(docstring: str | None) -> str:
    """Write a docstring on one line, with code between single backticks."""
    return " ".join((docstring or "").split()).replace("``", "`")


def sections_of(annotation: Any) -> tuple[type[Section], ...]:
    """Find the sections inside an annotation, for example both sources in ``Source | None``."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        inner = inner[:1]
    return tuple(dict.fromkeys(section for part in inner for section in sections_of(part)))


def is_list(annotation: Any) -> bool:
    """Tell whether the annotation is a list of values (a tuple, once frozen)."""
    return get_origin(annotation) is tuple or any(is_list(part) for part in get_args(annotation))


def takes_only_text(key: ConfigKey) -> bool:
    """Tell whether a key's value is text (or null), and nothing else."""
    inner = [part for part in get_args(key.field.annotation) or (key.field.annotation,) if part is not type(None)]
    return len(inner) == 1 and (get_args(inner[0])[0] if get_origin(inner[0]) is Annotated else inner[0]) is str


@cache
def all_keys() -> tuple[ConfigKey, ...]:
    """Give every key of the schema, sections too, in the order of the schema.

    Example:
        >>> [key.dotted for key in all_keys() if key.name == "role"]
        ['rewards.N.role']
    """
    return tuple(_walk(Config, ()))


@cache
def always_there() -> tuple[ConfigKey, ...]:
    """Give the keys that hold a value whatever the others select.

    Not the keys of variants, of sections that may be left out, and of list items; nor ``data.config``, which is gone
    once it has been merged.
    """
    return tuple(key for key in _fixed(Config, ()) if key.dotted != "data.config")


def _fixed(section: type[Section], path: tuple[str, ...]) -> Iterator[ConfigKey]:
    for name, field in section.model_fields.items():
        key = ConfigKey(path=(*path, name), section=section, field=field)
        if only_with(field) is not None:
            continue
        if not key.sections:
            yield key
        elif len(key.sections) == 1 and not admits_none(field.annotation) and not is_list(field.annotation):
            yield from _fixed(key.sections[0], key.path)


def _walk(section: type[Section], path: tuple[str, ...]) -> Iterator[ConfigKey]:
    for name, field in section.model_fields.items():
        here = (*path, name)
        key = ConfigKey(path=here, section=section, field=field)
        yield key
        below = (*here, "N") if is_list(field.annotation) else here
        for inner in key.sections:
            yield from _walk(inner, below)


@cache
def _keys_by_path() -> dict[tuple[str, ...], list[ConfigKey]]:
    by_path: dict[tuple[str, ...], list[ConfigKey]] = {}
    for key in all_keys():
        by_path.setdefault(key.path, []).append(key)
    return by_path


def find_keys(path: Sequence[str | int]) -> list[ConfigKey]:
    """Find the keys of the schema at a path; more than one where variants share a name.

    Example:
        >>> [key.section.__name__ for key in find_keys(["data", "train", "media_root"])]
        ['Files']
    """
    shape = tuple("N" if isinstance(part, int) or part.isdecimal() else part for part in path)
    return list(_keys_by_path().get(shape, ()))


def sections_at(path: Sequence[str | int]) -> tuple[type[Section], ...]:
    """Give the sections that may stand at a path: ``(Config,)`` at the top, none where a plain value stands."""
    if not path:
        return (Config,)
    if isinstance(path[-1], int):
        path = path[:-1]
    return tuple(dict.fromkeys(section for key in find_keys(path) for section in key.sections))


def pick_variant(sections: Sequence[type[Section]], values: Mapping[str, Any]) -> type[Section]:
    """Pick the section that holds most of the keys in ``values``; the first of equals."""
    return max(sections, key=lambda section: len(set(values) & set(section.model_fields)))


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """Give the values that a ``Literal`` in the annotation names."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return tuple(choice for part in inner for choice in choices_of(part))


def describe(key: ConfigKey) -> str:
    """Say which values a key takes.

    Example:
        >>> describe(find_keys(["rollout", "top_p"])[0])
        'number, above 0, at most 1'
        >>> describe(find_keys(["loss", "scale_rewards"])[0])
        'group, batch or none'
    """
    kind = _kind(key.field.annotation)
    return ", ".join([kind, *_limits(key.field)]) + (" or null" if admits_none(key.field.annotation) else "")


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in inner if part is not type(None)))
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return one_of(inner)
    if origin is tuple:
        many = "list of" if inner[-1] is Ellipsis else f"list of {len(inner)} values:"
        return f"{many} {_kind(inner[0])}"
    if origin is dict:
        return f"keys with {_kind(inner[1])}"
    return "section" if sections_of(annotation) else _WORDS.get(annotation, "value")


def one_of(choices: Sequence[object]) -> str:
    """Write choices as in ``a, b or c``."""
    words = [str(choice) for choice in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _limits(field: FieldInfo) -> Iterator[str]:
    for limit in field.metadata:
        if isinstance(limit, bounds.Ge):
            yield f"at least {limit.ge}"
        elif isinstance(limit, bounds.Gt):
            yield f"above {limit.gt}"
        elif isinstance(limit, bounds.Le):
            yield f"at most {limit.le}"
        elif isinstance(limit, bounds.Lt):
            yield f"below {limit.lt}"
