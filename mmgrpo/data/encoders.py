"""Several equal makers of prompts, of which each is used by one thread at a time, and batches made ahead with them.

A tokenizer must not work for two threads at once, so every thread that makes prompts ahead gets a processor of its
own, and none is shared with whoever decodes answers meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from mmgrpo.data.row_errors import with_row
from mmgrpo.errors import MediaError, ProcessorError
from mmgrpo.types import Prompt, Sample


class Encoders:
    """Makes a prompt with whichever maker is free, and waits where none is."""

    def __init__(self, makers: Sequence[Callable[[Sample, int], Prompt]]) -> None:
        """Take as many makers as there are threads."""
        self._free: SimpleQueue[Callable[[Sample, int], Prompt]] = SimpleQueue()
        for maker in makers:
            self._free.put(maker)

    def __call__(self, sample: Sample, occurrence: int) -> Prompt:
        """Make a prompt.

        Args:
            sample: The row.
            occurrence: How many prompts the run had drawn before this one.
        """
        maker = self._free.get()
        try:
            return maker(sample, occurrence)
        finally:
            self._free.put(maker)


def prompt_batches(
    samples: Sequence[Sample],
    encode: Callable[[Sample, int], Prompt],
    *,
    size: int,
    places: Sequence[int] | None = None,
    threads: int = 0,
) -> Iterator[list[Prompt]]:
    """Make the prompts of samples, in order, batch by batch.

    Args:
        samples: Each becomes a prompt whose occurrence is its place.
        encode: Makes a prompt; called from several threads where there are any.
        size: Prompts of a batch.
        places: Which samples; default: all.
        threads: Make the next batch while the caller works on one; 0: each is made when it is asked for.

    Yields:
        The batches. An error comes with the batch that it belongs to, and names the row where samples know theirs.
    """
    wanted = range(len(samples)) if places is None else places
    batches = [wanted[start : start + size] for start in range(0, len(wanted), size)]
    if not threads:
        yield from ([_made(samples, encode, place) for place in batch] for batch in batches)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="mmgrpo-prompts") as pool:
        ahead: deque[list[Future[Prompt]]] = deque()
        try:
            for batch in batches:
                ahead.append([pool.submit(_made, samples, encode, place) for place in batch])
                if len(ahead) > 1:
                    yield [work.result() for work in ahead.popleft()]
            while ahead:
                yield [work.result() for work in ahead.popleft()]
        finally:
            for work in (one for batch in ahead for one in batch):
                work.cancel()


def _made(samples: Sequence[Sample], encode: Callable[[Sample, int], Prompt], place: int) -> Prompt:
    try:
        return encode(samples[place], place)
    except (MediaError, ProcessorError) as error:
        where = getattr(samples, "where", None)  # a plain list of samples has none
        if where is None:
            raise
        raise type(error)(with_row(str(error), where(place))) from error
