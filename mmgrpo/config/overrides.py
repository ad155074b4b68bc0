"""Overrides: ``loss.beta=0.01`` from the command line, mappings from Python. Both become one more layer.

It does not check that a key exists: the layers are checked together, once they are merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from mmgrpo.config.keys import find_keys, is_list, sections_at, takes_only_text
from mmgrpo.config.tree import Document, KeyPath, Mark, parse_value
from mmgrpo.errors import ConfigError, explain

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*\Z")
_NULLS = ("", "~", "null")


def from_texts(texts: Sequence[str]) -> Document:
    """Read ``section.key=value`` texts; values are YAML, and where a key takes text they are taken as they stand.

    Args:
        texts: Later ones win. A whole number in a key is a position in a list: ``rewards.0.weight=2``.

    Returns:
        One layer, each value marked with its override.

    Raises:
        ConfigError: No ``=``, or a value that is not YAML.

    Example:
        >>> from_texts(["loss.beta=1e-2", "data.revision=1e6"]).values
        {'loss': {'beta': 0.01}, 'data': {'revision': 1000000.0}}
    """
    layer = _Layer()
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not _KEY.match(key.strip()):
            fix = "Write section.key=value, for example loss.beta=0.01."
            raise ConfigError(explain("Not an override", got=text, fix=fix))
        path = _path(key.strip())
        layer.put(path, _value(path, value.strip(), source=f"override {text}"), Mark(f"override {text}"))
    return layer.document()


def from_mapping(mapping: Mapping[str, Any]) -> Document:
    """Read a mapping, nested or with dotted keys, or both.

    Args:
        mapping: Later keys win. A section object counts with the keys that were given to it.

    Returns:
        One layer, each value marked with its key.

    Raises:
        ConfigError: A key is not text, or not dotted words.

    Example:
        >>> from_mapping({"train": {"num_steps": 20}, "train.seed": 1}).values
        {'train': {'num_steps': 20, 'seed': 1}}
    """
    layer = _Layer()
    for path, value in _leaves(mapping, ()):
        layer.put(path, value, Mark(f"override {'.'.join(map(str, path))}={value!r}"))
    return layer.document()


def _leaves(mapping: Mapping[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in mapping.items():
        if not isinstance(key, str) or not _KEY.match(key):  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = 'Write {"loss": {"beta": 0.01}} or {"loss.beta": 0.01}.'
            raise ConfigError(explain("Not a key", where="overrides", got=repr(key), fix=fix))
        path = _path(key, above)
        given = plain(value)
        if isinstance(given, dict) and given and sections_at(path):
            yield from _leaves(cast("dict[str, Any]", given), path)
        else:
            yield path, given


def plain(value: Any) -> Any:
    """Turn sections, tuples and mappings into the lists and dicts that a YAML gives."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_unset=True))
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in cast("Sequence[Any]", value)]
    return value


def _path(key: str, above: KeyPath = ()) -> KeyPath:
    path = above
    for part in key.split("."):
        listed = any(is_list(found.field.annotation) for found in find_keys(path)) if path else False
        path = (*path, int(part) if listed and part.isdigit() else part)
    return path


def _value(path: KeyPath, text: str, *, source: str) -> Any:
    takes_text = any(takes_only_text(found) for found in find_keys(path))
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
