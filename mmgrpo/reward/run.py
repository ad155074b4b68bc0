"""Where a reward runs: in this process, on a loop for asynchronous ones, or in worker processes with a time limit.

A runner starts some calls and hands back a function that waits for them. Each call ends in values or in an error;
what an error means for the step is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from mmgrpo.errors import RewardError, explain
from mmgrpo.reward.calling import Values, acall, call
from mmgrpo.reward.loading import Loaded
from mmgrpo.reward.returns import Unanswered, some_ids

Columns = Mapping[str, Sequence[Any]]
Outcome = Values | RewardError
_GRACE_SECONDS = 2.0
"""An asynchronous reward that blocks its loop cannot be cancelled; it is given up this long after its limit."""


class Runner(Protocol):
    """Runs the calls of one reward."""

    per_group: bool
    """Whether each group is a call of its own even when nothing fails."""

    def start(self, calls: Sequence[Columns], *, step: int) -> Callable[[], list[Outcome]]:
        """Start the calls; the returned function waits for them."""
        ...

    def close(self) -> None:
        """Release processes and threads."""
        ...


class Inline:
    """Calls a reward in this thread, when its values are waited for."""

    per_group = False

    def __init__(self, reward: Loaded) -> None:
        self.reward = reward

    def start(self, calls: Sequence[Columns], *, step: int) -> Callable[[], list[Outcome]]:
        """Nothing runs until the values are waited for, so that asynchronous rewards go on meanwhile."""
        return lambda: [self._call(columns, step) for columns in calls]

    def _call(self, columns: Columns, step: int) -> Outcome:
        try:
            return call(self.reward, columns, step=step)
        except RewardError as error:
            return error

    def close(self) -> None:
        """Nothing to release."""


class Loop:
    """One event loop in a thread of its own, shared by all asynchronous rewards of a run.

    It works inside notebooks, whose own loop is already running, and clients that belong to a loop stay alive
    between steps.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, Values]) -> concurrent.futures.Future[Values]:
        """Start a coroutine."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self._loop,), name="mmgrpo-rewards", daemon=True).start()
            weakref.finalize(self, _stop, self._loop)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def abandon(self) -> None:
        """Forget a loop that is blocked; the next coroutine gets a new one."""
        self._loop = None

    def close(self) -> None:
        """Stop the loop."""
        if self._loop is not None:
            _stop(self._loop)
            self._loop = None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


class Async:
    """Runs an asynchronous reward on the loop, together with all others."""

    per_group = False

    def __init__(self, reward: Loaded, loop: Loop, *, timeout_seconds: float | None) -> None:
        self.reward, self.loop, self.timeout_seconds = reward, loop, timeout_seconds

    def start(self, calls: Sequence[Columns], *, step: int) -> Callable[[], list[Outcome]]:
        """Start all calls at once."""
        futures = [self.loop.submit(self._limited(columns, step)) for columns in calls]
        return lambda: [self._wait(future, columns) for future, columns in zip(futures, calls, strict=True)]

    async def _limited(self, columns: Columns, step: int) -> Values:
        return await asyncio.wait_for(acall(self.reward, columns, step=step), self.timeout_seconds)

    def _wait(self, future: concurrent.futures.Future[Values], columns: Columns) -> Outcome:
        limit = None if self.timeout_seconds is None else self.timeout_seconds + _GRACE_SECONDS
        try:
            return future.result(limit)
        except RewardError as error:
            return error
        except TimeoutError:
            if not future.done():
                self.loop.abandon()
            return too_slow(self.reward.name, self.timeout_seconds or 0.0, columns["ids"])

    def close(self) -> None:
        """The loop is closed by its owner."""


def too_slow(name: str, seconds: float, ids: Sequence[str]) -> RewardError:
    """The error of a call that took longer than its limit."""
    return Unanswered(
        explain(
            f"Reward {name} took longer than its time limit",
            where=f"samples {some_ids(ids)}",
            expected=f"at most {seconds:g} seconds a call",
            fix="Raise timeout_seconds, or make the reward faster.",
        )
    )
