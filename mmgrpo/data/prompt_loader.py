"""An endless, resumable source of prompts: the next rows in order, each turned into a prompt.

Gets the function that builds a prompt as an argument and knows no processor. A row that is skipped takes its answer
with it: nothing shifts. With threads, the prompts of the next call are built while the caller works; which prompts
come, their order and their errors are the same as without.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.row_errors import SkippedRow, SkippedRows, with_row
from mmgrpo.data.sampler import Feedback, InOrder, RowOrder, SampleIndex, Sampler
from mmgrpo.errors import DatasetError, MediaError, MmgrpoError, ProcessorError, explain
from mmgrpo.types import Prompt, Sample

BuildPrompt = Callable[[Sample, int], Prompt]
"""Turns a sample and its draw index into a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShard:
    """Which rows, or draws of rows, are this rank's."""

    rank: int = 0
    """From 0."""
    world_size: int = 1
    """Ranks that share the rows; each takes every ``world_size``-th block."""
    rows_per_block: int = 1
    """So many draws in a row go to one rank: rows that rewards compare with each other."""
    all_gather: Callable[[Any], list[Any]] = lambda value: [value]
    """Gives the value that each rank holds, in the order of ranks."""


@dataclass(slots=True, kw_only=True)
class _Draw:
    """One draw of this rank, and where the sampler stands behind it."""

    row: int
    draw_index: int
    position: int
    cursor: Any
    prompt: Future[Prompt] | None = None


