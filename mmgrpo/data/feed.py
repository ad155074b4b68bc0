"""An endless, resumable source of prompts: the next rows in order, each turned into a prompt.

Gets the function that makes a prompt as an argument and knows no processor. A row that is left out takes its answer
with it: nothing shifts. With threads, the prompts of the next call are made while the caller works; which prompts
come, their order and their errors are the same as without.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mmgrpo.data.curricula import Drawn, Draws, InOrder, Result
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.row_errors import SkippedRow, SkippedRows, with_row
from mmgrpo.data.sampler import RowOrder
from mmgrpo.errors import DatasetError, MediaError, MmgrpoError, ProcessorError, explain
from mmgrpo.types import Prompt, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which of the draws are this process's, and how they are made into prompts."""

    rank: int = 0
    """Number of this process; it takes every ``world``-th draw."""
    world: int = 1
    """Processes that share the draws."""
    together: int = 1
    """So many draws behind one another go to one process: rows that rewards compare with each other."""
    threads: int = 0
    """Threads that make the prompts of the next call ahead; 0: each is made when it is asked for."""
    gather: Callable[[Any], list[Any]] = lambda value: [value]
    """Gives a value of each process."""


@dataclass(slots=True, kw_only=True)
class _Draw:
    """One draw of this process, and where the draws stand behind it."""

    row: int
    occurrence: int
    position: int
    cursor: Any
    work: Future[Prompt] | None = None


