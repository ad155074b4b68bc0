"""One row, read: its question, its media in order, its ground truth, whatever form the row has.

A role ("prompt", "image", "answer") is a column by name, or ``auto``: the column that the form has for it. Cells of
tables of text (CSV, exports of data frames) may hold lists and conversations as JSON or as Python prints them. Nothing
is opened or decoded here.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from mmgrpo.addresses import ANIMATED, KINDS, is_hole, is_still, nesting
from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.blocks import TAG, blocks_of, unwrap_media
from mmgrpo.data.rows import Row
from mmgrpo.errors import DatasetError, explain, shorten
from mmgrpo.types import Media

MEDIA_COLUMNS = {"image": ("image", "images"), "video": ("video", "videos"), "audio": ("audio", "audios")}
"""Columns of each kind: one media item or a list of them may stand in either."""
ONE_FORM = (
    "If the file holds rows of two forms, put each form in a file of its own and mix them under data.train.mixture; "
    "or set data.columns.prompt to the column that holds the question."
)
"""What to do about a row that lacks what its form asks for."""
_ARRAYS = {"image": 3, "video": 4, "audio": 1}
"""How deep lists of numbers are at the most that make one media item."""
_MOST_ITEMS = 100_000
_LONGEST_LITERAL = 1_000_000
"""Python's own parser needs a thousand bytes for each of a text; longer cells are read as JSON only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRow:
    """One row, whatever its form, the same for all that follows."""

    prompt: Any
    """Text, or chat messages with ``role`` and ``content``."""
    media: tuple[Media, ...] = ()
    """Media items of the row's columns, in order, their paths as the row writes them."""
    answer: Any = None
    """The ground truth; None where the row has none."""
    tags: bool = False
    """Whether ``<image>``, ``<video>`` and ``<audio>`` in the text stand for the row's media."""
    media_columns: frozenset[str] = frozenset()
    """Columns that hold media: rewards get those decoded instead."""
    added: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Columns that reward functions written for this form expect."""
    id: str | None = None
    """The row's own id; None: by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """One form of rows: which columns it has, and how a row of it is read."""

    name: str
    """As ``format:`` names it."""
    fits: Callable[[Collection[str]], bool] = lambda have: False
    """Tells the form by the columns there are."""
    prompts: tuple[str, ...] = ()
    """Columns that hold the question, best first."""
    answers: tuple[str, ...] = ()
    """Columns that hold the ground truth, best first."""
    needs_answer: bool = False
    """Whether one of ``answers`` must be there, unless ``columns.answer`` says otherwise."""
    media: tuple[str, ...] = ()
    """Columns of media beside those that every form has."""
    tags: bool | None = None
    """Whether tags in the text stand for media; None: where there is exactly one for each media item."""
    added: tuple[str, ...] = ()
    """Columns that the form adds."""
    custom: Callable[[Row, Columns, str, RowFormat], ParsedRow] | None = None
    """Reads a row, its columns and its place; None: :func:`read_columns` does."""
    checks_columns: bool = True
    """Whether the columns of a source tell what its rows lack; False: its rows are not what their columns say."""

    def read(self, row: Row, columns: Columns, where: str) -> ParsedRow:
        """Read one row.

        Args:
            row: Values by column.
            columns: Named columns win over the form's own.
            where: The row, for messages.

        Raises:
            DatasetError: The row is not of this form, or two columns of one kind of media are filled.
        """
        return (self.custom or read_columns)(row, columns, where, self)


def read_columns(row: Row, columns: Columns, where: str, form: RowFormat) -> ParsedRow:
    """Read a row of one column for each role.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.
        form: Its form.

    Raises:
        DatasetError: Two columns of one kind of media are filled.
    """
    if columns.image == AUTO and set(form.media) & set(row) and not {"image", "images"} & set(row):
        columns = columns.model_copy(update={"image": next(name for name in form.media if name in row)})
    media, media_columns = media_of(row, columns, where)
    prompt = prompt_of(row, columns, form.prompts, where)
    return ParsedRow(
        prompt=prompt,
        media=media,
        answer=answer_of(row, columns, form.answers),
        tags=tags_match(prompt, media) if form.tags is None else form.tags,
        media_columns=media_columns,
    )


def prompt_column(have: Collection[str], columns: Columns, candidates: Sequence[str]) -> str | None:
    """Find the column of the question: the one that is named, else the first of ``candidates`` that is there."""
    return columns.prompt if columns.prompt != AUTO else next((name for name in candidates if name in have), None)


