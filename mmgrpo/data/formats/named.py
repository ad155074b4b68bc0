"""Rows of no known form, whose columns the configuration names."""

from __future__ import annotations

from mmgrpo.config.data import Columns
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_of
from mmgrpo.data.formats.tags import tags_match
from mmgrpo.data.lazy import Row

ANSWERS = ("solution", "answer", "ground_truth")


def read(row: Row, columns: Columns, where: str) -> Reading:
    """Read one row.

    Args:
        row: Values by column.
        columns: Which column is what.
        where: The row, for messages.

    Raises:
        DatasetError: Two columns of one kind of media are filled.
    """
    media, taken = media_of(row, columns, where)
    prompt = prompt_of(row, columns, ())
    answer = answer_of(row, columns, ANSWERS)
    return Reading(prompt=prompt, media=media, answer=answer, tags=tags_match(prompt, media), media_columns=taken)
