"""Several equal makers of prompts, of which each is used by one thread at a time.

A tokenizer must not work for two threads at once, so every thread that makes prompts ahead gets a processor of its
own, and none is shared with whoever decodes answers meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue

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
