"""R1-V and open-r1-multimodal: ``image``, ``problem``, ``solution`` (``"<answer> 3 </answer>"``).

Their evaluation files have ``image_path``, ``question`` and ``ground_truth`` instead.
"""

from __future__ import annotations

from collections.abc import Collection

from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.reading import Reading, answer_of, media_of, prompt_of
from mmgrpo.data.formats.tags import tags_match
from mmgrpo.data.lazy import Row

PROMPTS = ("problem", "question")
ANSWERS = ("solution", "ground_truth")
MEDIA = ("image_path",)


def fits(have: Collection[str]) -> bool:
    """Tell the form by its columns."""
    return {"problem", "solution"} <= set(have) or {"image_path", "question", "ground_truth"} <= set(have)


def read(row: Row, columns: Columns, where: str) -> Reading:
    """Read one row.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.

    Raises:
        DatasetError: Two columns of one kind of media are filled.
    """
    if columns.image == AUTO and "image_path" in row and not {"image", "images"} & set(row):
        columns = columns.model_copy(update={"image": "image_path"})
    media, taken = media_of(row, columns, where)
    prompt = prompt_of(row, columns, PROMPTS)
    return Reading(
        prompt=prompt,
        media=media,
        answer=answer_of(row, columns, ANSWERS),
        tags=tags_match(prompt, media),
        media_columns=taken,
    )
