"""What every form gives for a row, and the pieces that the forms share: columns by role, media by kind.

A role ("prompt", "image", "answer") is a column by name, or ``auto``: the column that the form has for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

from mmgrpo.addresses import ANIMATED
from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.blocks import medium_of
from mmgrpo.data.formats.values import conversation, is_hole, is_still, nesting, written
from mmgrpo.data.lazy import Row
from mmgrpo.errors import DatasetError, explain

KINDS = ("image", "video", "audio")
"""Kinds of media, in the order in which they stand before a text that does not place them."""
MEDIA_COLUMNS = {"image": ("image", "images"), "video": ("video", "videos"), "audio": ("audio", "audios")}
"""Columns of each kind: one medium or a list of them may stand in either."""
ONE_FORM = (
    "If the file holds rows of two forms, put each form in a file of its own and mix them under data.train.mixture; "
    "or set data.columns.prompt to the column that holds the question."
)
"""What to do about a row that lacks what its form asks for."""


class Part(NamedTuple):
    """One medium of a row."""

    kind: str
    """"image", "video" or "audio"."""
    source: Any
    """What the row holds: a path, an address, bytes, an array, a list of frames."""
    column: str = ""
    """Where it stood."""
    rate: float | None = None
    """Hz or frames per second, where the source does not say it."""
    name: str = ""
    """What it was called before; default: its path or its column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One row, read: whatever its form, the same for all that follows."""

    prompt: Any
    """Text, or chat messages with ``role`` and ``content``."""
    media: tuple[Part, ...] = ()
    """Media of the row's columns, in order."""
    answer: Any = None
    """The truth; None where the row has none."""
    tags: bool = False
    """Whether ``<image>``, ``<video>`` and ``<audio>`` in the text stand for the row's media."""
    media_columns: frozenset[str] = frozenset()
    """Columns that hold media: rewards get those decoded instead."""
    added: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Columns that reward functions written for this form expect."""
    id: str | None = None
    """The row's own id; None: by its number."""


def prompt_column(have: Collection[str], columns: Columns, candidates: Sequence[str]) -> str | None:
    """Find the column of the question: the one that is named, else the first of the form's.

    Args:
        have: The row, or its columns.
        columns: Which column is what.
        candidates: The form's own columns, best first.
    """
    return columns.prompt if columns.prompt != AUTO else next((name for name in candidates if name in have), None)


def prompt_of(row: Row, columns: Columns, candidates: Sequence[str]) -> Any:
    """Find the question: text, or chat messages, which a cell may hold as text.

    Args:
        row: Values by column.
        columns: Which column is what.
        candidates: The form's own columns, best first.

    Returns:
        What the column holds; None where there is no such column.
    """
    return conversation(row.get(prompt_column(row, columns, candidates) or ""))


def answer_of(row: Row, columns: Columns, candidates: Sequence[str], *, otherwise: Any = None) -> Any:
    """Find the truth: in the named column, else in the first of the form's that is filled.

    Args:
        row: Values by column.
        columns: Which column is what.
        candidates: The form's own columns, best first.
        otherwise: Where no column holds one.
    """
    if columns.answer is None:
        return None
    if columns.answer != AUTO:
        return row[columns.answer]
    return next((row[name] for name in candidates if row.get(name) is not None), otherwise)


def filled(row: Row) -> str:
    """List the columns of a row that hold something, for messages.

    Example:
        >>> filled({"problem": "?", "messages": None, "images": []})
        "'problem'"
    """
    kept = [
        name for name, value in row.items() if not (value is None or (isinstance(value, str | list) and not value))
    ]
    return ", ".join(map(repr, kept)) or "none"


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
    found: dict[str, tuple[str, ...]] = {}
    for kind in KINDS:
        named = getattr(columns, kind)
        if named is None:
            found[kind] = ()
        elif named == AUTO:
            found[kind] = tuple(name for name in MEDIA_COLUMNS[kind] if name in have)
        elif isinstance(named, str):
            found[kind] = tuple([name for name in (named, _other_number(named)) if name in have][:1])
        else:
            found[kind] = tuple(name for name in named if name in have)
    return found