class PromptLoader:
    """Hands out prompts in the order of a sampler (``contracts.PromptSource``).

    The loop takes prompts, and says what they were worth (:meth:`apply_feedback`); a checkpoint holds :meth:`state`.
    """

    def __init__(
        self,
        samples: AnySamples,
        build_prompt: BuildPrompt,
        *,
        sampler: Sampler | None = None,
        skip_errors: Sequence[type[MmgrpoError]] = (),
        skip_rows: Iterable[int] = (),
        shard: DataShard | None = None,
        threads: int = 0,
    ) -> None:
        """Start at the first position.

        Args:
            samples: Where rows come from.
            build_prompt: Makes a prompt of a sample and its draw index; called from ``threads`` threads at once.
            sampler: Which rows come; default: each once an epoch, shuffled with seed 0.
            skip_errors: Errors (MediaError, PromptTooLong) whose row is skipped with a warning; others are raised.
            skip_rows: Rows that cannot be used, as known before; the same on every rank. Given as SkippedRows,
                it takes up those that are skipped here.
            shard: Which draws are this rank's; default: all.
            threads: Build the prompts of the next call ahead; 0: each is built when it is asked for.
        """
        self._samples, self._build_prompt = samples, build_prompt
        self._sampler = sampler or InOrder(RowOrder(len(samples)))
        self._skip_errors = tuple(skip_errors)
        self._skip_rows, self._unusable = frozenset(skip_rows), set[int]()
        self._skipped = skip_rows if isinstance(skip_rows, SkippedRows) else SkippedRows(source="", total=0)
        self._skipped.source, self._skipped.total = samples.name, len(samples)
        self._new_skipped: list[SkippedRow] = []
        self._shard, self._threads = shard or DataShard(), threads
        self._fingerprint = samples.fingerprint()
        self._position, self._drawn = 0, 0
        self._cursor = self._sampler.cursor()
        self._queue: deque[_Draw] = deque()
        self._deferred: deque[_Draw] = deque()
        self._unscored: dict[int, SampleIndex] = {}
        self._feedback: list[Feedback] = []
        self._pool: ThreadPoolExecutor | None = None

    @property
    def skipped_rows(self) -> frozenset[int]:
        """Rows that are skipped because they cannot be used."""
        return self._skip_rows | self._unusable

    def take(self, count: int) -> list[Prompt]:
        """Hand out the next ``count`` prompts of this rank.

        Args:
            count: How many.

        Returns:
            Prompts whose ``draw_index`` is their position in the run.

        Raises:
            MediaError: A media item cannot be read; the message names the row, as do the two below.
            DatasetError: A row is malformed, or no row is left.
            ProcessorError: A prompt cannot be built.
        """
        prompts: list[Prompt] = []
        failures = 0
        self._prefetch(count)
        while len(prompts) < count:
            if not self._deferred and not self._queue:
                self._draw_block()
            line = self._deferred or self._queue
            prompt = self._prompt_of(line[0])  # where this raises, the draw stays first
            draw = line.popleft()
            if line is self._queue:
                self._position, self._cursor = draw.position, draw.cursor
                while self._queue and self._queue[0].position == draw.position:  # of the same block
                    self._deferred.append(self._queue.popleft())
            failures = 0 if prompt is not None else failures + 1
            if prompt is not None:
                prompts.append(prompt)
            elif failures >= self._sampler.num_rows:
                raise self._no_row_left()
        self._align_ranks()
        self._teach_sampler()
        self._prefetch(count)
        return prompts

    def apply_feedback(self, draw_indices: Sequence[int], mean_rewards: Sequence[float]) -> None:
        """Say what prompts were worth; a curriculum that learns passes over rows that teach nothing.

        What is said before one call of :meth:`take` counts from the call after it, with threads or without.

        Args:
            draw_indices: Of the prompts, from any rank; those of other runs are ignored.
            mean_rewards: Mean total reward of each prompt's completions; NaN where no reward applies.
        """
        for draw_index, reward in zip(draw_indices, mean_rewards, strict=True):
            drawn = self._unscored.pop(draw_index, None)
            if drawn is not None and math.isfinite(reward):
                self._feedback.append(Feedback(drawn.row, drawn.epoch, float(reward)))

    def state(self) -> Mapping[str, Any]:
        """Say where consumption stands, whatever was built ahead; all ranks ask at once."""
        return {
            "position": self._position,
            "num_rows": self._sampler.num_rows,
            "rows": self._fingerprint,
            "cursor": self._cursor,
            "memory": self._sampler.memory(),
            "results": [list(result) for result in self._feedback],
            "late": sorted(draw for rank in self._shard.all_gather(self._deferred_rows()) for draw in rank),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood, with any number of ranks and threads.

        Args:
            state: What :meth:`state` returned.

        Raises:
            DatasetError: The state is that of another mixture of sources.
        """
        if state.get("num_rows", self._sampler.num_rows) != self._sampler.num_rows:
            warnings.warn(
                f"The data had {state['num_rows']} rows when the run was saved and have {self._sampler.num_rows} now: "
                "rows seen before may come again in this epoch.",
                stacklevel=2,
            )
        elif state.get("rows", self._fingerprint) != self._fingerprint:
            warnings.warn(
                f"The {self._sampler.num_rows} rows of {self._samples.name} are others than when the run was saved, "
                "or in another order: rows seen before may come again in this epoch.",
                stacklevel=2,
            )
        self._position = int(state["position"])
        self._cursor = state.get("cursor", self._position)
        self._sampler.load_memory(state.get("memory"))
        self._feedback = [Feedback(*result) for result in state.get("results", ())]
        deferred = state.get("late", ())[self._shard.rank :: self._shard.world_size]
        self._deferred = deque(_Draw(row=row, draw_index=index, position=0, cursor=None) for index, row in deferred)
        self._rewind()

    def close(self) -> None:
        """Stop building prompts ahead."""
        self._rewind()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _draw_block(self) -> list[_Draw]:
        """Draw for every rank, and queue what is this rank's; the draws of one block end at one position."""
        shard = self._shard
        block = shard.rows_per_block if shard.world_size > 1 else 1
        local: list[_Draw] = []
        for number in range(shard.world_size * block):
            drawn = self._next_row()
            if self._sampler.learns:
                self._unscored[self._drawn - 1] = drawn
            if number // block == shard.rank:
                local.append(_Draw(row=drawn.row, draw_index=self._drawn - 1, position=0, cursor=None))
        for draw in local:
            draw.position, draw.cursor = self._drawn, self._sampler.cursor()
        self._queue += local
        return local

    def _next_row(self) -> SampleIndex:
        """Draw the next row that is not skipped on every rank."""
        for _ in range(2 * self._sampler.num_rows):
            drawn = self._sampler.draw()
            self._drawn += 1
            if drawn.row not in self._skip_rows:
                return drawn
        raise self._no_row_left()

    def _prefetch(self, count: int) -> None:
        """Have ``count`` prompts built ahead."""
        if not self._threads:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="mmgrpo-prompts")
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        while len(self._queue) < count and len(self._skip_rows) < self._sampler.num_rows:
            for draw in self._draw_block():
                if draw.row not in self._unusable:
                    draw.prompt = self._pool.submit(
                        _built, self._samples, self._build_prompt, draw.row, draw.draw_index
                    )

    def _align_ranks(self) -> None:
        """Go to where the rank stands that skipped most rows, so that all draw on from one position.

        What was drawn for this rank on the way is deferred: it comes first in the next call.
        """
        gathered = self._shard.all_gather((self._position, self._new_skipped))
        self._tell_skipped([row for _, rows in gathered for row in rows])
        front = max(position for position, _ in gathered)
        while self._position < front:
            if not self._queue:
                self._draw_block()
            draw = self._queue.popleft()
            self._deferred.append(draw)
            self._position, self._cursor = draw.position, draw.cursor

    def _deferred_rows(self) -> list[tuple[int, int]]:
        return [(draw.draw_index, draw.row) for draw in self._deferred]

    def _teach_sampler(self) -> None:
        """Let the sampler learn from the feedback; what was drawn ahead without knowing it is taken back."""
        if not self._feedback:
            return
        self._sampler.learn(self._feedback)
        self._feedback = []
        if self._queue:
            self._rewind()

    def _rewind(self) -> None:
        """Take back what was drawn ahead."""
        for draw in self._queue:
            if draw.prompt is not None:
                draw.prompt.cancel()
        self._queue.clear()
        self._unscored = {index: drawn for index, drawn in self._unscored.items() if index < self._position}
        self._drawn = self._position
        self._sampler.move(self._cursor)

    def _prompt_of(self, draw: _Draw) -> Prompt | None:
        """Build the prompt of a draw, or wait for it; None: its row is skipped."""
        if draw.row in self._unusable:
            return None
        try:
            if draw.prompt is not None:
                return draw.prompt.result()
            return self._build_prompt(self._samples[draw.row], draw.draw_index)
        except (MediaError, ProcessorError) as error:
            message = with_row(str(error), self._samples.where(draw.row))
            if not isinstance(error, self._skip_errors):
                raise type(error)(message) from error
            self._unusable.add(draw.row)
            self._new_skipped.append(SkippedRow(draw.row, self._samples.where(draw.row), message))
            return None

    def _tell_skipped(self, rows: Sequence[SkippedRow]) -> None:
        """Note rows that any rank skipped, and tell of them once."""
        for skipped in rows:
            self._skipped.add(*skipped)
        self._new_skipped = []
        if self._shard.rank == 0:
            self._skipped.tell()

    def _no_row_left(self) -> DatasetError:
        self._tell_skipped(self._new_skipped)
        return DatasetError(explain("No row is left that can be used", where=self._samples.name))


