"""The layers of a configuration (files, ``loss.beta=0.01`` from the command line, mappings) and how they are merged.

Mappings are merged key by key, everything else is replaced. Where the schema offers several sections of which one
is chosen (rows from files, or rows made in code), a layer that chooses another one replaces the whole section. It does
not check that a key exists: the layers are checked together, once they are merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel

from mmgrpo.config.keys import find_keys, is_list, pick_variant, sections_at, takes_only_text
from mmgrpo.config.yaml_text import Document, KeyPath, Mark, parse_value
from mmgrpo.errors import ConfigError, explain, short_repr, shortened

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*\Z")
_NULLS = ("", "~", "null")


def read_texts(texts: Sequence[str]) -> Document:
    """Read ``section.key=value`` texts; values are YAML, and where a key takes text they are taken as they stand.

    Args:
        texts: Later ones win. A whole number in a key is a position in a list: ``rewards.0.weight=2``.

    Returns:
        One layer, each value marked with its override.

    Raises:
        ConfigError: No ``=``, or a value that is not YAML.

    Example:
        >>> read_texts(["loss.beta=1e-2", "data.revision=1e6"]).values
        {'loss': {'beta': 0.01}, 'data': {'revision': 1000000.0}}
    """
    layer = _Layer()
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not _KEY.match(key.strip()):
            fix = "Write section.key=value, for example loss.beta=0.01."
            raise ConfigError(explain("Not an override", got=shortened(text), fix=fix))
        path = _path(key.strip())
        source = f"override {shortened(text)}"
        layer.put(path, _value(path, value.strip(), source=source), Mark(source))
    return layer.document()


def read_mapping(mapping: Mapping[str, Any]) -> Document:
    """Read a mapping, nested or with dotted keys, or both.

    Args:
        mapping: Later keys win. A section object counts with the keys that were given to it.

    Returns:
        One layer, each value marked with its key.

    Raises:
        ConfigError: A key is not text, or not dotted words.

    Example:
        >>> read_mapping({"train": {"num_steps": 20}, "train.seed": 1}).values
        {'train': {'num_steps': 20, 'seed': 1}}
    """
    layer = _Layer()
    for path, value in _leaves(mapping, ()):
        layer.put(path, value, Mark(f"override {shortened('.'.join(map(str, path)))}={short_repr(value)}"))
    return layer.document()


def _leaves(mapping: Mapping[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in mapping.items():
        if not isinstance(key, str) or not _KEY.match(key):  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = 'Write {"loss": {"beta": 0.01}} or {"loss.beta": 0.01}.'
            raise ConfigError(explain("Not a key", where="overrides", got=short_repr(key), fix=fix))
        path = _path(key, above)
        converted = to_plain(value)
        if isinstance(converted, dict) and converted and sections_at(path):
            yield from _leaves(cast("dict[str, Any]", converted), path)
        else:
            yield path, converted


def to_plain(value: Any) -> Any:
    """Turn sections, tuples and mappings into the lists and dicts that a YAML gives."""
    if isinstance(value, BaseModel):
        return to_plain(value.model_dump(exclude_unset=True))
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in cast("Sequence[Any]", value)]
    return value


def _path(key: str, above: KeyPath = ()) -> KeyPath:
    path = above
    for part in key.split("."):
        listed = any(is_list(one.field.annotation) for one in find_keys(path)) if path else False
        path = (*path, int(part) if listed and part.isdecimal() and part.isascii() else part)
    return path


def _value(path: KeyPath, text: str, *, source: str) -> Any:
    takes_text = any(takes_only_text(key) for key in find_keys(path))
    if takes_text and text not in _NULLS and text[:1] not in ("'", '"'):
        return text
    return parse_value(text, source=source)


class _Layer:
    """Values put one after the other into one nested mapping."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._marks: dict[KeyPath, Mark] = {}

    def put(self, path: KeyPath, value: Any, mark: Mark) -> None:
        """Set one value, and note its mark and that of the sections above it."""
        inner = self._values
        for depth, part in enumerate(path[:-1], start=1):
            below = inner.get(part)
            inner[part] = inner = below if isinstance(below, dict) else {}
            self._marks.setdefault(path[:depth], mark)
        inner[path[-1]] = value
        self._marks[path] = mark

    def document(self) -> Document:
        """Give all that was put."""
        return Document(values=self._values, marks=self._marks)


