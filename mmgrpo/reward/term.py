"""One reward of a run: the loaded function with its weight, role, runner, cache, and what happens when it fails."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import ConfigError, RewardError, explain
from mmgrpo.metrics import Mean
from mmgrpo.reward.cache import ValueCache
from mmgrpo.reward.calling import Values
from mmgrpo.reward.columns import Table
from mmgrpo.reward.compose import Role, Scale
from mmgrpo.reward.loading import Loaded, load_reward
from mmgrpo.reward.pool import Pool
from mmgrpo.reward.returns import Unanswered
from mmgrpo.reward.run import Async, Inline, Loop, Outcome, Runner

_SKIP = " Or set on_error: skip_group under it: then a group in which it fails is left out of the step, and counted."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One reward's values for all completions of a step."""

    values: list[float]
    """NaN where it does not apply or failed."""
    metrics: Mapping[str, list[float]]
    """Further values by name."""
    skipped: frozenset[int]
    """Groups in which it failed."""
    seconds: float
    """Time spent on it (waited for, where it ran beside others)."""
    logged: Mapping[str, Mean] = field(default_factory=dict[str, Mean])
    """What it logged with ``log_metric``: the mean over its calls, each weighted by the completions it scored."""
    extra: Mapping[str, list[Any]] = field(default_factory=dict[str, "list[Any]"])
    """What it logged with ``log_extra``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One reward as it enters the total."""

    reward: Loaded
    """The function."""
    runner: Runner
    """Where it runs."""
    weight: float = 1.0
    """Weight in the total."""
    role: Role = "add"
    """Added, multiplied, or only logged."""
    scale: Scale = "none"
    """Scaling before weighting."""
    on_error: Literal["stop", "skip_group"] = "stop"
    """What a failure means."""
    cache: ValueCache | None = None
    """Known values, if it is pure."""

    @property
    def name(self) -> str:
        """Its name in logs."""
        return self.reward.name

    def start(self, rows: Table, *, step: int) -> Callable[[], Scores]:
        """Start scoring; the returned function waits for the scores.

        Args:
            rows: All completions of the step.
            step: Steps done so far.

        Returns:
            A function that gives the scores, or raises RewardError (``on_error: stop``, or failed in every group).
        """
        keys = self.cache.keys(rows.columns) if self.cache else [None] * rows.rows
        pieces = _pieces(rows, self._unknown(keys), per_group=self.runner.per_group)
        wait = self.runner.start([rows.take(piece) for piece in pieces], step=step)

        def finish() -> Scores:
            start = time.perf_counter()
            done = list(zip(pieces, wait(), strict=True))
            done = self._retry(done, rows, step) if self.on_error == "skip_group" else done
            return self._collect(done, keys, rows, start)

        return finish

    def _unknown(self, keys: Sequence[bytes | None]) -> list[int]:
        """Rows that must be computed: unknown ones, each different one once."""
        first: dict[bytes, int] = {}
        return [
            row
            for row, key in enumerate(keys)
            if key is None or (first.setdefault(key, row) == row and self.cache and self.cache.get(key) is None)
        ]

    def _retry(self, done: list[tuple[list[int], Outcome]], rows: Table, step: int) -> list[tuple[list[int], Outcome]]:
        """Call again, group by group, what failed for many groups at once, to lose no more than the bad groups."""
        again: list[tuple[list[int], Outcome]] = []
        for piece, outcome in done:
            parts = _pieces(rows, piece, per_group=True)
            if isinstance(outcome, Values) or len(parts) == 1:
                again.append((piece, outcome))
                continue
            outcomes = self.runner.start([rows.take(part) for part in parts], step=step)()
            again.extend(zip(parts, outcomes, strict=True))
        return again

    def _collect(
        self, done: Sequence[tuple[list[int], Outcome]], keys: Sequence[bytes | None], rows: Table, start: float
    ) -> Scores:
        values, metrics = [math.nan] * rows.rows, dict[str, list[float]]()
        failed: set[int] = set()
        errors: list[RewardError] = []
        for piece, outcome in done:
            if isinstance(outcome, RewardError):
                errors.append(outcome)
                failed.update(piece)
                continue
            for at, row in enumerate(piece):
                values[row] = outcome.values[at]
                for key, column in outcome.metrics.items():
                    metrics.setdefault(key, [math.nan] * rows.rows)[row] = column[at]
        self._stop_or_warn(errors, everything=len(errors) == len(done) > 1)
        failed |= self._fill(values, keys, failed)
        skipped = frozenset(g for g, (a, b) in enumerate(rows.bounds) if failed.intersection(range(a, b)))
        logged, extra = _journals([outcome for _, outcome in done if isinstance(outcome, Values)])
        seconds = time.perf_counter() - start
        return Scores(values=values, metrics=metrics, skipped=skipped, seconds=seconds, logged=logged, extra=extra)

    def _fill(self, values: list[float], keys: Sequence[bytes | None], failed: set[int]) -> set[int]:
        """Copy known values to the rows that were not computed; rows whose twin failed have failed too."""
        if self.cache is None:
            return set()
        first: dict[bytes, int] = {}
        lost: set[int] = set()
        for row, key in enumerate(keys):
            if key is None:
                continue
            known = self.cache.get(key)
            twin = first.setdefault(key, row)
            if twin in failed:
                lost.add(row)
            elif known is not None:
                values[row] = known
            else:
                values[row] = values[twin]
                self.cache.put(key, values[row])
        return lost

    def _stop_or_warn(self, errors: Sequence[RewardError], *, everything: bool) -> None:
        if not errors:
            return
        if self.on_error == "stop":
            raise Unanswered(f"{errors[0]}{_SKIP}") if isinstance(errors[0], Unanswered) else errors[0]
        if everything:
            told = f"Reward {self.name} failed in every group of the step: on_error: skip_group has none left to keep."
            raise RewardError(f"{told}\nIts first failure: {errors[0]}") from errors[0].__cause__
        warnings.warn(f"Groups left out because reward {self.name} failed. {errors[0]}", stacklevel=4)


