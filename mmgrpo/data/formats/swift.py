"""ms-swift: ``messages`` with ``<image>``, ``<video>`` and ``<audio>`` tags, or a query and a response.

Media stand in ``images``, ``videos`` and ``audios`` (or the singular) in the order of their tags; tags that are
missing stand before the first user message. The last assistant turn, or the response, is the truth where no column
``solution`` holds it. Of a row with an instruction and an input the question is both; ``history`` holds earlier turns.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_column, prompt_of
from mmgrpo.data.formats.turns import turns_of, with_system, without_answer
from mmgrpo.data.formats.values import written
from mmgrpo.data.lazy import Row
from mmgrpo.errors import DatasetError, explain

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
    prompt = prompt_of(row, columns, PROMPTS)
    if isinstance(prompt, list | tuple):
        turns, last = without_answer(turns_of(prompt, f"{where}, column {name}"))
        answer = answer_of(row, columns, ANSWERS, otherwise=last)
        return Reading(prompt=with_system(turns, row), media=media, answer=answer, tags=True, media_columns=taken)
    if columns.prompt == AUTO and name == "input" and "instruction" in row:
        prompt = _instructed(row["instruction"], prompt)
    if not isinstance(prompt, str):
        return Reading(prompt=prompt, media=media, media_columns=taken)
    others = tuple(column for column in (*ANSWERS, *RESPONSES) if column != name)
    chat = [*_history(row, where), {"role": "user", "content": prompt}]
    chat = with_system(chat, row)
    return Reading(
        prompt=chat if len(chat) > 1 else prompt,
        media=media,
        answer=answer_of(row, columns, others),
        tags=True,
        media_columns=taken,
    )


def _instructed(instruction: Any, given: Any) -> Any:
    """Join an instruction with the input that it is about, as Alpaca's rows mean it; either may be empty."""
    parts = [part for part in (instruction, given) if isinstance(part, str) and part.strip()]
    return "\n".join(parts) if parts else given


def _history(row: Row, where: str) -> list[dict[str, Any]]:
    """Read earlier turns: a list of pairs of what the user asked and what the assistant said."""
    pairs = written(row.get("history")) or ()
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        expected = 'a list of pairs: [["question", "answer"], …]'
        raise DatasetError(explain("This is no history", where=where, expected=expected, got=repr(pairs)[:200]))
    asked = [({"role": "user", "content": q}, {"role": "assistant", "content": a}) for q, a in pairs]
    return [turn for pair in asked for turn in pair]