def overlay(base: Document, patch: Document) -> Document:
    """Lay one document over another.

    Args:
        base: What is underneath.
        patch: What wins. A mapping with whole numbers as keys changes single items of a list.

    Returns:
        The merged document; each value keeps the mark of the layer that it came from.

    Example:
        >>> scenes = Document(values={"data": {"train": {"synthetic": "counting", "rows": 9}}}, marks={})
        >>> overlay(scenes, Document(values={"data": {"train": {"path": "x.jsonl"}}}, marks={})).values
        {'data': {'train': {'path': 'x.jsonl'}}}
    """
    merger = _Merger()
    values = merger.merge(base.values, patch.values, ())
    marks = {path: mark for path, mark in base.marks.items() if not merger.replaces(path)}
    won = {path: mark for path, mark in patch.marks.items() if path not in merger.merged or path not in marks}
    return Document(values=values, marks={**marks, **won})


@dataclass(slots=True)
class _Merger:
    replaced: set[KeyPath] = field(default_factory=set[KeyPath])
    merged: set[KeyPath] = field(default_factory=set[KeyPath])

    def replaces(self, path: KeyPath) -> bool:
        """Tell whether what stood at a path is gone."""
        return any(path[:depth] in self.replaced for depth in range(len(path) + 1))

    def merge(self, base: Any, patch: Any, path: KeyPath) -> Any:
        """Give the merged value, and note which paths were merged and which replaced."""
        if _is_items(patch):
            return self._items(cast("list[Any]", base) if isinstance(base, list) else [], patch, path)
        if isinstance(base, dict) and isinstance(patch, dict):
            below, above = cast("dict[str, Any]", base), cast("dict[str, Any]", patch)
            if not _chooses_another(path, below, above):
                self.merged.add(path)
                changed = {key: self._child(below, key, value, path) for key, value in above.items()}
                return {**below, **changed}
        self.replaced.add(path)
        return _without_items(patch)

    def _child(self, base: Mapping[str, Any], key: str, value: Any, path: KeyPath) -> Any:
        if key in base:
            return self.merge(base[key], value, (*path, key))
        return _without_items(value)

    def _items(self, base: list[Any], patch: Mapping[int, Any], path: KeyPath) -> list[Any]:
        self.merged.add(path)
        items = list(base)
        for index, value in patch.items():
            if index < len(items):
                items[index] = self.merge(items[index], value, (*path, index))
            elif index == len(items):
                items.append(_without_items(value))
            else:
                raise IndexError(f"{'.'.join(map(str, path))} has {len(items)} items; there is no {index}")
        return items


def _is_items(value: Any) -> bool:
    return (
        isinstance(value, dict) and bool(value) and all(isinstance(key, int) for key in cast("dict[Any, Any]", value))
    )


def _without_items(value: Any) -> Any:
    """Turn mappings with whole numbers as keys into the lists that they stand for."""
    if _is_items(value):
        items = cast("dict[int, Any]", value)
        if sorted(items) != list(range(len(items))):
            raise IndexError(f"there is no list yet, so items start at 0, not at {min(items)}")
        return [_without_items(items[index]) for index in sorted(items)]
    if isinstance(value, dict):
        return {key: _without_items(inner) for key, inner in cast("dict[str, Any]", value).items()}
    return value


def _chooses_another(path: KeyPath, base: Mapping[str, Any], patch: Mapping[str, Any]) -> bool:
    """Tell whether ``patch`` has a key that selects another variant than that of ``base``."""
    sections = sections_at(path) if path else ()
    if len(sections) < 2 or not base:
        return False
    here = pick_variant(sections, base)
    others = [section for section in sections if section is not here]
    selecting = {name for other in others for name, key in other.model_fields.items() if key.is_required()}
    return any(key in selecting and key not in here.model_fields for key in patch)
