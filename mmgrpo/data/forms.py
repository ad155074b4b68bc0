"""The form of a source, chosen or told by its columns, and the check that every column that will be read exists.

Reads at most the first rows, and those only where columns alone do not tell.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from mmgrpo.config.data import AUTO, Columns, Template
from mmgrpo.data.formats import carried
from mmgrpo.data.formats.detect import FORMATS, Format, detect, holds_media, lost_medium
from mmgrpo.data.formats.reading import KINDS, columns_of_media, prompt_column
from mmgrpo.data.lazy import Row, Rows
from mmgrpo.data.templates import names
from mmgrpo.errors import DatasetError, explain

_PEEK = 8
"""Rows looked at where columns alone do not tell the form."""


def form_of(rows: Rows | Row, *, columns: Columns, template: Template, where: str = "") -> Format:
    """Tell the form of a source, or of one row.

    Args:
        rows: The source, or a row.
        columns: Which column is what.
        template: Its names are columns too.
        where: The row's place; a source has its own.

    Raises:
        DatasetError: No form fits, a column is missing, or a column of media would be overlooked.
    """
    one = None if isinstance(rows, Rows) else rows
    have: Sequence[str] = list(rows) if one is not None else rows.columns
    where = where if one is not None else rows.name
    if not carried.fits(have):
        _check_named(have, columns, template, where)

    def first() -> Sequence[Row]:
        """Read the first rows."""
        return [one] if one is not None else [rows[i] for i in range(min(_PEEK, len(rows)))]

    name = AUTO if one is not None else rows.format
    if name != AUTO:
        form = FORMATS[name]
    elif "prompt" not in template_names(template) and columns.prompt == AUTO and not carried.fits(have):
        form = FORMATS["named"]
    else:
        form = detect(have, columns, first, where)
    check_columns(have, columns=columns, template=template, form=form, where=where)
    if one is None and not set(form.media) & set(have):
        _check_lost(have, columns, first(), where)
    if one is None and not carried.fits(have):
        known = {name for any_form in FORMATS.values() for name in (*any_form.prompts, *any_form.answers)}
        used = {*known, columns.prompt, columns.answer, columns.id}
        _warn_of_unread(columns, first, [name for name in have if name not in used], where)
    return form


def check_columns(
    have: Sequence[str] | Row, *, columns: Columns, template: Template, form: Format, where: str
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
        if name not in have and f"{name}{carried.JSON}" not in have:
            raise DatasetError(_absent(name, f"data.template ({{{{ {name} }}}})", have, where, optional=False))
    needs_prompt = "prompt" in template_names(template) and form.name != "named"
    if needs_prompt and prompt_column(have, columns, form.prompts) is None:
        raise DatasetError(_missing("question", "columns.prompt", form.prompts, have, where))
    if columns.answer == AUTO and form.answers and not set(form.answers) & set(have):
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
        found = columns_of_media(have, columns)[kind] if kind in KINDS else have
        for name in (column,) if isinstance(column, str) else column or ():
            there = bool(found) if isinstance(column, str) and kind in KINDS else name in found
            if name != AUTO and not there:
                raise DatasetError(_absent(name, f"data.{key}", have, where, optional=kind not in ("prompt", "id")))


def template_names(template: Template) -> frozenset[str]:
    """List the columns that a template takes from the row.

    Example:
        >>> sorted(template_names(Template(system="{{ hint }}")))
        ['hint', 'prompt']
    """
    user = names(template.user, key="data.template.user") | names(template.system or "", key="data.template.system")
    return user | (names(template.answer or "", key="data.template.answer") - {"answer"})


def _check_lost(have: Sequence[str], columns: Columns, rows: Sequence[Row], where: str) -> None:
    lost = lost_medium(have, columns, rows)
    if lost is None:
        return
    column, kind = lost
    raise DatasetError(
        explain(
            f"The column {column!r} looks like {kind}s, but no column is read as such",
            where=where,
            fix=f"Set data.columns.{kind}: {column}, or data.columns.{kind}: null to leave them out.",
        )
    )


def _warn_of_unread(columns: Columns, first: Callable[[], Sequence[Row]], have: Sequence[str], where: str) -> None:
    """Tell of a second column of media beside one that is read: the policy would answer without it."""
    of_kind = columns_of_media(have, columns)
    others = [name for name in have if not any(name in read for read in of_kind.values())]
    for kind, read in of_kind.items():
        if not read or not others:
            continue
        beside = next((n for row in first() for n in others if holds_media(row.get(n)) == kind), None)
        if beside is not None:
            warnings.warn(
                f"{where}: the column {beside!r} holds {kind}s that no prompt shows. To show them: "
                f"data.columns.{kind}: [{', '.join((*read, beside))}]. Rewards get the column in any case.",
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
        got=", ".join(map(repr, have)) or "no columns",
        fix=f"Set data.{key} to the right column{', or to null if there is none' if key.endswith('answer') else ''}.",
    )
