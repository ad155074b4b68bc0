"""What every form gives for a row, and the pieces that the forms share: columns by role, media by kind.

A role ("prompt", "image", "answer") is a column by name, or ``auto``: the column that the form has for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.lazy import Row
from mmgrpo.errors import DatasetError, explain

KINDS = ("image", "video", "audio")
"""Kinds of media, in the order in which they stand before a text that does not place them."""
MEDIA_COLUMNS = {"image": ("image", "images"), "video": ("video", "videos"), "audio": ("audio", "audios")}
"""Columns of each kind: one medium or a list of them may stand in either."""
STILL = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".ppm"})
"""Endings of files that hold one picture: a list of such files is a clip, frame by frame."""


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
        else:
            found[kind] = tuple([name for name in (named, _other_number(named)) if name in have][:1])
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
        DatasetError: Two columns of one kind are both filled.
    """
    parts: list[Part] = []
    of_kind = columns_of_media(row, columns)
    for kind, names in of_kind.items():
        filled = {name: found for name in names if (found := listed(row[name], kind))}
        if len(filled) > 1:
            raise DatasetError(
                explain(
                    f"Two columns of this row hold {kind}s",
                    where=where,
                    got=" and ".join(filled),
                    fix=f"Name one of them as data.columns.{kind}.",
                )
            )
        parts += [Part(kind, source, name) for name, found in filled.items() for source in found]
    return tuple(parts), frozenset(name for names in of_kind.values() for name in names)


def listed(value: Any, kind: str = "image") -> list[Any]:
    """Give the media of a column's value: one medium or a list of them; a hole in a table is none.

    Args:
        value: None, "", NaN and [] are no medium. A list of still pictures under "video" is one clip, and a list of
            numbers under "audio" is one sound.
        kind: "image", "video" or "audio".

    Example:
        >>> listed("a.png"), listed(["a.png", None]), listed(None)
        (['a.png'], ['a.png'], [])
        >>> listed(["1.jpg", "2.jpg"], "video"), listed(["1.mp4", "2.mp4"], "video")
        ([['1.jpg', '2.jpg']], ['1.mp4', '2.mp4'])
    """
    if (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and value != value)
    ):
        return []
    if not isinstance(value, list | tuple):
        return [value]
    kept = [one for one in value if one is not None]
    one_clip = kind == "video" and kept and all(_is_still(one) for one in kept)
    one_sound = kind == "audio" and kept and all(isinstance(one, int | float) for one in kept)
    return [kept] if one_clip or one_sound else kept


def _is_still(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = value.get("path")
    if isinstance(value, str | PurePath):
        return PurePath(value).suffix.lower() in STILL
    return hasattr(value, "getpixel")