def _other_number(name: str) -> str:
    return name[:-1] if name.endswith("s") else f"{name}s"


def media_of(row: Row, columns: Columns, where: str) -> tuple[tuple[Part, ...], frozenset[str]]:
    """Gather the media of a row's columns.

    Args:
        row: Values by column.
        columns: Which column is what.
        where: The row, for messages.

    Returns:
        The media, pictures first, then clips, then sounds; and the columns that hold media.

    Raises:
        DatasetError: Two columns of one kind are both filled, and are not named as one list.
    """
    parts: list[Part] = []
    of_kind = columns_of_media(row, columns)
    for kind, names in of_kind.items():
        filled = {name: found for name in names if (found := listed(row[name], kind))}
        if len(filled) > 1 and not isinstance(getattr(columns, kind), tuple):
            raise DatasetError(
                explain(
                    f"Two columns of this row hold {kind}s",
                    where=where,
                    got=" and ".join(filled),
                    fix=f"Name the right one as data.columns.{kind}, or all in order: [{', '.join(filled)}].",
                )
            )
        parts += [Part(kind, source, name) for name, found in filled.items() for source in found]
    return tuple(parts), frozenset(name for names in of_kind.values() for name in names)


def listed(value: Any, kind: str = "image") -> list[Any]:
    """Give the media of a column's value: one medium or a list of them; a hole in a table is none.

    Args:
        value: None, "", NaN and [] are no medium. A list of pictures under "video" is one clip, numbers in lists are
            one array, and an array with a number beside it is a sound with its rate. Lists may be written as text.
        kind: "image", "video" or "audio".

    Example:
        >>> listed("a.png"), listed(["a.png", None]), listed(None)
        (['a.png'], ['a.png'], [])
        >>> listed(["1.jpg", "2.jpg"], "video"), listed(["1.mp4", "2.mp4"], "video")
        ([['1.jpg', '2.jpg']], ['1.mp4', '2.mp4'])
    """
    value = written(value)
    if is_hole(value):
        return []
    sound = _sound(value) if kind == "audio" else None
    if sound is not None:
        return [sound]
    if not isinstance(value, list | tuple):
        return [_unwrapped(value, kind)]
    if nesting(value) in _ARRAYS[kind]:
        return [list(value)]
    kept = [_unwrapped(one, kind) for one in value if not is_hole(one)]
    if kind == "video" and kept and all(map(is_still, kept)) and not (len(kept) == 1 and _may_move(kept[0])):
        return [kept]
    return kept


_ARRAYS = {"image": (2, 3), "video": (3, 4), "audio": (1,)}
"""How deep lists of numbers are that make one medium."""
_OWN_KEYS = frozenset({"bytes", "path", "array", "frames", "fps"})
"""Keys of the dictionaries that decoders read."""


def _sound(value: Any) -> Any:
    """Read samples beside their rate, in either order."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    for samples, rate in (value, value[::-1]):
        array = hasattr(samples, "__array__") or nesting(samples) > 0
        if array and isinstance(rate, int | float) and not isinstance(rate, bool):
            return {"array": samples, "sampling_rate": rate}
    return None


def _unwrapped(value: Any, kind: str) -> Any:
    """Take a medium out of a dictionary that is none of a decoder's own, such as ``{"url": …}``.

    A clip that ``datasets`` opened already still knows its bytes or its path: one reader reads every clip.
    """
    if kind == "video" and isinstance(getattr(value, "_hf_encoded", None), Mapping):
        return value._hf_encoded
    if not isinstance(value, Mapping) or _OWN_KEYS & set(value):
        return value
    found = medium_of(value, kind)
    return value if found is None else found


def _may_move(value: Any) -> bool:
    return isinstance(value, str | PurePath) and PurePath(value).suffix.lower() in ANIMATED
