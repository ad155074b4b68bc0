"""Evaluating the policy of an assembly as it is now, on the run's held-out rows or on others.

Knows what is evaluated on and how it is shown; where reports are written is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo.assemble import Assembly
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.opening import open_samples
from mmgrpo.errors import ConfigError, explain
from mmgrpo.evaluation.report import Report
from mmgrpo.evaluation.run import evaluate
from mmgrpo.evaluation.settings import eval_settings
from mmgrpo.observe.progress import Progress
from mmgrpo.running.settings import sampling_of
from mmgrpo.types import Sample


def judge(
    assembly: Assembly,
    samples: Sequence[Sample],
    *,
    step: int,
    on_rows: Callable[[int], None] | None = None,
) -> Report:
    """Evaluate the policy as it is now.

    Args:
        assembly: Policy, engine and rewards.
        samples: From :func:`held_out`.
        step: Steps done, for the report.
        on_rows: Told how many rows are done, batch by batch (each way of decoding counts).

    Returns:
        The report.
    """
    config, rewards = assembly.config, assembly.rewards
    report = evaluate(
        assembly.engine,
        rewards,
        samples,
        assembly.encode_aside,
        settings=eval_settings(config, sampling=sampling_of(config.rollout), rewards=rewards.names),
        step=step,
        threads=config.data.prefetch,
        dist=assembly.dist,
        on_rows=on_rows,
    )
    assembly.engine.metrics()  # figures of these completions are no figures of the next step
    return report


def judge_shown(assembly: Assembly, progress: Progress, *, step: int, limit: int | None = None) -> Report:
    """Evaluate on the run's held-out rows, and show how far it is."""
    samples, section = held_out(assembly, limit=limit), assembly.config.eval
    ways = 2 if section is None or section.sampled else 1
    with progress.phase("evaluation", ways * len(samples), unit="row", every=0) as advance:
        return judge(assembly, samples, step=step, on_rows=lambda rows: advance({}, rows))


class HeldOutEvaluator:
    """Evaluates the run's held-out rows while it trains; fulfils :class:`mmgrpo.contracts.Evaluator`."""

    def __init__(self, assembly: Assembly, progress: Progress) -> None:
        """Evaluate what ``assembly`` holds, and show it."""
        self._assembly, self._progress = assembly, progress

    def evaluate(self, step: int) -> Report:
        """Evaluate the policy as it is after ``step`` steps."""
        return judge_shown(self._assembly, self._progress, step=step)


def held_out(assembly: Assembly, rows: Any = None, *, limit: int | None = None) -> Sequence[Sample]:
    """Give the samples to evaluate on.

    Args:
        assembly: The run's parts.
        rows: Rows given in Python; None: the run's held-out rows.
        limit: Use this many; None: as ``eval.limit`` says.

    Raises:
        ConfigError: The run has no held-out rows and none are given, or the limit is below 1.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        expected = "a whole number of rows, at least 1"
        raise ConfigError(explain("The limit cannot be used", where="limit", expected=expected, got=repr(limit)))
    samples = assembly.eval if rows is None else given_samples(assembly, rows)
    if samples is None:
        fix = "Pass rows, or set data.eval."
        raise ConfigError(explain("The run has no held-out rows", where="data.eval", fix=fix))
    section = assembly.config.eval
    if limit is None and rows is None and section is not None:
        limit = section.limit
    return samples if limit is None or limit >= len(samples) else _First(samples, limit)


def given_samples(assembly: Assembly, rows: Any) -> AnySamples:
    """Read rows given in Python in the form of the run's own."""
    samples = open_samples(assembly.config.data, None, rows, base=assembly.loaded.folder, needed="rows")
    assert samples is not None  # rows were given
    return samples


class _First(Sequence[Sample]):
    """The first samples, each made when it is asked for."""

    def __init__(self, samples: AnySamples, count: int) -> None:
        self._samples, self._count = samples, count

    def where(self, index: int) -> str:
        """Say where sample ``index`` came from, for messages."""
        return self._samples.where(index)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._samples[range(self._count)[index]] if isinstance(index, int) else list(self)[index]
