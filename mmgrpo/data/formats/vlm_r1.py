"""VLM-R1: ``conversations`` of ``from`` and ``value``, and ``image``, one path or a list; gpt's value is the truth.

Rewards written for it ask for ``problem`` (the question without tags) and ``solution`` (the truth in answer tags);
both are added where the row has no such column.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from mmgrpo.config.data import Columns
from mmgrpo.data.formats import sharegpt
from mmgrpo.data.formats.reading import Reading
from mmgrpo.data.formats.tags import without_tags
from mmgrpo.data.formats.turns import said
from mmgrpo.data.lazy import Row

PROMPTS = sharegpt.PROMPTS
ADDED = ("problem", "solution")


def fits(have: Collection[str]) -> bool:
    """Tell the form by its columns."""
    return sharegpt.fits(have) and "image" in have


def read(row: Row, columns: Columns, where: str) -> Reading:
    """Read one row.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.

    Raises:
        DatasetError: Malformed turns, or two columns of one kind of media are filled.
    """
    reading = sharegpt.read(row, columns, where)
    question = next((said(turn["content"]) for turn in reversed(reading.prompt) if turn["role"] == "user"), "")
    added: dict[str, Any] = {"problem": without_tags(question) if isinstance(question, str) else question}
    if reading.answer is not None:
        added["solution"] = f"<answer> {reading.answer} </answer>"
    return replace(reading, added={key: value for key, value in added.items() if row.get(key) is None})