def _built(samples: Sequence[Sample], build_prompt: BuildPrompt, row: int, draw_index: int) -> Prompt:
    return build_prompt(samples[row], draw_index)


def prompt_batches(
    samples: Sequence[Sample],
    build_prompt: BuildPrompt,
    *,
    size: int,
    indices: Sequence[int] | None = None,
    threads: int = 0,
) -> Iterator[list[Prompt]]:
    """Build the prompts of samples, in order, batch by batch: what evaluation does.

    Args:
        samples: Each becomes a prompt whose draw index is its place.
        build_prompt: Makes a prompt; called from ``threads`` threads at once.
        size: Prompts of a batch.
        indices: Which samples; default: all.
        threads: Build the next batch while the caller works on one; 0: each is built when it is asked for.

    Yields:
        The batches. An error comes with the batch that it belongs to, and names the row where samples know theirs.
    """
    wanted = range(len(samples)) if indices is None else indices
    batches = [wanted[start : start + size] for start in range(0, len(wanted), size)]
    if not threads:
        yield from ([_built_or_located(samples, build_prompt, index) for index in batch] for batch in batches)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="mmgrpo-prompts") as pool:
        ahead: deque[list[Future[Prompt]]] = deque()
        try:
            for batch in batches:
                ahead.append([pool.submit(_built_or_located, samples, build_prompt, index) for index in batch])
                if len(ahead) > 1:
                    yield [prompt.result() for prompt in ahead.popleft()]
            while ahead:
                yield [prompt.result() for prompt in ahead.popleft()]
        finally:
            for prompt in (one for batch in ahead for one in batch):
                prompt.cancel()


def _built_or_located(samples: Sequence[Sample], build_prompt: BuildPrompt, index: int) -> Prompt:
    """Build a prompt; an error names its row."""
    try:
        return build_prompt(samples[index], index)
    except (MediaError, ProcessorError) as error:
        where = getattr(samples, "where", None)  # a plain list of samples has none
        if where is None:
            raise
        raise type(error)(with_row(str(error), where(index))) from error
