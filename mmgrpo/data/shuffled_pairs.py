"""Rows of videos that come twice: with their frames in order, and with the same frames shuffled.

What T-GRPO compares (Video-R1, arXiv:2503.21776, section 3.1): a policy that does no better with frames in order does
not look at time. The two stand behind one another, so that an order of rows can keep them in one step.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mmgrpo.data.rows import Row, Rows
from mmgrpo.types import Sample

PAIR, SHUFFLED = "pair", "shuffled"
"""Columns that twins have: an id that both share, and whether this one's frames are shuffled."""


class ShuffledPairRows(Rows):
    """Each row of a source twice; the second time it is to be shown with its frames shuffled."""

    def __init__(self, rows: Rows) -> None:
        """Double ``rows``."""
        self._rows = rows
        self.name, self.base, self.confined, self.generated = rows.name, rows.base, rows.confined, rows.generated
        self.format, self.rows_per_block = rows.format, 2
        self.columns = tuple(dict.fromkeys((*rows.columns, PAIR, SHUFFLED)))

    def __len__(self) -> int:
        return 2 * len(self._rows)

    def read(self, index: int) -> Row:
        """Read the row, and say which of the two it is."""
        row, second = divmod(index, 2)
        return {**self._rows.read(row), PAIR: self._rows.id(row), SHUFFLED: bool(second)}

    def where(self, index: int) -> str:
        """Say where the row came from."""
        return f"{self._rows.where(index // 2)}{' (frames shuffled)' if index % 2 else ''}"

    def id(self, index: int) -> str:
        """Keep the id that the row has in its own source; that of its twin ends in ``-shuffled``."""
        return f"{self._rows.id(index // 2)}{'-shuffled' if index % 2 else ''}"


def as_shuffled_pair(sample: Sample) -> Sample:
    """Have the frames of a twin's videos shuffled when they are read.

    Args:
        sample: Of a row of :class:`ShuffledPairRows`.

    Returns:
        The sample; of a row without a video both are the same, and belong to no pair.
    """
    if not any(item.kind == "video" for item in sample.media):
        return replace(sample, extras={**sample.extras, PAIR: None, SHUFFLED: False})
    if not sample.extras[SHUFFLED]:
        return sample
    media = tuple(
        replace(item, source=_shuffled(item.source, f"{sample.extras[PAIR]} {number}"))
        if item.kind == "video"
        else item
        for number, item in enumerate(sample.media)
    )
    name = sample.id if sample.id.endswith("-shuffled") else f"{sample.id}-shuffled"
    return replace(sample, id=name, media=media)


def _shuffled(source: Any, seed: str) -> Mapping[str, Any]:
    return {"video": source, "shuffled": zlib.crc32(seed.encode("utf-8", "surrogatepass"))}
