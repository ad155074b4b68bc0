"""mmgrpo's own form: what ``mmgrpo data convert`` writes, one parquet file with messages, answer and media inside."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.reading import Part, Reading
from mmgrpo.data.lazy import Row
from mmgrpo.errors import DatasetError, explain

MESSAGES, MEDIA, ANSWER, ID = "mmgrpo_messages", "mmgrpo_media", "mmgrpo_answer", "mmgrpo_id"
"""Columns: messages and answer as JSON, media with their bytes in the order of their placeholders, the id."""
JSON = "__json"
"""Ending of a column that arrow could not hold exactly, and that is JSON text instead."""
PROMPTS = (MESSAGES,)


def fits(have: Collection[str]) -> bool:
    """Tell the form by its columns."""
    return {MESSAGES, MEDIA, ANSWER} <= set(have)


def read(row: Row, columns: Columns, where: str) -> Reading:
    """Read one row.

    Args:
        row: Values by column.
        columns: A named answer column wins over the form's own.
        where: The row, for messages.

    Raises:
        DatasetError: It was not written by mmgrpo.
    """
    try:
        messages, answer = json.loads(row[MESSAGES]), json.loads(row[ANSWER])
        media = tuple(_part(one) for one in row[MEDIA] or ())
        plain = {name.removesuffix(JSON): json.loads(v) for name, v in row.items() if name.endswith(JSON)}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        told = f"{type(error).__name__}: {error}"
        raise DatasetError(explain("A row is not as mmgrpo wrote it", where=where, got=told)) from error
    if columns.answer != AUTO:
        answer = None if columns.answer is None else {**row, **plain}.get(columns.answer, answer)
    own = {MESSAGES, MEDIA, ANSWER, ID, *(name for name in row if name.endswith(JSON))}
    return Reading(
        prompt=messages, media=media, answer=answer, media_columns=frozenset(own), added=plain, id=row.get(ID)
    )


def _part(one: Mapping[str, Any]) -> Part:
    pieces = list(one["bytes"])
    return Part(one["kind"], pieces if one["frames"] else pieces[0], MEDIA, one["rate"], one["name"])
