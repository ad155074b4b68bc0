"""What pydantic found wrong, in words for the person who wrote the YAML: where, what was expected, what to write.

All problems of a configuration are reported together. This file knows the schema's names, not what keys do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mmgrpo.config.keys import ConfigKey, choices_of, describe, find_keys, one_of
from mmgrpo.config.other_tools import closest, reward_spec, suggest, value_advice
from mmgrpo.config.yaml_text import Document, KeyPath, to_flow
from mmgrpo.errors import ConfigError, counted, explain, short_repr, shortened

_DOTTED = re.compile(r"\b[a-z_]+(?:\.[a-z_]+)+\b")
_MOST = 20
"""Problems that are reported in full; a file of another program would fill the screen."""


def config_error(error: ValidationError, document: Document) -> ConfigError:
    """Turn pydantic's findings into one error that names every place, the first twenty in full.

    Args:
        error: What pydantic found.
        document: The merged values and where they stand.

    Returns:
        The error to raise.
    """
    problems: dict[KeyPath, ErrorDetails] = {}
    for details in error.errors(include_url=False):
        problems.setdefault(_written_path(details["loc"], document.values), details)
    in_order = sorted(problems.items(), key=lambda problem: _order(problem[0], document))
    texts = [_text(details, path, document) for path, details in in_order[:_MOST]]
    if len(problems) > 1:
        texts.insert(0, f"The configuration has {len(problems):,} faults.")
    if len(problems) > _MOST:
        texts.append(f"({counted(len(problems) - _MOST, 'more fault')}.)")
    return ConfigError("\n\n".join(texts))


def _order(path: KeyPath, document: Document) -> tuple[int, int]:
    """As in the file, overrides last."""
    mark = document.marks.get(path) or document.marks.get(path[:-1])
    return (mark.line or sys.maxsize, mark.column or 0) if mark else (0, 0)


def _text(details: ErrorDetails, path: KeyPath, document: Document) -> str:
    """Choose the wording for one finding."""
    kind, keys = details["type"], find_keys(path)
    if kind == "extra_forbidden":
        return _unknown(path, document)
    if kind == "missing" and path not in document.marks:
        return _missing(path, document)
    if kind == "only_with":
        name, condition = (details.get("ctx", {})[part] for part in ("key", "condition"))
        what = f"{dotted((*path, name))} only goes with {condition}"
        return explain(what, where=_where((*path, name), document), fix=f"Set {condition}, or remove {name}.")
    if kind == "value_error":
        return _refused(details["msg"].removeprefix("Value error, "), path, document)
    given = _value_at(document.values, path)
    fix = value_advice(_in_lists(path), given)
    expected = describe(keys[0]) if keys else details["msg"].removeprefix("Input should be ")
    if kind == "literal_error":
        choices = [str(choice) for key in keys for choice in choices_of(key.field.annotation)]  # of all variants
        choices = choices or re.findall(r"'([^']*)'", str(details.get("ctx", {}).get("expected")))
        choices = list(dict.fromkeys(choices))
        near = closest(given, choices) if isinstance(given, str) else ""
        expected, fix = one_of(choices), fix or (f"Write {near}." if near else "")
    elif kind.startswith(("greater_than", "less_than")) and keys:
        expected = f"{expected}: {keys[0].doc}"  # with the unit
    elif kind == "string_type":
        fix = fix or _as_text(path, keys, given)
    elif kind in ("model_type", "dict_type", "tuple_type"):
        if kind != "tuple_type":
            expected = "keys under it"
        elif any(key.sections for key in keys):
            expected = "a list of sections"
        fix = fix or _as_section(path, keys, given)
    what = f"Wrong value for {dotted(path)}"
    return explain(what, where=_where(path, document), expected=expected, got=_shown(given), fix=fix)


def _refused(sentence: str, path: KeyPath, document: Document) -> str:
    """Word what a validator of the schema says: of a section as it stands, of a key with what it takes."""
    keys = find_keys(path)
    if not path or any(key.sections for key in keys):
        what, _, fix = sentence.partition("; write ")
        fix = fix and f"Write {fix}."
        return explain(_capital(what), where=_where(path, document, sentence=sentence), fix=fix)
    what, _, fix = sentence.partition("; write ")
    advice = value_advice(_in_lists(path), _value_at(document.values, path))
    return explain(
        f"Wrong value for {dotted(path)}: {what}",
        where=_where(path, document),
        expected=describe(keys[0]) if keys else "",
        fix=advice or (fix and f"Write {fix}."),
    )


def _as_text(path: KeyPath, keys: Sequence[ConfigKey], given: Any) -> str:
    if given is None:
        if keys and not keys[0].field.is_required():
            return f"Leave {path[-1]} out for its default ({to_flow(keys[0].field.get_default())})."
        return f"Give {path[-1]} a value."
    if isinstance(given, bool | int | float):
        return f'Put the value in quotes: {path[-1]}: "{to_flow(given)}".'
    return "Give one text."


def _as_section(path: KeyPath, keys: Sequence[ConfigKey], given: Any) -> str:
    """Show how a section is written whose main key alone was given."""
    is_text = isinstance(given, str) and len(given) < 200
    if is_text and any("path" in section.model_fields for key in keys for section in key.sections):
        return f"Write {dotted(path)}: {to_flow({'path': given})}."
    if is_text and _names_functions(path[:-1]):
        return f"Write {dotted(path)}: {to_flow({'fn': reward_spec(given)})}."
    if (is_text or (isinstance(given, dict) and "fn" in given)) and _names_functions(path):
        section = {"fn": reward_spec(given)} if isinstance(given, str) else given
        return f"Write {dotted(path)}: {to_flow([section])}."
    return ""


def _names_functions(path: KeyPath) -> bool:
    """Tell whether a list of sections names functions, as ``rewards`` does."""
    return any("fn" in section.model_fields for key in find_keys(path) for section in key.sections)


def _unknown(path: KeyPath, document: Document) -> str:
    section, name = dotted(path[:-1]), shortened(str(path[-1]))
    suggestion = suggest(path, document.values)
    what = f"Unknown key {name}" + (f" under {section}" if section else " at the top level")
    return explain(what, where=_where(path, document), expected=suggestion.valid, fix=suggestion.fix)


def _missing(path: KeyPath, document: Document) -> str:
    keys = find_keys(path)
    expected = f"{describe(keys[0])}: {keys[0].doc}" if keys else ""
    return explain(f"{dotted(path)} is missing", where=_where(path[:-1], document), expected=expected)


def _where(path: KeyPath, document: Document, *, sentence: str = "") -> str:
    """Name the place of a key; a sentence that names keys (``train.num_steps``) is placed at those."""
    keys: list[KeyPath] = [tuple(name.split(".")) for name in _DOTTED.findall(sentence)]
    places = [f"{document.marks[key]} ({dotted(key)})" for key in dict.fromkeys(keys) if key in document.marks]
    if places:
        return ", ".join(places)
    mark = document.marks.get(path) or document.marks.get(())
    if mark is None:
        return ""
    return str(mark) if mark.line is None else f"{mark} ({dotted(path)})"


def dotted(path: Sequence[str | int]) -> str:
    """Write a path as in ``rewards.0.weight``."""
    return shortened(".".join(str(part) for part in path), 200)


def _in_lists(path: KeyPath) -> str:
    """The dotted path without positions in lists."""
    return ".".join(part for part in path if isinstance(part, str))


def _written_path(loc: tuple[int | str, ...], values: Any) -> KeyPath:
    """Drop the names of variants that pydantic puts between the keys."""
    return tuple(_steps(loc, values))


def _steps(loc: tuple[int | str, ...], values: Any) -> Iterator[str | int]:
    at: Any = values
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(at, dict) and part in at:
            at = cast("Mapping[Any, Any]", at)[part]
            yield part
        elif isinstance(at, list) and isinstance(part, int) and part < len(cast("list[Any]", at)):
            at = cast("list[Any]", at)[part]
            yield part
        elif isinstance(at, dict) and last:
            yield part


def _value_at(values: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(values, dict):
            values = cast("Mapping[Any, Any]", values).get(part)
        elif isinstance(values, list):
            values = cast("list[Any]", values)[int(part)]
    return values


def _shown(value: object) -> str:
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else short_repr(value, 80)


def _capital(sentence: str) -> str:
    """Begin with a capital letter, unless the first word is a key."""
    return sentence if _DOTTED.match(sentence) else sentence[:1].upper() + sentence[1:]
