"""EasyR1: ``problem`` with ``<image>`` or ``<video>`` tags, ``answer``, ``images`` or ``videos``."""

from __future__ import annotations

from collections.abc import Collection

from mmgrpo.config.data import Columns
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_of
from mmgrpo.data.lazy import Row

PROMPTS = ("problem",)
ANSWERS = ("answer", "ground_truth")


def fits(have: Collection[str]) -> bool:
    """Tell the form by its columns."""
    return {"problem", "answer"} <= set(have) and "solution" not in have


def read(row: Row, columns: Columns, where: str) -> Reading:
    """Read one row.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.

    Raises:
        DatasetError: Two columns of one kind of media are filled.
    """
    media, taken = media_of(row, columns, where)
    return Reading(
        prompt=prompt_of(row, columns, PROMPTS),
        media=media,
        answer=answer_of(row, columns, ANSWERS),
        tags=True,
        media_columns=taken,
    )
