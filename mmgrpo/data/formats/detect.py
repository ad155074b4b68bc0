"""Which form rows have: told by their columns, the first that fits.

The order matters only where columns fit two forms; it is that of :data:`_BY_COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.addresses import kind_of_ending, sniff_kind
from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats import carried, easyr1, named, openai, r1v, sharegpt, swift, trl, vlm_r1
from mmgrpo.data.formats.reading import MEDIA_COLUMNS, Reading, columns_of_media
from mmgrpo.data.lazy import Row
from mmgrpo.errors import DatasetError, explain

Read = Callable[[Row, Columns, str], Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One form of rows."""

    name: str
    """As ``format:`` names it."""
    read: Read
    """Row, columns and place to a reading."""
    prompts: tuple[str, ...] = ()
    """Columns that hold the question, best first."""
    answers: tuple[str, ...] = ()
    """Columns of which one must be there, unless ``columns.answer`` says otherwise; empty: none must."""
    media: tuple[str, ...] = ()
    """Columns of media beside those that every form has."""
    added: tuple[str, ...] = ()
    """Columns that the form adds."""


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format(name="r1v", read=r1v.read, prompts=r1v.PROMPTS, answers=r1v.ANSWERS, media=r1v.MEDIA),
        Format(name="trl", read=trl.read, prompts=trl.PROMPTS),
        Format(name="swift", read=swift.read, prompts=swift.PROMPTS),
        Format(name="easyr1", read=easyr1.read, prompts=easyr1.PROMPTS, answers=easyr1.ANSWERS),
        Format(name="vlm_r1", read=vlm_r1.read, prompts=vlm_r1.PROMPTS, added=vlm_r1.ADDED),
        Format(name="sharegpt", read=sharegpt.read, prompts=sharegpt.PROMPTS),
        Format(name="openai", read=openai.read, prompts=openai.PROMPTS),
        Format(name="mmgrpo", read=carried.read, prompts=carried.PROMPTS, media=(carried.MEDIA,)),
        Format(name="named", read=named.read),
    )
}
"""Every form, by the name that ``format:`` takes."""
_QUESTIONS = frozenset(name for form in FORMATS.values() for name in form.prompts)
_BY_COLUMNS: Sequence[tuple[str, Callable[[Collection[str]], bool]]] = (
    ("vlm_r1", vlm_r1.fits),
    ("sharegpt", sharegpt.fits),
    ("r1v", r1v.fits),
    ("easyr1", easyr1.fits),
    ("trl", trl.fits),
    ("swift", swift.fits),
)


def detect(have: Sequence[str], columns: Columns, first: Callable[[], Sequence[Row]], where: str) -> Format:
    """Tell the form of rows.

    Args:
        have: Their columns.
        columns: A named prompt column decides which of them is the question.
        first: Gives the first rows; called only where columns alone do not tell.
        where: The source, for messages.

    Returns:
        The first form that fits.

    Raises:
        DatasetError: No form fits, and no column is named.

    Example:
        >>> detect(["image", "problem", "solution"], Columns(), list, "rows").name
        'r1v'
        >>> detect(["messages", "images"], Columns(), list, "rows").name
        'swift'
    """
    seen = set(have)
    if carried.fits(seen):
        return FORMATS["mmgrpo"]
    if columns.prompt != AUTO:
        if columns.prompt not in _QUESTIONS:
            return FORMATS["named"]
        seen = (seen - _QUESTIONS) | {columns.prompt}
    if "messages" in seen:
        return FORMATS["openai" if openai.fits(seen, first()) else "swift"]
    for name, fits in _BY_COLUMNS:
        if fits(seen):
            return FORMATS[name]
    raise DatasetError(
        explain(
            "The rows are of no known form: there is no column of questions",
            where=where,
            expected=f"one of {', '.join(sorted(_QUESTIONS))}",
            got=", ".join(map(repr, have)) or "no columns",
            fix="Set data.columns.prompt to the column that holds the question.",
        )
    )


def lost_medium(have: Sequence[str], columns: Columns, rows: Sequence[Row]) -> tuple[str, str] | None:
    """Find a column that looks like media, where no column is read as media.

    Args:
        have: All columns.
        columns: Which column is what.
        rows: Some rows.

    Returns:
        The column and the kind of its media; None where media are read, where the configuration says that there are
        none of the kind, or where nothing looks like any.

    Example:
        >>> lost_medium(["problem", "img"], Columns(), [{"problem": "?", "img": "a.png"}])
        ('img', 'image')
    """
    if any(columns_of_media(have, columns).values()):
        return None
    used = {columns.prompt, columns.answer, columns.id}
    for row in rows:
        for name, value in row.items():
            kind = None if name in used else _looks_like(value)
            if kind is not None and getattr(columns, kind) == AUTO:
                return name, kind
    return None


def holds_media(value: Any) -> str | None:
    """Tell the kind of media that a value surely is: encoded or decoded, not a name that may be anything.

    Args:
        value: Of a row; of a list its first.

    Example:
        >>> holds_media({"bytes": None, "path": "a.png"}), holds_media("a.png")
        ('image', None)
    """
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return None if isinstance(value, str) else _looks_like(value)


def _looks_like(value: Any) -> str | None:
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if hasattr(value, "getpixel"):
        return "image"
    if isinstance(value, Mapping) and {"bytes", "path"} <= set(value):
        return _looks_like(value["bytes"]) or _looks_like(value["path"]) or "image"
    if isinstance(value, bytes):
        return sniff_kind(value[:256])
    if isinstance(value, str) and value[:5].lower() == "data:":
        return next((kind for kind in MEDIA_COLUMNS if value[5:].lower().startswith(f"{kind}/")), None)
    if isinstance(value, str) and len(value) < 500 and "\n" not in value:
        return kind_of_ending(value)
    return None
