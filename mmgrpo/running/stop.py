"""Stopping a run on purpose: Ctrl-C, SIGTERM, or a time limit. The step in progress is finished, then saved.

Signals can only be caught in the main thread; elsewhere (a notebook's worker, a test) the time limit still works.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

from mmgrpo.contracts import StopCondition

STOPPING = "Stopping after this step, then saving. Press Ctrl-C again to stop at once."
"""Said at the first signal."""


class AnyRankStop:
    """Stops all processes of a run where one of them has a reason; all ask at the same places.

    Args:
        local: Of this process.
        gather: Gives the reasons of all.
    """

    def __init__(self, local: StopCondition, gather: Callable[[str | None], Sequence[str | None]]) -> None:
        self._local, self._gather = local, gather

    @property
    def reason(self) -> str | None:
        """Why to stop; None: go on."""
        return next((reason for reason in self._gather(self._local.reason) if reason is not None), None)


class StopRequest:
    """Knows whether the run should stop, and why. Use it as a context manager.

    Args:
        max_seconds: Time limit, from entering; None: none.
        clock: Seconds, for tests.
        on_signal: Told once, with the sentence to print.
    """

    def __init__(
        self,
        *,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_signal: Callable[[str], None] | None = None,
    ) -> None:
        self.max_seconds = max_seconds
        self._clock = clock
        self._on_signal = on_signal
        self._signal: str | None = None
        self._before: dict[int, Any] = {}
        self._start = clock()

    def __enter__(self) -> StopRequest:
        self._start = self._clock()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not installed from Python, and cannot be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    @property
    def reason(self) -> str | None:
        """Why to stop; None: go on."""
        if self._signal is not None:
            return self._signal
        if self.max_seconds is not None and self._clock() - self._start >= self.max_seconds:
            return f"the time limit of {self.max_seconds:g} {'second' if self.max_seconds == 1 else 'seconds'}"
        return None

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:  # asked twice: the user means now
            raise KeyboardInterrupt
        self._signal = signal.Signals(number).name
        if self._on_signal is not None:
            # a signal may come in the middle of a line that is being printed, and printing does not nest
            with contextlib.suppress(RuntimeError):
                self._on_signal(STOPPING)