def prompt_of(row: Row, columns: Columns, candidates: Sequence[str], where: str) -> Any:
    """Find the question: text, or chat messages, which a cell may hold as text; None where there is no column."""
    return parse_conversation(row.get(prompt_column(row, columns, candidates) or ""), where)


def answer_of(row: Row, columns: Columns, candidates: Sequence[str], *, otherwise: Any = None) -> Any:
    """Find the ground truth: in the named column, else in the first of ``candidates`` that is filled."""
    if columns.answer is None:
        return None
    if columns.answer != AUTO:
        return row[columns.answer]
    return next((row[name] for name in candidates if row.get(name) is not None), otherwise)


def columns_of_media(have: Collection[str], columns: Columns) -> dict[str, tuple[str, ...]]:
    """List the columns of each kind of media that are there.

    Args:
        have: The row, or its columns.
        columns: Which column is what; a named one may be written in the singular or the plural.

    Example:
        >>> columns_of_media({"problem", "images"}, Columns())
        {'image': ('images',), 'video': (), 'audio': ()}
        >>> columns_of_media({"problem", "clips"}, Columns(video="clip"))["video"]
        ('clips',)
    """
    by_kind: dict[str, tuple[str, ...]] = {}
    for kind in KINDS:
        named = getattr(columns, kind)
        if named is None:
            by_kind[kind] = ()
        elif named == AUTO:
            by_kind[kind] = tuple(name for name in MEDIA_COLUMNS[kind] if name in have)
        elif isinstance(named, str):
            other = named[:-1] if named.endswith("s") else f"{named}s"
            by_kind[kind] = tuple([name for name in (named, other) if name in have][:1])
        else:
            by_kind[kind] = tuple(name for name in named if name in have)
    return by_kind


def media_of(row: Row, columns: Columns, where: str) -> tuple[tuple[Media, ...], frozenset[str]]:
    """Gather the media of a row's columns.

    Args:
        row: Values by column.
        columns: Which column is what.
        where: The row, for messages.

    Returns:
        The media items, images first, then videos, then audio; and the columns that hold media.

    Raises:
        DatasetError: Two columns of one kind are both filled, and are not named as one list.
    """
    media: list[Media] = []
    by_kind = columns_of_media(row, columns)
    for kind, names in by_kind.items():
        filled = {name: items for name in names if (items := list_media(row[name], kind, f"{where}, column {name}"))}
        if len(filled) > 1 and not isinstance(getattr(columns, kind), tuple):
            raise DatasetError(
                explain(
                    f"Two columns of this row hold {kind} items",
                    where=where,
                    got=" and ".join(filled),
                    fix=f"Name the right one as data.columns.{kind}, or all in order: [{', '.join(filled)}].",
                )
            )
        media += [item for items in filled.values() for item in items]
    return tuple(media), frozenset(name for names in by_kind.values() for name in names)


def list_media(value: Any, kind: str = "image", name: str = "") -> list[Media]:
    """Give the media items of a column's value: one or a list of them; a hole in a table is none.

    Args:
        value: None, "", NaN and [] are no media item. A list of images under "video" is one video, frame by frame,
            numbers in lists are one array, and an array with a number beside it is a sound with its rate. Lists may
            be written as text.
        kind: "image", "video" or "audio".
        name: How messages call the items.

    Example:
        >>> [item.source for item in list_media(["a.png", None])], list_media(None)
        (['a.png'], [])
        >>> [item.source for item in list_media(["1.jpg", "2.jpg"], "video")]
        [['1.jpg', '2.jpg']]
        >>> list_media({"video": "a.mp4", "fps": 2}, "video")[0].options
        {'fps': 2}
    """
    value = parse_cell(value)
    if is_hole(value):
        return []
    pair = _audio_pair(value) if kind == "audio" else None
    if pair is not None or not isinstance(value, list | tuple):
        return [_item(value if pair is None else pair, kind, name)]
    if 0 < nesting(value) <= _ARRAYS[kind] and not is_hole(value[0]):
        return [_item(list(value), kind, name)]
    if len(value) > _MOST_ITEMS:
        what = f"A row holds more {kind} items than any prompt can show"
        raise DatasetError(explain(what, where=name, expected=f"{_MOST_ITEMS:,} or fewer", got=f"{len(value):,}"))
    items = [_item(one, kind, name) for one in value if not is_hole(one)]
    frames = kind == "video" and items and all(is_still(item.source) for item in items)
    if frames and not (len(items) == 1 and _may_move(items[0].source)):
        return [_item([item.source for item in items], kind, name)]
    return items