def _pieces(rows: Table, wanted: Sequence[int], *, per_group: bool) -> list[list[int]]:
    """The rows of each call: all at once, or group by group."""
    if not wanted:
        return []
    if not per_group:
        return [list(wanted)]
    chosen = set(wanted)
    by_group = [[row for row in range(a, b) if row in chosen] for a, b in rows.bounds]
    return [piece for piece in by_group if piece]


def _journals(done: Sequence[Values]) -> tuple[dict[str, Mean], dict[str, list[Any]]]:
    logged: dict[str, Mean] = {}
    extra: dict[str, list[Any]] = {}
    for values in done:
        for name, number in values.journal.metrics.items():
            call = Mean(number, len(values.values))
            logged[name] = logged[name].merge(call) if name in logged else call
        for name, column in values.journal.extra.items():
            extra.setdefault(name, []).extend(column)
    return logged, extra


def make_term(given: str | Callable[..., Any], entry: Reward, *, base: Path, loop: Loop) -> Term:
    """Load one reward and decide where it runs.

    Args:
        given: The spec or the Python object.
        entry: Its entry in the YAML.
        base: Folder of the YAML.
        loop: Loop of the asynchronous rewards.

    Returns:
        The term.

    Raises:
        ConfigError: It cannot be loaded, or cannot run in worker processes.
    """
    load: dict[str, Any] = {"args": entry.args, "style": entry.style, "name": entry.name}
    reward = load_reward(given, base=base, build=False, **load)
    limit = entry.timeout_seconds
    if limit is None and isinstance(given, str):
        limit = reward.facts.timeout_seconds
    if reward.is_async or (not entry.workers and limit is None):
        reward = load_reward(given, base=base, **load)
    return Term(
        reward=reward,
        runner=_runner(given, reward, {"base": base, **load}, loop, workers=entry.workers, limit=limit),
        weight=entry.weight,
        role=entry.role,
        scale=entry.scale,
        on_error=entry.on_error,
        cache=ValueCache(reward) if entry.cache and reward.facts.pure else None,
    )


def _runner(
    given: str | Callable[..., Any],
    reward: Loaded,
    load: dict[str, Any],
    loop: Loop,
    *,
    workers: int,
    limit: float | None,
) -> Runner:
    if reward.is_async:
        return Async(reward, loop, timeout_seconds=limit)
    if not workers and limit is None:
        return Inline(reward)
    if not isinstance(given, str):
        raise ConfigError(
            explain(
                f"Reward {reward.name} cannot run in a worker process",
                expected="path.py:name or module:name, which the process can load itself",
                got="a Python object",
                fix="Put the function into a file, or leave workers and timeout_seconds out.",
            )
        )
    return Pool({"spec": given, **load}, name=reward.name, workers=workers, timeout_seconds=limit)
