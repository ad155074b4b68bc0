"""The table of forms, which of them a source has, and the check that every column that will be read exists.

Columns tell the form, the first that fits; the first rows are read only where columns alone do not tell.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmgrpo.addresses import KINDS, holds_media, looks_like
from mmgrpo.config.data import AUTO, Columns, Template
from mmgrpo.data.formats.conversations import (
    has_other_blocks,
    read_swift,
    read_trl,
    read_turns,
    read_vlm_r1,
)
from mmgrpo.data.formats.reading import ParsedRow, RowFormat, columns_of_media, prompt_column
from mmgrpo.data.rows import Row, Rows
from mmgrpo.data.templates import template_names
from mmgrpo.errors import DatasetError, MmgrpoError, explain, shorten
from mmgrpo.types import Media

MESSAGES, MEDIA, ANSWER, ID = "mmgrpo_messages", "mmgrpo_media", "mmgrpo_answer", "mmgrpo_id"
"""Columns of what ``mmgrpo data convert`` writes: messages and answer as JSON, media with their bytes in the order of
their placeholders, the id."""
JSON = "__json"
"""Ending of a column that arrow could not hold exactly, and that is JSON text instead."""
_PEEK = 8
"""Rows looked at where columns alone do not tell the form."""


def _read_carried(row: Row, columns: Columns, where: str, form: RowFormat) -> ParsedRow:
    """Read a row that ``mmgrpo data convert`` wrote; a named answer column wins over its own."""
    try:
        messages, answer = json.loads(row[MESSAGES]), json.loads(row[ANSWER])
        media = tuple(_carried_media(one, where) for one in row[MEDIA] or ())
        plain = {name.removesuffix(JSON): json.loads(v) for name, v in row.items() if name.endswith(JSON)}
    except (TypeError, ValueError, KeyError, IndexError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"
        raise DatasetError(explain("A row is not as mmgrpo wrote it", where=where, got=got)) from error
    if columns.answer != AUTO:
        answer = None if columns.answer is None else {**row, **plain}.get(columns.answer, answer)
    own = {MESSAGES, MEDIA, ANSWER, ID, *(name for name in row if name.endswith(JSON))}
    return ParsedRow(
        prompt=messages, media=media, answer=answer, media_columns=frozenset(own), added=plain, id=row.get(ID)
    )


def _carried_media(one: Mapping[str, Any], where: str) -> Media:
    pieces = list(one["bytes"])
    name = one["name"] or f"{where}, column {MEDIA}"
    return Media(kind=one["kind"], source=pieces if one["frames"] else pieces[0], rate=one["rate"], name=name)


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda have: set(names) <= set(have)


def _has_any(*names: str) -> Callable[[Any], bool]:
    return lambda have: bool(set(names) & set(have))


_SWIFT_PROMPTS = ("messages", "query", "prompt", "input", "instruction", "question", "problem")
_TURNS = ("conversations", "conversation")
ROW_FORMATS: Mapping[str, RowFormat] = {
    form.name: form
    for form in (
        RowFormat(
            name="mmgrpo",
            fits=_has(MESSAGES, MEDIA, ANSWER),
            prompts=(MESSAGES,),
            media=(MEDIA,),
            custom=_read_carried,
        ),
        RowFormat(
            name="vlm_r1",
            fits=lambda have: _has_any(*_TURNS)(have) and "image" in have,
            prompts=_TURNS,
            answers=("solution",),
            tags=True,
            added=("problem", "solution"),
            custom=read_vlm_r1,
        ),
        RowFormat(
            name="sharegpt",
            fits=_has_any(*_TURNS),
            prompts=_TURNS,
            answers=("solution",),
            tags=True,
            custom=read_turns,
        ),
        RowFormat(
            name="r1v",
            fits=lambda have: (
                _has("problem", "solution")(have) or _has("image_path", "question", "ground_truth")(have)
            ),
            prompts=("problem", "question"),
            answers=("solution", "ground_truth"),
            needs_answer=True,
            media=("image_path",),
        ),
        RowFormat(
            name="easyr1",
            fits=lambda have: _has("problem", "answer")(have) and "solution" not in have,
            prompts=("problem",),
            answers=("answer", "ground_truth"),
            needs_answer=True,
            tags=True,
        ),
        RowFormat(
            name="trl",
            fits=_has("prompt"),
            prompts=("prompt",),
            answers=(
                "solution", "answer", "ground_truth", "response", "answers", "target", "targets", "output",
                "answer_key",
            ),
            custom=read_trl,
        ),
        RowFormat(
            name="swift",
            fits=_has_any(*_SWIFT_PROMPTS),
            prompts=_SWIFT_PROMPTS,
            answers=("solution",),
            tags=True,
            custom=read_swift,
        ),
        RowFormat(
            name="openai",
            prompts=("messages",),
            answers=("solution", "answer", "ground_truth"),
            custom=read_turns,
        ),
        RowFormat(name="named", answers=("solution", "answer", "ground_truth"), checks_columns=False),
    )
}  # fmt: skip
"""Every form, by the name that ``format:`` takes; where columns fit two, the first is taken."""
_QUESTIONS = frozenset(name for form in ROW_FORMATS.values() for name in form.prompts)


def detect(have: Sequence[str], columns: Columns, first: Callable[[], Sequence[Row]], where: str) -> RowFormat:
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
    columns_there = set(have)
    if ROW_FORMATS["mmgrpo"].fits(columns_there):
        return ROW_FORMATS["mmgrpo"]
    if columns.prompt != AUTO:
        if columns.prompt not in _QUESTIONS:
            return ROW_FORMATS["named"]
        columns_there = (columns_there - _QUESTIONS) | {columns.prompt}
    if "messages" in columns_there:
        return ROW_FORMATS["openai" if any(_is_openai(row) for row in first()) else "swift"]
    for form in ROW_FORMATS.values():
        if form.fits(columns_there):
            return form
    raise DatasetError(
        explain(
            "The rows are of no known form: there is no column of questions",
            where=where,
            expected=f"one of {', '.join(sorted(_QUESTIONS))}",
            got=", ".join(map(repr, have)) or "no columns",
            fix="Set data.columns.prompt to the column that holds the question, or data.train.format to one of "
            f"{', '.join(ROW_FORMATS)}, or to a reader of your own, path.py:name.",
        )
    )


def _is_openai(row: Row) -> bool:
    try:
        return has_other_blocks(row.get("messages"))
    except MmgrpoError:  # the row is refused when it is read
        return False


def form_of(rows: Rows | Row, *, columns: Columns, template: Template, where: str = "") -> RowFormat:
    """Tell the form of a source, or of one row.

    Args:
        rows: The source, or a row.
        columns: Which column is what.
        template: Its names are columns too.
        where: The row's place; a source has its own.

    Raises:
        DatasetError: No form fits, a column is missing, or a column of media would be overlooked.
    """
    source = rows if isinstance(rows, Rows) else None
    have: Sequence[str] = source.columns if source is not None else list(rows)  # type: ignore[arg-type]
    where = source.name if source is not None else where
    carried = ROW_FORMATS["mmgrpo"].fits(have)
    peeked: list[Row] = []

    def first() -> Sequence[Row]:
        """Read the first rows, those that can be read."""
        if not peeked:
            peeked.extend(_readable(source) if source is not None else [rows])  # type: ignore[list-item]
        return peeked

    named = AUTO if source is None else source.format
    if isinstance(named, RowFormat):
        return named
    if not carried:
        _check_named(have, columns, template, where)
    if named != AUTO:
        form = ROW_FORMATS[named]
    elif "prompt" not in template_names(template) and columns.prompt == AUTO and not carried:
        form = ROW_FORMATS["named"]
    else:
        form = detect(have, columns, first, where)
    check_row_columns(have, columns=columns, template=template, form=form, where=where)
    if source is not None and not set(form.media) & set(have):
        _check_unread(have, columns, first(), where)
    if source is not None and not carried:
        known = {name for any_form in ROW_FORMATS.values() for name in (*any_form.prompts, *any_form.answers)}
        used = {*known, columns.prompt, columns.answer, columns.id}
        _warn_of_unread(columns, first, [name for name in have if name not in used], where)
    return form


def _readable(rows: Rows) -> list[Row]:
    """Give the first rows that can be read: a row that cannot is refused when it is drawn."""
    readable: list[Row] = []
    for index in range(min(_PEEK, len(rows))):
        try:
            readable.append(rows[index])
        except (MmgrpoError, RecursionError):
            continue
    return readable


def check_row_columns(
    have: Sequence[str] | Row, *, columns: Columns, template: Template, form: RowFormat, where: str
) -> None:
    """Check that every column that will be read exists.

    Args:
        have: The columns there are.
        columns: Which column is what.
        template: Its names are columns too, beside ``prompt``.
        form: Which columns it needs beside those that are named.
        where: Source or row, for messages.

    Raises:
        DatasetError: One is missing.
        ConfigError: The template is malformed.
    """
    if form.name != "mmgrpo":
        _check_named(have, columns, template, where)
    for name in sorted(template_names(template) - {"prompt", *form.added}):
        if name not in have and f"{name}{JSON}" not in have:
            raise DatasetError(_absent(name, f"data.template ({{{{ {name} }}}})", have, where, optional=False))
    needs_prompt = "prompt" in template_names(template) and form.name != "named"
    if needs_prompt and prompt_column(have, columns, form.prompts) is None:
        raise DatasetError(_missing("question", "columns.prompt", form.prompts, have, where))
    if columns.answer == AUTO and form.needs_answer and not set(form.answers) & set(have):
        raise DatasetError(_missing("answers", "columns.answer", form.answers, have, where))


def _check_named(have: Sequence[str] | Row, columns: Columns, template: Template, where: str) -> None:
    """Check the columns that the configuration names."""
    used = template_names(template)
    wanted = {
        "columns.prompt": columns.prompt if "prompt" in used else None,
        **{f"columns.{kind}": getattr(columns, kind) for kind in KINDS},
        "columns.answer": columns.answer,
        "columns.id": columns.id,
    }
    for key, column in wanted.items():
        kind = key.removeprefix("columns.")
        there_are = columns_of_media(have, columns)[kind] if kind in KINDS else have
        for name in (column,) if isinstance(column, str) else column or ():
            there = bool(there_are) if isinstance(column, str) and kind in KINDS else name in there_are
            if name != AUTO and not there:
                raise DatasetError(_absent(name, f"data.{key}", have, where, optional=kind not in ("prompt", "id")))


def unread_media(have: Sequence[str], columns: Columns, rows: Sequence[Row]) -> tuple[str, str] | None:
    """Find a column that looks like media, where no column is read as media.

    Args:
        have: All columns.
        columns: Which column is what.
        rows: Some rows.

    Returns:
        The column and the kind of its media; None where media are read, where the configuration says that there are
        none of the kind, or where nothing looks like any.

    Example:
        >>> unread_media(["problem", "img"], Columns(), [{"problem": "?", "img": "a.png"}])
        ('img', 'image')
    """
    if any(columns_of_media(have, columns).values()):
        return None
    used = {columns.prompt, columns.answer, columns.id}
    for row in rows:
        for name, value in row.items():
            kind = None if name in used else looks_like(value)
            if kind is not None and getattr(columns, kind) == AUTO:
                return name, kind
    return None


def _check_unread(have: Sequence[str], columns: Columns, rows: Sequence[Row], where: str) -> None:
    unread = unread_media(have, columns, rows)
    if unread is None:
        return
    column, kind = unread
    raise DatasetError(
        explain(
            f"The column {column!r} looks like {kind}s, but no column is read as such",
            where=where,
            fix=f"Set data.columns.{kind}: {column}, or data.columns.{kind}: null to leave them out.",
        )
    )


def _warn_of_unread(columns: Columns, first: Callable[[], Sequence[Row]], have: Sequence[str], where: str) -> None:
    """Tell of a second column of media beside one that is read: the policy would answer without it."""
    by_kind = columns_of_media(have, columns)
    others = [name for name in have if not any(name in names for names in by_kind.values())]
    for kind, names in by_kind.items():
        if not names or not others:
            continue
        beside = next((n for row in first() for n in others if holds_media(row.get(n)) == kind), None)
        if beside is not None:
            warnings.warn(
                f"{where}: the column {beside!r} holds {kind}s that no prompt shows. To show them: "
                f"data.columns.{kind}: [{', '.join((*names, beside))}]. Rewards get the column in any case.",
                stacklevel=2,
            )


def _absent(column: str, key: str, have: Sequence[str] | Row, where: str, *, optional: bool) -> str:
    return explain(
        f"There is no column {column!r}",
        where=f"{where}, asked for by {key}",
        expected=f"one of {', '.join(map(repr, have)) or '(no columns)'}",
        fix=f"Set {key} to the right column{', or to null if there is none' if optional else ''}.",
    )


def _missing(what: str, key: str, candidates: Sequence[str], have: Sequence[str] | Row, where: str) -> str:
    return explain(
        f"There is no column of {what}",
        where=where,
        expected=f"one of {', '.join(candidates)}",
        got=shorten(", ".join(map(repr, have)) or "no columns", limit=1000),
        fix=f"Set data.{key} to the right column{', or to null if there is none' if key.endswith('answer') else ''}.",
    )