class PromptFeed:
    """Hands out prompts in a seeded order (``contracts.Feed``)."""

    def __init__(
        self,
        samples: AnySamples,
        encode: Callable[[Sample, int], Prompt],
        *,
        order: Draws | None = None,
        seed: int = 0,
        shuffle: bool = True,
        leave_out: Sequence[type[MmgrpoError]] = (),
        left_out: Iterable[int] = (),
        share: Share | None = None,
    ) -> None:
        """Start at the first position.

        Args:
            samples: Where rows come from.
            encode: Makes a prompt of a sample and its occurrence; called from several threads where there are any.
            order: Which rows come; default: each once an epoch.
            seed: Order of the rows, where no ``order`` is given.
            shuffle: A new order each epoch; False keeps the source's.
            leave_out: Errors (MediaError, PromptTooLong) whose row is left out and warned of; others are raised.
            left_out: Rows found unusable before; the same in every process.
            share: Which draws are taken here; default: all, without threads.
        """
        self._samples, self._encode = samples, encode
        self._order = order or InOrder(RowOrder(len(samples), seed=seed, shuffle=shuffle))
        self._leave_out = tuple(leave_out)
        self._left_out, self._found = frozenset(left_out), set[int]()
        self._skipped = left_out if isinstance(left_out, SkippedRows) else SkippedRows(source="", total=0)
        self._skipped.source, self._skipped.total = samples.name, len(samples)
        self._new_skipped: list[SkippedRow] = []
        self._share = share or Share()
        self._fingerprint = samples.fingerprint()
        self._position, self._drawn = 0, 0
        self._cursor = self._order.cursor()
        self._queue: deque[_Draw] = deque()
        self._late: deque[_Draw] = deque()
        self._waiting: dict[int, Drawn] = {}
        self._results: list[Result] = []
        self._pool: ThreadPoolExecutor | None = None

    @property
    def left_out(self) -> frozenset[int]:
        """Rows that are left out because they cannot be used."""
        return self._left_out | self._found

    def take(self, count: int) -> list[Prompt]:
        """Hand out the next ``count`` prompts.

        Args:
            count: How many.

        Returns:
            Prompts whose ``occurrence`` is their position in the run.

        Raises:
            MediaError: A medium cannot be read; the message names the row, as do the two below.
            DatasetError: A row is malformed, or no row is left.
            ProcessorError: A prompt cannot be made.
        """
        prompts: list[Prompt] = []
        missed = 0
        self._fill(count)
        while len(prompts) < count:
            if not self._late and not self._queue:
                self._deal()
            line = self._late or self._queue
            prompt = self._prompt(line[0])  # where this raises, the draw stays first
            draw = line.popleft()
            if line is self._queue:
                self._position, self._cursor = draw.position, draw.cursor
                while self._queue and self._queue[0].position == draw.position:  # dealt together
                    self._late.append(self._queue.popleft())
            missed = 0 if prompt is not None else missed + 1
            if prompt is not None:
                prompts.append(prompt)
            elif missed >= self._order.num_rows:
                raise self._nothing_left()
        self._catch_up()
        self._settle()
        self._fill(count)
        return prompts

    def note(self, occurrences: Sequence[int], rewards: Sequence[float]) -> None:
        """Say what prompts were worth; a curriculum that learns passes over rows that teach nothing.

        What is noted before one call of :meth:`take` counts from the call after it, with threads or without.

        Args:
            occurrences: Of the prompts, from any process; those of other runs are ignored.
            rewards: Mean total reward of each prompt's completions; NaN where no reward applies.
        """
        for occurrence, reward in zip(occurrences, rewards, strict=True):
            drawn = self._waiting.pop(occurrence, None)
            if drawn is not None and math.isfinite(reward):
                self._results.append(Result(drawn.row, drawn.epoch, float(reward)))

    def state(self) -> Mapping[str, Any]:
        """Say where consumption stands, whatever was made ahead; all processes ask at once."""
        return {
            "position": self._position,
            "num_rows": self._order.num_rows,
            "rows": self._fingerprint,
            "cursor": self._cursor,
            "memory": self._order.memory(),
            "results": [list(result) for result in self._results],
            "late": sorted(late for part in self._share.gather(self._drawn_late()) for late in part),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood, with any number of processes and threads.

        Args:
            state: What :meth:`state` returned.

        Raises:
            DatasetError: The state is that of another mixture of sources.
        """
        if state.get("num_rows", self._order.num_rows) != self._order.num_rows:
            warnings.warn(
                f"The data had {state['num_rows']} rows when the run was saved and have {self._order.num_rows} now: "
                "rows seen before may come again in this epoch.",
                stacklevel=2,
            )
        elif state.get("rows", self._fingerprint) != self._fingerprint:
            warnings.warn(
                f"The {self._order.num_rows} rows of {self._samples.name} are others than when the run was saved, or "
                "in another order: rows seen before may come again in this epoch.",
                stacklevel=2,
            )
        self._position = int(state["position"])
        self._cursor = state.get("cursor", self._position)
        self._order.remember(state.get("memory"))
        self._results = [Result(*result) for result in state.get("results", ())]
        late = state.get("late", ())[self._share.rank :: self._share.world]
        self._late = deque(_Draw(row=row, occurrence=occurrence, position=0, cursor=None) for occurrence, row in late)
        self._rewind()

    def close(self) -> None:
        """Stop making prompts ahead."""
        self._rewind()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _deal(self) -> list[_Draw]:
        """Draw for each process, and queue what is this process's; the draws of one deal end at one place."""
        each = self._share.together if self._share.world > 1 else 1
        mine: list[_Draw] = []
        for turn in range(self._share.world * each):
            drawn = self._next()
            if self._order.learns:
                self._waiting[self._drawn - 1] = drawn
            if turn // each == self._share.rank:
                mine.append(_Draw(row=drawn.row, occurrence=self._drawn - 1, position=0, cursor=None))
        for draw in mine:
            draw.position, draw.cursor = self._drawn, self._order.cursor()
        self._queue += mine
        return mine

    def _next(self) -> Drawn:
        """Draw the next row that is not left out in any process."""
        for _ in range(2 * self._order.num_rows):
            drawn = self._order.draw()
            self._drawn += 1
            if drawn.row not in self._left_out:
                return drawn
        raise self._nothing_left()

    def _fill(self, count: int) -> None:
        """Have ``count`` prompts made ahead."""
        if not self._share.threads:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._share.threads, thread_name_prefix="mmgrpo-prompts")
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        while len(self._queue) < count and len(self._left_out) < self._order.num_rows:
            for draw in self._deal():
                if draw.row not in self._found:
                    draw.work = self._pool.submit(_make, self._samples, self._encode, draw.row, draw.occurrence)

    def _catch_up(self) -> None:
        """Go to where the process stands that left out most rows, so that all draw on from one place.

        What was drawn for this one on the way comes first in the next call.
        """
        gathered = self._share.gather((self._position, self._new_skipped))
        self._tell_skipped([row for _, rows in gathered for row in rows])
        front = max(position for position, _ in gathered)
        while self._position < front:
            if not self._queue:
                self._deal()
            draw = self._queue.popleft()
            self._late.append(draw)
            self._position, self._cursor = draw.position, draw.cursor

    def _drawn_late(self) -> list[tuple[int, int]]:
        return [(draw.occurrence, draw.row) for draw in self._late]

    def _settle(self) -> None:
        """Learn from what was noted; what was drawn ahead without knowing it is taken back."""
        if not self._results:
            return
        self._order.learn(self._results)
        self._results = []
        if self._queue:
            self._rewind()

    def _rewind(self) -> None:
        """Take back what was drawn ahead."""
        for draw in self._queue:
            if draw.work is not None:
                draw.work.cancel()
        self._queue.clear()
        self._waiting = {o: drawn for o, drawn in self._waiting.items() if o < self._position}
        self._drawn = self._position
        self._order.move(self._cursor)

    def _prompt(self, draw: _Draw) -> Prompt | None:
        if draw.row in self._found:
            return None
        try:
            if draw.work is not None:
                return draw.work.result()
            return _make(self._samples, self._encode, draw.row, draw.occurrence)
        except (MediaError, ProcessorError) as error:
            message = with_row(str(error), self._samples.where(draw.row))
            if not isinstance(error, self._leave_out):
                raise type(error)(message) from error
            self._found.add(draw.row)
            self._new_skipped.append(SkippedRow(draw.row, self._samples.where(draw.row), message))
            return None

    def _tell_skipped(self, rows: Sequence[SkippedRow]) -> None:
        """Note rows that any process left out, and tell of them once."""
        for skipped in rows:
            self._skipped.add(*skipped)
        self._new_skipped = []
        if self._share.rank == 0:
            self._skipped.tell()

    def _nothing_left(self) -> DatasetError:
        self._tell_skipped(self._new_skipped)
        return DatasetError(explain("No row is left that can be used", where=self._samples.name))


def _make(samples: AnySamples, encode: Callable[[Sample, int], Prompt], row: int, occurrence: int) -> Prompt:
    return encode(samples[row], occurrence)
