"""One layer of a configuration laid over another: files, then overrides.

Mappings are merged key by key, everything else is replaced. Where the schema offers several sections of which one
is chosen (rows from files, or rows made in code), a layer that chooses another one replaces the whole section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mmgrpo.config.keys import pick_variant, sections_at
from mmgrpo.config.tree import Document, KeyPath


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
        return any(path[: len(top)] == top for top in self.replaced)

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
