"""Seconds per phase of a step. Knows names of phases, not what they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Clock:
    """Adds up the seconds that each phase took since the last reading.

    Example:
        >>> clock = Clock(iter([0.0, 2.0, 2.0, 5.0]).__next__)
        >>> with clock("rollout"):
        ...     pass
        >>> with clock("update"):
        ...     pass
        >>> clock.read()
        {'rollout': 2.0, 'update': 3.0}
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Read seconds from ``now``."""
        self._now = now
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Generator[None]:
        """Count what happens inside for a phase, also when it raises."""
        start = self._now()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + self._now() - start

    def read(self) -> dict[str, float]:
        """Give the seconds per phase since the last reading, and start anew."""
        seconds, self._seconds = self._seconds, {}
        return seconds
