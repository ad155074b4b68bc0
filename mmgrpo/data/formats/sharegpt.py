"""ShareGPT: ``conversations`` of ``from`` and ``value``; the last thing that ``gpt`` said is the truth.

Media stand in ``images`` and its kin, in the order of the tags in the text.
"""

from __future__ import annotations

from collections.abc import Collection

from mmgrpo.config.data import Columns
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_column, prompt_of
from mmgrpo.data.formats.turns import turns_of, with_system, without_answer
from mmgrpo.data.lazy import Row

PROMPTS = ("conversations", "conversation")
ANSWERS = ("solution",)


def fits(have: Collection[str]) -> bool:
    """Tell the form by its columns."""
    return any(name in have for name in PROMPTS)


def read(row: Row, columns: Columns, where: str) -> Reading:
    """Read one row.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.

    Raises:
        DatasetError: Malformed turns, or two columns of one kind of media are filled.
    """
    media, taken = media_of(row, columns, where)
    name = prompt_column(row, columns, PROMPTS) or ""
    turns, last = without_answer(turns_of(prompt_of(row, columns, PROMPTS), f"{where}, column {name}"))
    return Reading(
        prompt=with_system(turns, row),
        media=media,
        answer=answer_of(row, columns, ANSWERS, otherwise=last),
        tags=True,
        media_columns=taken,
    )
