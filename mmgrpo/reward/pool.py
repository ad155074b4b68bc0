"""Worker processes for rewards that are slow or may hang: real time limits, and a stuck process is replaced.

A process is started as ``python -m mmgrpo.reward.process`` and spoken to through pipes, so nothing of the caller's
main module is imported again and notebooks work. Each group is a call of its own.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from mmgrpo.errors import ConfigError, RewardError, explain
from mmgrpo.reward.calling import Values
from mmgrpo.reward.returns import Unanswered, some_ids
from mmgrpo.reward.run import Columns, Outcome, too_slow

Frame = Any
_HEADER_BYTES = 8


def write_frame(stream: IO[bytes], value: Frame) -> None:
    """Send one value: its length, then its pickle."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(_HEADER_BYTES, "big") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Frame:
    """Receive one value.

    Raises:
        EOFError: The other side is gone.
    """
    header = stream.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise EOFError
    size = int.from_bytes(header, "big")
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


class Process:
    """One worker process that has loaded one reward."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "mmgrpo.reward.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)},
            start_new_session=True,  # Ctrl-C is the trainer's business
        )
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._input, self._output = self._popen.stdin, self._popen.stdout
        write_frame(self._input, order)
        try:
            answer = read_frame(self._output)  # loading may take long (a model) and has no limit
        except EOFError as error:
            self.stop()
            raise ConfigError(
                explain(
                    "A worker process died while it loaded its reward",
                    where=str(order.get("spec")),
                    fix="It may have crashed in native code or run out of memory; set workers: 0 to see its error.",
                )
            ) from error
        if isinstance(answer, Exception):
            self.stop()
            raise answer

    def ask(self, columns: Columns, *, step: int, timeout_seconds: float | None) -> Values | RewardError:
        """Score one group.

        Raises:
            EOFError: The process died.
            TimeoutError: It did not answer in time, and was killed.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._popen.kill()

        timer = threading.Timer(timeout_seconds, expire) if timeout_seconds else None
        if timer:
            timer.start()
        try:
            write_frame(self._input, (dict(columns), step))
            answer: Values | RewardError = read_frame(self._output)
            return answer
        except (EOFError, BrokenPipeError) as error:
            self.stop()
            raise (TimeoutError if expired.is_set() else EOFError)() from error
        finally:
            if timer:
                timer.cancel()

    def stop(self) -> None:
        """Kill the process and release its pipes."""
        self._popen.kill()
        self._popen.wait()
        for stream in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):  # unsent bytes for a process that is gone
                stream.close()


class Pool:
    """Scores groups in worker processes."""

    per_group = True

    def __init__(self, load: Mapping[str, Any], *, name: str, workers: int, timeout_seconds: float | None) -> None:
        """Remember what to load; processes start when they are first needed.

        Args:
            load: Arguments of :func:`mmgrpo.reward.loading.load_reward`: processes load the reward themselves.
            name: The reward, for messages.
            workers: Number of processes.
            timeout_seconds: Longest time for one group.
        """
        self.name, self.timeout_seconds = name, timeout_seconds
        self._order = dict(load)
        self._threads = concurrent.futures.ThreadPoolExecutor(max(workers, 1), thread_name_prefix="mmgrpo-reward")
        self._idle: queue.SimpleQueue[Process] = queue.SimpleQueue()
        self._all: set[Process] = set()
        weakref.finalize(self, _stop_all, self._all)

    def start(self, calls: Sequence[Columns], *, step: int) -> Callable[[], list[Outcome]]:
        """Hand the groups to the processes."""
        futures = [self._threads.submit(self._score, columns, step) for columns in calls]

        def wait() -> list[Outcome]:
            try:
                return [future.result() for future in futures]
            except BaseException:  # Ctrl-C: free the threads that wait for a process, else Python could not end
                _stop_all(self._all)
                raise

        return wait

    def _score(self, columns: Columns, step: int) -> Outcome:
        process = self._take()
        try:
            answer = process.ask(columns, step=step, timeout_seconds=self.timeout_seconds)
        except TimeoutError:
            self._all.discard(process)
            return too_slow(self.name, self.timeout_seconds or 0.0, columns["ids"])
        except EOFError:
            self._all.discard(process)
            return Unanswered(
                explain(
                    f"The worker process of reward {self.name} died",
                    where=f"samples {some_ids(columns['ids'])}",
                    fix="It may have crashed in native code or run out of memory; set workers: 0 to see its error.",
                )
            )
        self._idle.put(process)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def _take(self) -> Process:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            process = Process(self._order)
            self._all.add(process)
            return process

    def close(self) -> None:
        """Kill all processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        _stop_all(self._all)


def _stop_all(processes: set[Process]) -> None:
    while processes:
        processes.pop().stop()
