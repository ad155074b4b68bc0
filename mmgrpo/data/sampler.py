"""Which row comes when: once an epoch, easy ones first, passed over while they teach nothing, or mixed by weights.

Every sampler can say where it stands (a cursor) and move back there, so that a run resumes at any draw, and so that
draws made ahead can be taken back. What it learned on the way is a memory of its own. Knows row numbers only; one
column is read where a curriculum needs it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mmgrpo.config.data import Data, Mixture
from mmgrpo.data.mixture import AnySamples, MixedSamples
from mmgrpo.errors import DatasetError, explain

_WORD = 2**32


class RowOrder:
    """Every row once an epoch, in an order of its own for each epoch.

    Example:
        >>> order = RowOrder(3, seed=0, shuffle=False)
        >>> [order.row(position) for position in range(5)]
        [0, 1, 2, 0, 1]
    """

    def __init__(self, num_rows: int, *, seed: int = 0, shuffle: bool = True, rows_per_block: int = 1) -> None:
        """Order ``num_rows`` rows.

        Args:
            num_rows: At least one.
            seed: Which orders.
            shuffle: False keeps the source's order in every epoch.
            rows_per_block: So many rows behind one another stay together; a divisor of ``num_rows``.
        """
        self.num_rows = num_rows
        self._seed, self._shuffle, self._block = seed, shuffle, rows_per_block
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def row(self, position: int) -> int:
        """Give the row at a position of the endless run.

        Args:
            position: How many rows came before, from 0; ``position // num_rows`` is the epoch.

        Returns:
            A row number; the same for the same seed, number of rows and position, in every version of numpy.
        """
        epoch, step = divmod(position, self.num_rows)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.permutation(epoch)
        return int(self._order[step])

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """Give the whole order of one epoch.

        Args:
            epoch: From 0.
        """
        if not self._shuffle:
            return np.arange(self.num_rows)
        # RandomState's streams are frozen for ever, those of newer generators are not.
        state = np.random.RandomState([self._seed % _WORD, self._seed // _WORD % _WORD, epoch % _WORD])
        first = state.permutation(self.num_rows // self._block) * self._block
        return (first[:, None] + np.arange(self._block)).reshape(-1)


class EasyFirst(RowOrder):
    """Rows by difficulty in the first epochs, rows of equal difficulty in a seeded order; later shuffled.

    Example:
        >>> order = EasyFirst([3.0, 1.0, 2.0], epochs=1)
        >>> [order.row(position) for position in range(3)]
        [1, 2, 0]
    """

    def __init__(
        self,
        difficulty: Sequence[float],
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        rows_per_block: int = 1,
    ) -> None:
        """Order one row for each entry of ``difficulty``.

        Args:
            difficulty: Grows with difficulty.
            epochs: So many epochs go from easy to hard.
            seed: Order among equals, and of later epochs.
            shuffle: As for :class:`RowOrder`.
            rows_per_block: As for :class:`RowOrder`; such rows are equally difficult.
        """
        super().__init__(len(difficulty), seed=seed, shuffle=shuffle, rows_per_block=rows_per_block)
        self._difficulty, self._epochs = np.asarray(difficulty, dtype=np.float64), epochs

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """Give the whole order of one epoch.

        Args:
            epoch: From 0.
        """
        shuffled = super().permutation(epoch)
        if epoch >= self._epochs:
            return shuffled
        return shuffled[np.argsort(self._difficulty[shuffled], kind="stable")]


class SampleIndex(NamedTuple):
    """One draw."""

    row: int
    """Row number."""
    epoch: int
    """Which pass over the rows of its source this is."""


class Feedback(NamedTuple):
    """What a drawn row was worth."""

    row: int
    epoch: int
    reward: float
    """Mean total reward of its completions."""


class Sampler(Protocol):
    """An endless sequence of rows."""

    num_rows: int
    learns: bool
    """Whether :meth:`learn` changes what comes."""

    def draw(self) -> SampleIndex:
        """Give the next row."""
        ...

    def cursor(self) -> Any:
        """Say where the draws stand, in plain numbers and lists."""
        ...

    def move(self, cursor: Any) -> None:
        """Go back (or on) to where they stood."""
        ...

    def learn(self, results: Iterable[Feedback]) -> None:
        """Take note of what rows were worth; later draws may change."""
        ...

    def memory(self) -> Any:
        """Give what was learned, in plain numbers and lists; None where nothing ever is."""
        ...

    def load_memory(self, memory: Any) -> None:
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

    def draw(self) -> SampleIndex:
        """Give the next row."""
        row, epoch = self._order.row(self._position), self._position // self.num_rows
        self._position += 1
        return SampleIndex(row, epoch)

    def cursor(self) -> int:
        """Say how many rows were drawn."""
        return self._position

    def move(self, cursor: Any) -> None:
        """Go to where so many rows were drawn."""
        self._position = int(cursor)

    def learn(self, results: Iterable[Feedback]) -> None:
        """Learn nothing."""

    def memory(self) -> None:
        """Give None: nothing is learned."""

    def load_memory(self, memory: Any) -> None:
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

    def draw(self) -> SampleIndex:
        """Give the next row that may teach something."""
        for ahead in range(self.num_rows):
            drawn = self._at(self._position + ahead)
            if not self._is_idle(drawn):
                self._position += ahead + 1
                return drawn
        drawn = self._at(self._position)
        self._position += 1
        return drawn

    def _at(self, position: int) -> SampleIndex:
        return SampleIndex(self._order.row(position), position // self.num_rows)

    def _is_idle(self, drawn: SampleIndex) -> bool:
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

    def learn(self, results: Iterable[Feedback]) -> None:
        """Note the last mean reward of each row."""
        for result in results:
            if 0 <= result.row < self.num_rows:
                self._known[result.row] = (result.epoch, result.reward)

    def memory(self) -> list[list[float]]:
        """Give row, epoch and reward of each row that was tried."""
        return [[row, epoch, reward] for row, (epoch, reward) in self._known.items()]

    def load_memory(self, memory: Any) -> None:
        """Take over what was known."""
        self._known = {int(row): (int(epoch), float(reward)) for row, epoch, reward in memory or ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureWeights:
    """How often each source is drawn."""

    start: tuple[float, ...]
    """At the first draw."""
    end: tuple[float, ...]
    """After ``over`` draws, and from then on."""
    over: int = 0
    """Sampler over which weights move in a straight line; 0: they do not."""

    def at(self, count: int) -> list[float]:
        """Give the shares after ``count`` draws; they add up to 1.

        Example:
            >>> MixtureWeights(start=(1, 0), end=(0, 1), over=4).at(1)
            [0.75, 0.25]
        """
        done = min(1.0, count / self.over) if self.over else 0.0
        now = [(1 - done) * a + done * b for a, b in zip(self.start, self.end, strict=True)]
        return [weight / sum(now) for weight in now]


class MixedSampler:
    """Sampler of several sources, each with an order and epochs of its own."""

    def __init__(self, sources: Sequence[Sampler], weights: MixtureWeights, *, seed: int = 0) -> None:
        """Put the rows of ``sources`` behind one another, and draw each source by its weight."""
        self.num_rows = sum(source.num_rows for source in sources)
        self.learns = any(source.learns for source in sources)
        self._sources, self._weights, self._seed = sources, weights, seed
        self._starts = [0, *accumulate(source.num_rows for source in sources)]
        self._count = 0

    def draw(self) -> SampleIndex:
        """Draw a source, and its next row."""
        number = self._choose()
        self._count += 1
        drawn = self._sources[number].draw()
        return SampleIndex(self._starts[number] + drawn.row, drawn.epoch)

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

    def learn(self, results: Iterable[Feedback]) -> None:
        """Tell each source what its rows were worth."""
        of_source: dict[int, list[Feedback]] = {}
        for result in results:
            number = bisect_right(self._starts, result.row) - 1
            if 0 <= number < len(self._sources):
                inner = Feedback(result.row - self._starts[number], result.epoch, result.reward)
                of_source.setdefault(number, []).append(inner)
        for number, inner in of_source.items():
            self._sources[number].learn(inner)

    def memory(self) -> list[Any] | None:
        """Give the memory of each source."""
        return [source.memory() for source in self._sources] if self.learns else None

    def load_memory(self, memory: Any) -> None:
        """Hand each source its memory."""
        for source, one in zip(self._sources, memory or (), strict=False):
            source.load_memory(one)


def open_sampler(samples: AnySamples, data: Data, *, prompts_per_step: int = 1) -> Sampler:
    """Order the rows of a run.

    Args:
        samples: The rows to train on.
        data: Curriculum, weights, seed and shuffling.
        prompts_per_step: Of all processes together; weights that move do so over steps.

    Returns:
        Endless draws.

    Raises:
        DatasetError: A row has no number in the column of difficulty.
    """
    source = data.train
    if not isinstance(source, Mixture) or not isinstance(samples, MixedSamples) or source.mixture[0].weight is None:
        return _sampler_of(samples, data, seed=data.seed)
    start = tuple(part.weight or 0.0 for part in source.mixture)
    end = tuple((part.weight if part.end_weight is None else part.end_weight) or 0.0 for part in source.mixture)
    weights = MixtureWeights(start=start, end=end, over=(source.over_steps or 0) * prompts_per_step)
    inner = [_sampler_of(part, data, seed=data.seed + number) for number, part in enumerate(samples.parts)]
    return MixedSampler(inner, weights, seed=data.seed)


def _sampler_of(samples: AnySamples, data: Data, *, seed: int) -> Sampler:
    plan, rows_per_block = data.curriculum, rows_per_block_of(samples)
    if plan.kind == "easy_first" and plan.column is not None:
        difficulty = _numbers(samples, plan.column)
        return InOrder(
            EasyFirst(difficulty, epochs=plan.epochs, seed=seed, shuffle=data.shuffle, rows_per_block=rows_per_block)
        )
    order = RowOrder(len(samples), seed=seed, shuffle=data.shuffle, rows_per_block=rows_per_block)
    if plan.kind == "by_pass_rate":
        return ByPassRate(order, low=plan.low, high=plan.high, revisit_epochs=plan.revisit_epochs)
    return InOrder(order)


def rows_per_block_of(samples: AnySamples) -> int:
    """Tell how many rows behind one another stay together: 2 where rows are shuffled pairs.

    Args:
        samples: Where rows come from.
    """
    parts = samples.parts if isinstance(samples, MixedSamples) else (samples,)
    return min(part.rows.rows_per_block for part in parts)


def _numbers(samples: AnySamples, column: str) -> Sequence[float]:
    return [_number(value, samples, row, column) for row, value in enumerate(samples.column(column))]


def _number(value: Any, samples: AnySamples, row: int, column: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise DatasetError(
            explain(
                "A row has no difficulty",
                where=f"{samples.where(row)}, column {column}",
                expected="a number",
                got=repr(value)[:100],
                fix="Fill the column, or name another one as data.curriculum.column.",
            )
        )
    return number
