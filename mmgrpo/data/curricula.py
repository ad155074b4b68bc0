"""Endless draws of rows: each row once an epoch, easy ones first, passed over while they teach nothing, or mixed.

Every kind of draws can say where it stands (a cursor) and move back there, so that a run resumes at any draw, and so
that draws made ahead can be taken back. What was learned on the way is a memory of its own. Knows row numbers only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from mmgrpo.data.sampler import RowOrder
from mmgrpo.errors import DatasetError, explain

_WORD = 2**32


class Drawn(NamedTuple):
    """One draw."""

    row: int
    """Row number."""
    epoch: int
    """Which pass over the rows of its source this is."""


class Result(NamedTuple):
    """What a drawn row was worth."""

    row: int
    epoch: int
    reward: float
    """Mean total reward of its completions."""


class Draws(Protocol):
    """An endless sequence of rows."""

    num_rows: int
    learns: bool
    """Whether :meth:`learn` changes what comes."""

    def draw(self) -> Drawn:
        """Give the next row."""
        ...

    def cursor(self) -> Any:
        """Say where the draws stand, in plain numbers and lists."""
        ...

    def move(self, cursor: Any) -> None:
        """Go back (or on) to where they stood."""
        ...

    def learn(self, results: Iterable[Result]) -> None:
        """Take note of what rows were worth; later draws may change."""
        ...

    def memory(self) -> Any:
        """Give what was learned, in plain numbers and lists; None where nothing ever is."""
        ...

    def remember(self, memory: Any) -> None:
        """Take over what :meth:`memory` gave."""
        ...


class InOrder:
    """Rows in the order of a :class:`RowOrder`.

    Example:
        >>> draws = InOrder(RowOrder(2, shuffle=False))
        >>> [draws.draw().row for _ in range(3)]
        [0, 1, 0]
    """

    learns = False

    def __init__(self, order: RowOrder) -> None:
        self.num_rows = order.num_rows
        self._order, self._position = order, 0

    def draw(self) -> Drawn:
        """Give the next row."""
        row, epoch = self._order.row(self._position), self._position // self.num_rows
        self._position += 1
        return Drawn(row, epoch)

    def cursor(self) -> int:
        """Say how many rows were drawn."""
        return self._position

    def move(self, cursor: Any) -> None:
        """Go to where so many rows were drawn."""
        self._position = int(cursor)

    def learn(self, results: Iterable[Result]) -> None:
        """Learn nothing."""

    def memory(self) -> None:
        """Give None: nothing is learned."""

    def remember(self, memory: Any) -> None:
        """Take over nothing."""


class ByPassRate:
    """Rows in order, but for those that were always right or always wrong when they were last tried.

    A row whose mean reward was at most ``low`` or at least ``high`` in epoch e is passed over in the epochs e + 1 to
    e + ``revisit_epochs``, and then tried again. Where that would pass over everything, nothing is.
    """

    learns = True

    def __init__(self, order: RowOrder, *, low: float = 0.0, high: float = 1.0, revisit_epochs: int = 2) -> None:
        """Know nothing of any row yet."""
        self.num_rows = order.num_rows
        self._order, self._position = order, 0
        self._low, self._high, self._revisit = low, high, revisit_epochs
        self._known: dict[int, tuple[int, float]] = {}

    def draw(self) -> Drawn:
        """Give the next row that may teach something."""
        for ahead in range(self.num_rows):
            drawn = self._at(self._position + ahead)
            if not self._is_idle(drawn):
                self._position += ahead + 1
                return drawn
        drawn = self._at(self._position)
        self._position += 1
        return drawn

    def _at(self, position: int) -> Drawn:
        return Drawn(self._order.row(position), position // self.num_rows)

    def _is_idle(self, drawn: Drawn) -> bool:
        known = self._known.get(drawn.row)
        if known is None or drawn.epoch - known[0] > self._revisit:
            return False
        return not self._low < known[1] < self._high

    def cursor(self) -> int:
        """Say how many rows were drawn or passed over."""
        return self._position

    def move(self, cursor: Any) -> None:
        """Go to where so many rows were drawn or passed over."""
        self._position = int(cursor)

    def learn(self, results: Iterable[Result]) -> None:
        """Note the last mean reward of each row."""
        for result in results:
            if 0 <= result.row < self.num_rows:
                self._known[result.row] = (result.epoch, result.reward)

    def memory(self) -> list[list[float]]:
        """Give row, epoch and reward of each row that was tried."""
        return [[row, epoch, reward] for row, (epoch, reward) in self._known.items()]

    def remember(self, memory: Any) -> None:
        """Take over what was known."""
        self._known = {int(row): (int(epoch), float(reward)) for row, epoch, reward in memory or ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How often each source is drawn."""

    start: tuple[float, ...]
    """At the first draw."""
    end: tuple[float, ...]
    """After ``over`` draws, and from then on."""
    over: int = 0
    """Draws over which weights move in a straight line; 0: they do not."""

    def at(self, count: int) -> list[float]:
        """Give the shares after ``count`` draws; they add up to 1.

        Example:
            >>> Weights(start=(1, 0), end=(0, 1), over=4).at(1)
            [0.75, 0.25]
        """
        done = min(1.0, count / self.over) if self.over else 0.0
        now = [(1 - done) * a + done * b for a, b in zip(self.start, self.end, strict=True)]
        return [weight / sum(now) for weight in now]


