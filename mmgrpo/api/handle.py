"""What training returns: look at it, evaluate it, let it write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import torch

from mmgrpo.assemble import Assembly, open_evaluator
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.opening import open_samples
from mmgrpo.errors import ConfigError, counted, explain
from mmgrpo.evaluation.results import Report, paired_gain
from mmgrpo.observe.runfolder import RunFolder
from mmgrpo.observe.sinks import read_rows
from mmgrpo.policy.model.policy import Policy
from mmgrpo.running.settings import sampling_of
from mmgrpo.types import Sample, ScoredGroup

AnySample = Sample | Mapping[str, Any] | str
"""What the policy can be asked: a sample, a row, or a text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run that ended (or was stopped): its policy is still loaded."""

    assembly: Assembly
    folder: RunFolder
    before: Report | None
    """Evaluation before step 0; None: there was none."""
    after: Report | None
    """Evaluation after the last step; None: there was none, or the run was stopped."""
    steps: int
    """Steps done."""
    seconds: float
    """In this process."""
    stopped: str | None
    """Why it ended early; None: it did not."""

    def __repr__(self) -> str:
        """One line, for a notebook: the whole would be pages."""
        reached = "" if self.after is None else f", held-out accuracy {self.after.first.score.accuracy:.3f}"
        begun = (
            "" if self.before is None or self.after is None else f" (before {self.before.first.score.accuracy:.3f})"
        )
        stopped = f", stopped by {self.stopped}" if self.stopped else ""
        return f"<Run {self.path}: {counted(self.steps, 'step')}{reached}{begun}{stopped}>"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def policy(self) -> Policy:
        """The trained policy."""
        return self.assembly.policy

    def metrics(self) -> list[dict[str, Any]]:
        """Rows of the steps, one mapping each; ``pandas.DataFrame(run.metrics())`` makes a table."""
        return [row for row in read_rows(self.folder.metrics) if not _of_evaluation(row)]

    def eval_metrics(self) -> list[dict[str, Any]]:
        """Rows of the evaluations while training, one mapping each: ``step`` and values named ``eval/…``."""
        return [row for row in read_rows(self.folder.metrics) if _of_evaluation(row)]

    def evaluate(
        self, rows: Any = None, *, limit: int | None = None, on_rows: Callable[[int], None] | None = None
    ) -> Report:
        """Evaluate the policy as it is now.

        Args:
            rows: Rows given in Python; None: the run's held-out rows.
            limit: Use this many; None: as ``eval.limit`` says.
            on_rows: Told how many rows are done, batch by batch (each decoding counts).

        Returns:
            The report.

        Raises:
            ConfigError: The run has no held-out rows and none are given.
        """
        samples = None if rows is None else self._read_rows(rows)
        evaluator = open_evaluator(self.assembly, rows=samples, limited=limit is None)
        return evaluator.evaluate(self.steps, limit=limit, on_rows=on_rows or (lambda rows: None))

    def _read_rows(self, rows: Any) -> AnySamples:
        """Read rows given in Python in the form of the run's own."""
        loaded = self.assembly.loaded
        samples = open_samples(loaded.config.data, None, rows, base=loaded.folder, needed="rows")
        assert samples is not None  # rows were given
        return samples

    @overload
    def generate(
        self, sample: AnySample, *, count: int = 1, temperature: float | None = None, details: Literal[False] = False
    ) -> list[str]: ...

    @overload
    def generate(
        self, sample: AnySample, *, count: int = 1, temperature: float | None = None, details: Literal[True]
    ) -> ScoredGroup: ...

    def generate(
        self, sample: AnySample, *, count: int = 1, temperature: float | None = None, details: bool = False
    ) -> list[str] | ScoredGroup:
        """Let the policy write.

        Args:
            sample: A sample (``run.samples()[0]``), a row of the data, or a text that is asked as it stands.
            count: Completions, at least 1.
            temperature: 0 is greedy; None: greedy for one completion, the rollout's temperature for several.
            details: Give the scored group instead of its texts: the prompt, token ids, log-probs (nats), status, and
                what the run's rewards say. Of a bare text they say nothing.

        Returns:
            The texts, or the group.

        Raises:
            ConfigError: What is asked is none of these, or a number is out of its range.
            DataError: The row cannot be read.
        """
        question = self._as_sample(sample)
        if temperature is None:
            temperature = 0.0 if count == 1 else self.assembly.config.rollout.temperature
        _require("count", count, int, least=1)
        _require("temperature", temperature, (int, float), least=0)
        sampling = replace(sampling_of(self.assembly.config.rollout), temperature=temperature, stream="generate")
        group = self.assembly.engine.generate([self.assembly.build_prompt(question)], [count], sampling)[0]
        if not details:
            return [c.text for c in group.completions]
        if isinstance(sample, str):
            return ScoredGroup(group=group, totals=torch.full((count,), torch.nan, dtype=torch.float64), rewards={})
        return self.assembly.rewards.score([group], step=self.steps, training=False)[0]

    def _as_sample(self, sample: AnySample) -> Sample:
        if isinstance(sample, Sample):
            return sample
        if isinstance(sample, str):
            return Sample(id="given", messages=({"role": "user", "content": sample},))
        if isinstance(sample, Mapping):
            return self._read_rows([dict(sample)])[0]
        raise ConfigError(
            explain(
                "The policy cannot be asked this",
                expected="a sample (run.samples()[0]), one row as a mapping, or a text",
                got=f"{type(sample).__name__}: {sample!r:.80}",
            )
        )

    def samples(self) -> AnySamples:
        """The run's held-out samples, or its training samples where it has none."""
        samples = self.assembly.train if self.assembly.eval is None else self.assembly.eval
        assert samples is not None
        return samples

    def close(self) -> None:
        """End worker processes of rewards and the engine; needed only where they must go before the run does."""
        self.assembly.close()

    def improved(self) -> bool:
        """Whether the first suite's accuracy rose, under each decoding, by more than two paired standard errors."""
        if self.before is None or self.after is None:
            return False
        before, after = self.before.main, self.after.main
        gains = [paired_gain(before[name].rows, after[name].rows) for name in after if name in before]
        return bool(gains) and all(gain.significant for gain in gains)

    def facts(self) -> dict[str, str]:
        """Steps, seconds and folder as text, for the table at the end."""
        return {"steps": str(self.steps), "seconds": f"{self.seconds:.0f}", "run folder": str(self.path)}

    def summary(self) -> dict[str, Any]:
        """Plain numbers: before, after, steps, seconds, folder."""
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "folder": str(self.path),
            "improved": self.improved(),
            "before": self.before.metrics() if self.before else None,
            "after": self.after.metrics() if self.after else None,
        }


def _require(name: str, value: object, kind: type | tuple[type, ...], *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not value >= least:  # type: ignore[operator]
        expected = f"a {'whole number' if kind is int else 'number'} of at least {least}"
        raise ConfigError(explain(f"{name} is out of range", expected=expected, got=repr(value)))


def _of_evaluation(row: Mapping[str, Any]) -> bool:
    """Tell a row of an evaluation from one of a step, which the metrics file holds in the order of time."""
    return all(name.startswith("eval/") for name in row if name not in ("step", "late_step"))
