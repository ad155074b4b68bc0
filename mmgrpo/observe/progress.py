"""What the terminal shows while a run works: a bar with the time left, and a line every few steps.

Without a terminal (or with ``observe.progress: false``) there are only the lines. On a terminal lines break between
words, and the bar leaves metrics out before it breaks. It knows names of phases and numbers, not what the phases do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from mmgrpo.observe.text import Stderr, duration, printable, wrapped

SHOWN = {
    "loss": "loss",
    "reward": "reward",
    "accuracy": "accuracy",
    "completions/mean_length": "length",
    "learning_rate": "lr",
}
"""Metrics shown on a line, and what they are called there; those that a phase does not have are left out."""

_SILENCE_SECONDS = 30.0
"""Without a bar nobody should wait longer for a sign of life."""
_WIDE = 100
"""Narrower terminals, in characters, get a short bar."""


class Progress:
    r"""Shows the phases of a run. Use it as a context manager; phases follow one another.

    Example:
        >>> import io
        >>> screen = Console(file=io.StringIO(), width=100)
        >>> with Progress(log_steps=2, console=screen, clock=iter([0.0, 1.0, 3.0]).__next__) as progress:
        ...     with progress.phase("GRPO", 2) as advance:
        ...         advance({"reward": 0.25})
        ...         advance({"reward": 0.5})
        >>> screen.file.getvalue()
        'GRPO 2/2  reward 0.500  1.5 s/step\n'
    """

    def __init__(
        self,
        *,
        show: bool = True,
        log_steps: int = 5,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is shown yet.

        Args:
            show: Show a bar where there is a terminal.
            log_steps: Print a line every so many steps.
            console: Where to; default: standard error.
            clock: Seconds, for tests.
        """
        self.console = console or Console(file=Stderr())  # type: ignore[arg-type]  (it has what is used of a file)
        self._log_steps = log_steps
        self._clock = clock
        bar = show and self.console.is_terminal and not self.console.is_jupyter
        self._bars = _bars(self.console) if bar else None

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Print a line (above the bar), whatever characters it holds."""
        self._print(*(printable(line) for line in text.splitlines()))

    def _print(self, *lines: str) -> None:
        if self.console.is_terminal:  # a file or a pipe gets long lines whole
            lines = tuple(wrapped(line, self.console.width) for line in lines)
        self.console.print(Text("\n".join(lines)), soft_wrap=True)

    @contextmanager
    def phase(
        self, name: str, total: int, *, done: int = 0, unit: str = "step", every: int | None = None
    ) -> Generator[Callable[..., None]]:
        """Show one phase.

        Args:
            name: "warm start", "evaluation", "GRPO".
            total: Steps of the phase.
            done: Steps done before, on resume.
            unit: What a step is called.
            every: Print a line every so many steps; default: ``log_steps``. 0: only at the end. Where no bar is shown
                a line also comes when half a minute has passed since the last.

        Yields:
            ``advance(metrics={}, by=1)``, to be called after each step.
        """
        phase = _Phase(name=name, total=total, done=done, unit=unit, clock=self._clock)
        task = None if self._bars is None else self._bars.add_task(name, total=total, completed=done, note="", left="")
        every = self._log_steps if every is None else every
        told = phase.now

        def advance(metrics: Mapping[str, float] | None = None, by: int = 1) -> None:
            """Count steps, and show what was measured."""
            nonlocal told
            phase.advance(by, metrics or {})
            due = every and phase.done // every > (phase.done - by) // every
            if phase.done >= total or due or (task is None and phase.now - told >= _SILENCE_SECONDS):
                told = phase.now
                self._print(phase.line())
            if task is not None:
                self._update(task, phase)

        try:
            yield advance
        finally:
            if task is not None and self._bars is not None:
                self._bars.remove_task(task)

    def _update(self, task: TaskID, phase: _Phase) -> None:
        if self._bars is not None:
            left = f"{duration(phase.left)} left" if phase.left else ""
            fixed = len(f"{phase.name}  {phase.done}/{phase.total} {left} ") + _bar_width(self.console)
            self._bars.update(
                task, completed=phase.done, note=phase.numbers(self.console.width - fixed - 1), left=left
            )


class _Phase:
    """Counts the steps of one phase and how long they take."""

    def __init__(self, *, name: str, total: int, done: int, unit: str, clock: Callable[[], float]) -> None:
        self.name, self.total, self.done, self.unit = name, total, done, unit
        self._clock = clock
        self._first = done
        self._start = clock()
        self.now = self._start
        self._metrics: Mapping[str, float] = {}
        self._seen: set[str] = set()

    def advance(self, by: int, metrics: Mapping[str, float]) -> None:
        """Count steps, and keep what was measured of the newest: a metric that it lacks becomes a dash."""
        self.done += by
        self.now = self._clock()
        if metrics:
            self._metrics = dict(metrics)
            self._seen |= metrics.keys()

    @property
    def seconds_per_step(self) -> float:
        """Mean time of the steps done here."""
        return (self.now - self._start) / max(1, self.done - self._first)

    @property
    def left(self) -> float:
        """Seconds until the last step, at this pace."""
        return max(0, self.total - self.done) * self.seconds_per_step

    def numbers(self, width: int | None = None) -> str:
        """Write the metrics that people watch, as many as there is room for."""
        shown = [f"{word} {_number(self._metrics.get(name))}" for name, word in SHOWN.items() if name in self._seen]
        while width is not None and shown and len("  ".join(shown)) > width:
            shown.pop()
        return "  ".join(shown)

    def line(self) -> str:
        """Write everything on one line."""
        pace = f"{duration(self.seconds_per_step)}/{self.unit}" if self.seconds_per_step >= 0.1 else ""
        left = f"{duration(self.left)} left" if self.left else ""
        return "  ".join(
            part for part in (f"{self.name} {self.done}/{self.total}", self.numbers(), pace, left) if part
        )


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _bar_width(console: Console) -> int:
    return 40 if console.width >= _WIDE else 12


def _bars(console: Console) -> Bars:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_bar_width(console)),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Bars(*columns, console=console, transient=True)
