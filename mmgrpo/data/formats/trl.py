"""TRL: ``prompt`` (text or chat messages), ``image`` or ``images``, and the truth under any name.

Media may stand inside the content blocks, and keys that an arrow table filled with None are dropped. Tags such as
``<image>`` in the text are places of media where there is one for each. A ``completion``, text or messages, is the
truth where no other column is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mmgrpo.config.data import Columns
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_of
from mmgrpo.data.formats.tags import tags_match
from mmgrpo.data.formats.turns import turns_of, without_answer
from mmgrpo.data.formats.values import conversation
from mmgrpo.data.lazy import Row

PROMPTS = ("prompt",)
ANSWERS = ("solution", "answer", "ground_truth", "response", "answers", "target", "targets", "output", "answer_key")


def fits(have: Collection[str]) -> bool:
    """Tell the form by its columns."""
    return "prompt" in have


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
    prompt = prompt_of(row, columns, PROMPTS)
    return Reading(
        prompt=prompt,
        media=media,
        answer=answer_of(row, columns, ANSWERS, otherwise=_completion(row, where)),
        tags=tags_match(prompt, media),
        media_columns=taken,
    )


def _completion(row: Row, where: str) -> Any:
    """Find what the assistant should say, where a row has it as TRL's prompt-completion form does."""
    found = conversation(row.get("completion"))
    if not isinstance(found, list | tuple) or not found:
        return found
    return without_answer(turns_of(found, f"{where}, column completion"))[1]
