"""Samples of several sources as one sequence: source after source, each read in its own form and folder.

Which row comes when, and how often each source is drawn, is the sampler's business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import overload

from mmgrpo.data.samples import Samples
from mmgrpo.errors import DatasetError, explain
from mmgrpo.types import Sample


class MixedSamples(Sequence[Sample]):
    """Several sources behind one another; ids carry the number of their source, so that they stay unique."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        """Join ``parts``; every sample has the columns of all of them, with None where its source has none.

        Raises:
            DatasetError: There is no part.
        """
        if not parts:
            raise DatasetError(explain("The mixture has no sources", where="data.train.mixture"))
        self.parts = tuple(parts)
        self.sizes = tuple(len(part) for part in parts)
        self._starts = [0, *accumulate(self.sizes)]
        self._columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))

    @property
    def name(self) -> str:
        """What messages call the mixture."""
        return " + ".join(part.name for part in self.parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that rewards may ask for."""
        return self._columns

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        """Make one sample, or a list of samples for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number, inner = self._find(index)
        sample = self.parts[number][inner]
        return replace(sample, id=f"{number}:{sample.id}", extras={**dict.fromkeys(self._columns), **sample.extras})

    def where(self, index: int) -> str:
        """Say where sample ``index`` came from, for messages."""
        number, inner = self._find(index)
        return self.parts[number].where(inner)

    def checkable(self) -> Sequence[int]:
        """List the samples whose media come from files: those made in code cannot be damaged."""
        return [start + i for start, part in zip(self._starts, self.parts, strict=False) for i in part.checkable()]

    def forms(self) -> dict[str, str]:
        """Name the form of each source."""
        return {name: form for part in self.parts for name, form in part.forms().items()}

    def column(self, name: str) -> list[object]:
        """Read one column of all rows, in order.

        Args:
            name: The column; rows of a source without it have None.
        """
        return [value for part in self.parts for value in part.column(name)]

    def fingerprint(self) -> str:
        """Hash the number of rows of each source and what some of them hold."""
        return " ".join(part.fingerprint() for part in self.parts)

    def _find(self, index: int) -> tuple[int, int]:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self._starts, position) - 1
        return number, position - self._starts[number]


AnySamples = Samples | MixedSamples
"""One source, or several."""