def _item(value: Any, kind: str, name: str) -> Media:
    """Take a media item out of what holds it, with the settings that stand beside it.

    A video that ``datasets`` opened already still knows its bytes or its path: one reader reads every video.
    """
    options: Mapping[str, Any] = {}
    if kind == "video" and isinstance(getattr(value, "_hf_encoded", None), Mapping):
        value = value._hf_encoded
    if isinstance(value, Mapping):
        value, options = unwrap_media(value, kind)
    return Media(kind=kind, source=value, name=name, options=options)  # type: ignore[arg-type]


def tags_match(prompt: Any, media: Sequence[Media]) -> bool:
    """Tell whether a prompt has tags, and exactly one for each media item.

    Args:
        prompt: Text, or chat messages; what the assistant said counts for nothing, and messages with blocks of media
            place their media by those.
        media: Of the row's columns.

    Example:
        >>> images = [Media(kind="image", source="a.png"), Media(kind="image", source="b.png")]
        >>> tags_match("Is <image> like <image>?", images), tags_match("Write an <image> element.", [])
        (True, False)
    """
    blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else list(blocks_of(prompt))
    if any(block.get("type") != "text" for block in blocks):
        return False
    tags = Counter(tag for block in blocks for tag in TAG.findall(str(block.get("text"))))
    return bool(tags) and tags == Counter(item.kind for item in media)


def parse_cell(value: Any) -> Any:
    """Read a list or a dictionary that a cell holds as text; anything else stays as it is.

    Args:
        value: Of one cell.

    Example:
        >>> parse_cell('["a.png", "b.png"]'), parse_cell("['a.png']"), parse_cell("[1] a.png")
        (['a.png', 'b.png'], ['a.png'], '[1] a.png')
    """
    text = value.strip() if isinstance(value, str) else ""
    if text[:1] + text[-1:] not in ("[]", "{}", "()"):
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > _LONGEST_LITERAL:
        return value
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
    return parsed if isinstance(parsed, list | tuple | dict) else value


def parse_conversation(value: Any, where: str = "") -> Any:
    """Read a conversation that a cell holds as text; anything else, lists of other things too, stays as it is.

    Args:
        value: Of one cell.
        where: The row, for messages.

    Raises:
        DatasetError: It begins as a conversation does, and cannot be read as one.

    Example:
        >>> parse_conversation('[{"role": "user", "content": "?"}]'), parse_conversation("[1, 2] is a list of?")
        ([{'role': 'user', 'content': '?'}], '[1, 2] is a list of?')
    """
    parsed = parse_cell(value)
    if isinstance(parsed, str) and re.match(r"""\s*\[\s*\{\s*['"](role|content|from|value)['"]\s*:""", parsed):
        parsed = _printed_array(parsed)
        if parsed is None:
            raise DatasetError(
                explain(
                    "A cell begins as a conversation and cannot be read as one",
                    where=where,
                    expected='JSON: [{"role": "user", "content": "…"}]',
                    got=shorten(str(value)),
                    fix="Write the file as JSONL or parquet, which keep lists as lists.",
                )
            )
    turns = parsed if isinstance(parsed, list) and parsed else ()
    spoken = all(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in turns)
    return parsed if turns and spoken else value


def _printed_array(text: str) -> Any:
    """Read a list of dictionaries as numpy prints an array of them: without commas, inner lists as ``array([…])``."""
    words: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text[:_LONGEST_LITERAL]).readline):
            if token.string.strip():
                words += [","] if words and words[-1] == "}" and token.string == "{" else []
                words.append(token.string)
        tree = ast.parse(" ".join(words), mode="eval")
        return ast.literal_eval(_PlainLists().visit(tree))
    except (tokenize.TokenError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


class _PlainLists(ast.NodeTransformer):
    """Takes ``array([…], dtype=object)`` for the list that it prints."""

    def visit_Call(self, node: ast.Call) -> ast.AST:  # the name that ast calls
        """Give the list; any other call stays, and is refused."""
        named = isinstance(node.func, ast.Name) and node.func.id == "array" and node.args
        return self.generic_visit(node.args[0] if named else node)


def _audio_pair(value: Any) -> Any:
    """Read samples beside their rate, in either order."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    for samples, rate in (value, value[::-1]):
        array = hasattr(samples, "__array__") or nesting(samples) > 0
        if array and isinstance(rate, int | float) and not isinstance(rate, bool):
            return {"array": samples, "sampling_rate": rate}
    return None


def _may_move(value: Any) -> bool:
    return isinstance(value, str | PurePath) and PurePath(value).suffix.lower() in ANIMATED
