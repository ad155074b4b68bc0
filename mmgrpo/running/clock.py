"""Seconds per phase: a stopwatch that wraps the functions of a step. Knows names and calls only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Adds up the seconds that each phase took since the last reading."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}

    def timed(self, phase: str, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function so that its seconds count for a phase."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            start = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds[phase] = self._seconds.get(phase, 0.0) + self._clock() - start

        return call

    def read(self) -> dict[str, float]:
        """Seconds per phase since the last reading; starts anew."""
        seconds, self._seconds = self._seconds, {}
        return seconds