class Mixed:
    """Draws of several sources, each with an order and epochs of its own."""

    def __init__(self, sources: Sequence[Draws], weights: Weights, *, seed: int = 0) -> None:
        """Put the rows of ``sources`` behind one another, and draw each source by its weight."""
        self.num_rows = sum(source.num_rows for source in sources)
        self.learns = any(source.learns for source in sources)
        self._sources, self._weights, self._seed = sources, weights, seed
        self._starts = [0, *accumulate(source.num_rows for source in sources)]
        self._count = 0

    def draw(self) -> Drawn:
        """Draw a source, and its next row."""
        number = self._choose()
        self._count += 1
        drawn = self._sources[number].draw()
        return Drawn(self._starts[number] + drawn.row, drawn.epoch)

    def _choose(self) -> int:
        state = np.random.RandomState([self._seed % _WORD, self._count % _WORD, self._count // _WORD % _WORD, 1])
        edges = list(accumulate(self._weights.at(self._count)))
        number = bisect_right(edges, state.random_sample() * edges[-1])
        return min(number, len(edges) - 1)

    def cursor(self) -> list[Any]:
        """Say how many rows were drawn, and where each source stands."""
        return [self._count, [source.cursor() for source in self._sources]]

    def move(self, cursor: Any) -> None:
        """Go to where the sources stood.

        Raises:
            DatasetError: There were other sources.
        """
        count, inner = cursor if isinstance(cursor, list) else (cursor, [])
        if len(inner) != len(self._sources):
            raise DatasetError(
                explain(
                    "The mixture has other sources than when the run was saved",
                    where="data.train.mixture",
                    expected=f"{len(inner)} sources",
                    got=f"{len(self._sources)}",
                    fix="Give the sources of then, or start a new run.",
                )
            )
        self._count = int(count)
        for source, one in zip(self._sources, inner, strict=True):
            source.move(one)

    def learn(self, results: Iterable[Result]) -> None:
        """Tell each source what its rows were worth."""
        of_source: dict[int, list[Result]] = {}
        for result in results:
            number = bisect_right(self._starts, result.row) - 1
            if 0 <= number < len(self._sources):
                inner = Result(result.row - self._starts[number], result.epoch, result.reward)
                of_source.setdefault(number, []).append(inner)
        for number, inner in of_source.items():
            self._sources[number].learn(inner)

    def memory(self) -> list[Any] | None:
        """Give the memory of each source."""
        return [source.memory() for source in self._sources] if self.learns else None

    def remember(self, memory: Any) -> None:
        """Hand each source its memory."""
        for source, one in zip(self._sources, memory or (), strict=False):
            source.remember(one)
