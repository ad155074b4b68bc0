"""OpenAI: ``messages`` whose content blocks carry their media: ``image_url``, ``input_audio``, ``video_url``.

The last assistant turn is the truth where no column ``solution`` or ``answer`` holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mmgrpo.config.data import Columns
from mmgrpo.data.formats.blocks import is_foreign
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_column, prompt_of
from mmgrpo.data.formats.turns import turns_of, with_system, without_answer
from mmgrpo.data.formats.values import conversation
from mmgrpo.data.lazy import Row

PROMPTS = ("messages",)
ANSWERS = ("solution", "answer", "ground_truth")


def fits(have: Collection[str], rows: Collection[Row]) -> bool:
    """Tell the form by its columns, and by blocks that carry an address in one of the first rows."""
    return "messages" in have and any(_has_foreign(row.get("messages")) for row in rows)


def _has_foreign(messages: Any) -> bool:
    messages = conversation(messages)
    turns = messages if isinstance(messages, list | tuple) else ()
    contents = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
    return any(is_foreign(block) for content in contents if isinstance(content, list) for block in content)


def read(row: Row, columns: Columns, where: str) -> Reading:
    """Read one row.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.

    Raises:
        DatasetError: Malformed messages, or two columns of one kind of media are filled.
    """
    media, taken = media_of(row, columns, where)
    name = prompt_column(row, columns, PROMPTS) or ""
    turns, last = without_answer(turns_of(prompt_of(row, columns, PROMPTS), f"{where}, column {name}"))
    answer = answer_of(row, columns, ANSWERS, otherwise=last)
    return Reading(prompt=with_system(turns, row), media=media, answer=answer, media_columns=taken)
