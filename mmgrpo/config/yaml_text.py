"""YAML text to plain values that remember where they stood, and plain values to YAML that reads back the same.

Nothing in a file is ever run.

Scalars are read as YAML 1.2 reads them: ``1e-6`` is a number, ``yes``, ``no``, ``on`` and ``off`` are text, only
``true`` and ``false`` are booleans. One thing is kept from YAML 1.1: ``1_000`` is a number. ``${NAME}`` stays as it
is, and there are no merge keys (``<<``). This file knows scalars, lists and mappings, not which keys there
are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from mmgrpo.errors import ConfigError, explain, short_repr, shortened

KeyPath = tuple[str | int, ...]
"""The keys (and list positions) that lead to a value."""

_MAX_DEPTH = 24
_MAX_VALUES = 20_000
_MAX_CHARACTERS = 1_000_000
_MAX_DIGITS = 300
"""Bounds before anything slow: PyYAML takes a second for some ten thousand values. Python refuses to print integers of
more than 4,300 digits."""
_TAG = "tag:yaml.org,2002:"
_FORMS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a value was written."""

    source: str
    """A file's name, or the override itself."""
    line: int | None = None
    """From 1."""
    column: int | None = None
    """From 1."""

    def __str__(self) -> str:
        """Write it as ``file:line:column``."""
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A tree of plain values and where each of them stood."""

    values: dict[str, Any]
    """Mappings, lists, text, numbers, booleans, None."""
    marks: Mapping[KeyPath, Mark]
    """Of each key and list item; at ``()`` the file itself."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar forms of YAML 1.2."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}
    num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node, and stop long before a machine is busy for minutes."""
        self.num_nodes += 1
        if self.num_nodes > 2 * _MAX_VALUES:
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=f"more than {_MAX_VALUES:,} values", problem_mark=mark)
        return super().compose_node(parent, index)


for _name, _form in _FORMS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_form})\Z"), None)


def read_document(path: Path, *, name: str = "") -> Document:
    """Read a YAML file whose top level is a mapping.

    Args:
        path: The file.
        name: How messages call it; default: the path.

    Returns:
        Its values, and where each stands.

    Raises:
        ConfigError: The file cannot be read, or is not YAML; the message has line and column.
    """
    name = name or str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(explain("Cannot read the file", where=name, got=str(error.strerror))) from error
    except UnicodeDecodeError as error:
        fix = "Save the file as UTF-8."
        raise ConfigError(
            explain("The file is not UTF-8 text", where=f"{name}, byte {error.start}", fix=fix)
        ) from error
    return parse_document(text, source=name)


def parse_document(text: str, *, source: str) -> Document:
    r"""Read YAML text whose top level is a mapping.

    Args:
        text: The YAML.
        source: How messages call it.

    Returns:
        Its values, and where each stands.

    Raises:
        ConfigError: It is not YAML, holds a key twice, or is not a mapping.

    Example:
        >>> document = parse_document("loss:\n  beta: 1e-6", source="my.yaml")
        >>> document.values
        {'loss': {'beta': 1e-06}}
        >>> str(document.marks["loss", "beta"])
        'my.yaml:2:3'
    """
    reader = _Reader(source)
    values = reader.read(text)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        got = f"{_kind(values)} at the top level"
        raise ConfigError(explain("Not a configuration", where=source, expected="sections such as model:", got=got))
    return Document(values=values, marks=reader.marks)


def parse_value(text: str, *, source: str) -> Any:
    """Read one YAML value: ``0.01``, ``[a, b]``, ``{k: 2}``.

    Raises:
        ConfigError: It is not YAML.

    Example:
        >>> [parse_value(text, source="here") for text in ("1E6", "yes", "[a, .5]", "1_000", "")]
        [1000000.0, 'yes', ['a', 0.5], 1000, None]
    """
    return _Reader(source).read(text)


class _Reader:
    """Builds plain values from YAML nodes, and notes where each stands."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.marks: dict[KeyPath, Mark] = {(): Mark(source)}
        self._count = 0

    def read(self, text: str) -> Any:
        """Read one document."""
        if len(text) > _MAX_CHARACTERS:
            expected, got = f"at most {_MAX_CHARACTERS:,} characters", f"{len(text):,}"
            fix = "Keep data in a file of its own, and name it as data.train.path."
            what = "This is too long for a configuration"
            raise ConfigError(explain(what, where=self.source, expected=expected, got=got, fix=fix))
        try:
            node = yaml.compose(text, Loader=_Loader)
            return None if node is None else self._value(node, ())
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error, text) from error
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            where = f"{self.source}:{line}"
            raise ConfigError(explain("The file holds a control character", where=where, got=error.reason)) from error
        except RecursionError as error:
            raise ConfigError(explain("The YAML is nested too deeply", where=self.source)) from error

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if len(path) > _MAX_DEPTH or self._count > _MAX_VALUES:
            raise ConfigError(explain("The YAML is nested too deeply or too large", where=str(self._mark(node))))
        if path not in self.marks:
            self.marks[path] = self._mark(node)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return {key: self._value(child, (*path, key)) for key, child in self._keys(node, path)}
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self._value(child, (*path, i)) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_TAG) in _SCALARS:
            return self._scalar(node)
        expected = "plain values; a file never runs code"
        raise ConfigError(explain(f"Tag {node.tag} is not allowed", where=str(self._mark(node)), expected=expected))

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return _SCALARS[node.tag.removeprefix(_TAG)](node.value)
        except (ValueError, KeyError) as error:
            kind = node.tag.removeprefix(_TAG)
            where, got = str(self._mark(node)), shortened(node.value)
            raise ConfigError(explain(f"Not of type {kind}", where=where, got=got)) from error

    def _keys(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
        seen: dict[str, Mark] = {}
        for key, child in node.value:
            mark = self._mark(key)
            if not isinstance(key, yaml.ScalarNode):
                fix = "Put text that holds braces in quotes."
                raise ConfigError(explain("A key must be text", where=str(mark), got="a list or mapping", fix=fix))
            if key.value in seen:
                where, name = f"{seen[key.value]} and {mark}", shortened(key.value)
                raise ConfigError(explain(f"Key {name} is given twice", where=where, fix="Remove one of them."))
            seen[key.value] = self.marks[(*path, key.value)] = mark
            yield key.value, child

    def _mark(self, node: yaml.Node) -> Mark:
        return Mark(self.source, node.start_mark.line + 1, node.start_mark.column + 1)

    def _syntax(self, error: yaml.MarkedYAMLError, text: str) -> ConfigError:
        mark = error.problem_mark or error.context_mark
        where, line = self.source, ""
        if mark is not None:
            where = f"{self.source}:{mark.line + 1}:{mark.column + 1}"
            lines = text.splitlines() or [""]
            line = shortened(
                lines[min(mark.line, len(lines) - 1)].strip()
            )  # what is not closed is missed behind the last line
        told = ", ".join(part for part in (error.context, error.problem) if part)
        fix = "Check indentation, colons and quotes there; text that holds ': ' or '{' goes in quotes."
        return ConfigError(explain(f"Not valid YAML: {told}", where=where, got=line, fix=fix))


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _floating(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _nothing(text: str) -> None:
    return None


_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": _integer,
    "float": _floating,
    "bool": _boolean,
    "null": _nothing,
}


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else f"the value {short_repr(value)}"


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_PLAIN = re.compile(r"[A-Za-z0-9_./~+-][\w ./:{}@+~-]*\Z")


def to_flow(value: Any) -> str:
    """Write a value on one line.

    Args:
        value: Text, a number, a boolean, None, or lists and mappings of them; anything else is written as the text
            of its ``repr``.

    Returns:
        YAML.

    Example:
        >>> to_flow({"stop": ["a", "no", "1e6"], "x": None, "y": 1e-6})
        '{stop: [a, no, "1e6"], x: null, y: 1e-06}'
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return "{" + ", ".join(f"{quoted(str(key), inside=True)}: {_inner(inner)}" for key, inner in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inner(inner) for inner in cast("Sequence[Any]", value)) + "]"
    return _scalar(value)


def _inner(value: Any) -> str:
    return quoted(value, inside=True) if isinstance(value, str) else to_flow(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    return quoted(value if isinstance(value, str) else repr(value))


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"


def quoted(value: str, *, inside: bool = False) -> str:
    """Write text, in quotes where YAML would read it as something else.

    Args:
        value: The text.
        inside: It stands in a flow list or mapping, where commas and braces mean something.

    Returns:
        YAML on one line.

    Example:
        >>> quoted("a: b"), quoted("tiny:qwen2_5_vl"), quoted("true")
        ('"a: b"', 'tiny:qwen2_5_vl', '"true"')
    """
    if _PLAIN.match(value) and not (inside and re.search("[{}]", value)) and _reads_back(value):
        return value
    return '"' + "".join(_ESCAPES.get(letter) or _visible(letter) for letter in value) + '"'


def _reads_back(value: str) -> bool:
    try:
        return parse_value(value, source="") == value
    except ConfigError:
        return False


def _visible(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def to_block(value: str, indent: str) -> list[str]:
    """Write text of several lines as a YAML block, where that is possible.

    Args:
        value: The text.
        indent: Spaces in front of its lines.

    Returns:
        The header (``|`` or ``|-``) and the lines; a single quoted line where a block would not read back.
    """
    body = value[:-1] if value.endswith("\n") else value
    lines = body.split("\n")
    blockable = all(line == line.rstrip() and line.isprintable() for line in lines)
    if len(lines) < 2 or not blockable or value.endswith("\n\n") or not lines[0] or lines[0][0] == " ":
        return [quoted(value)]
    return ["|" if value.endswith("\n") else "|-", *(indent + line if line else "" for line in lines)]
