"""ms-swift: ``messages`` with ``<image>``, ``<video>`` and ``<audio>`` tags, or a query and a response.

Media stand in ``images``, ``videos`` and ``audios`` (or the singular) in the order of their tags; tags that are
missing stand before the first user message. The last assistant turn, or the response, is the truth where no column
``solution`` holds it.
"""

from __future__ import annotations

from collections.abc import Collection

from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_column
from mmgrpo.data.formats.turns import turns_of, with_system, without_answer
from mmgrpo.data.lazy import Row

PROMPTS = ("messages", "query", "prompt", "input", "instruction", "question", "problem")
ANSWERS = ("solution",)
RESPONSES = (
    "response", "answer", "output", "targets", "target", "answer_key", "answers", "solution", "text", "completion",
    "content",
)  # fmt: skip
"""Columns of the response, where a row has a query and no messages."""


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
        DatasetError: Malformed messages, or two columns of one kind of media are filled.
    """
    media, taken = media_of(row, columns, where)
    name = prompt_column(row, columns, PROMPTS) or ""
    prompt = row.get(name)
    if isinstance(prompt, list | tuple):
        turns, last = without_answer(turns_of(prompt, f"{where}, column {name}"))
        answer = answer_of(row, columns, ANSWERS, otherwise=last)
        return Reading(prompt=with_system(turns, row), media=media, answer=answer, tags=True, media_columns=taken)
    if isinstance(prompt, str):
        named = columns.prompt if columns.prompt != AUTO else name
        others = tuple(column for column in (*ANSWERS, *RESPONSES) if column != named)
        answer = answer_of(row, columns, others)
        chat = with_system([{"role": "user", "content": prompt}], row)
        return Reading(
            prompt=chat if len(chat) > 1 else prompt, media=media, answer=answer, tags=True, media_columns=taken
        )
    return Reading(prompt=prompt, media=media, media_columns=taken)
