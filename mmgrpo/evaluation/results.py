"""What an evaluation measured: per row and in sum, with everything that is needed to get the same number again.

Pure data and arithmetic; knows no engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmgrpo.errors import ConfigError, counted, explain


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One held-out row under one decoding."""

    id: str
    answer: str
    """The ground truth as text."""
    texts: tuple[str, ...]
    """What the policy wrote: one per completion."""
    rewards: Mapping[str, tuple[float | None, ...]]
    """Each reward's values, None where it does not apply."""
    correct: float | None
    """The metric: usually the fraction of completions whose reward is at least 1; None where it does not apply."""
    well_formed: float
    """Fraction of completions in which an answer can be read."""
    correct_well_formed: float
    """Fraction of completions that are both."""
    length: float
    """Mean tokens of a completion."""
    truncated: float
    """Fraction of completions that hit the length limit."""
    media: tuple[str, ...] = ()
    """Names of the row's media."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All rows of a suite under one decoding."""

    accuracy: float
    """Mean of ``correct``, 0 to 1; NaN where the metric applies to no row."""
    format_rate: float
    """Mean of ``well_formed``, 0 to 1."""
    accuracy_well_formed: float
    """Fraction of the well-formed completions that are correct, 0 to 1; NaN where there are none, and as above."""
    rewards: Mapping[str, float]
    """Mean of each reward where it applies; NaN where it applies to nothing."""
    length: float
    """Mean tokens of a completion."""
    truncated: float
    """Fraction of completions that hit the length limit."""
    by_answer: Mapping[str, tuple[float, int]]
    """Accuracy and number of rows for each ground truth."""
    rows: int
    """Held-out rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One suite under one decoding."""

    score: Score
    rows: tuple[RowResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One evaluation: every suite under each of its decodings."""

    step: int
    results: Mapping[str, Mapping[str, Result]]
    """By suite (``""`` is the rows of ``data.eval``) and decoding, at least one of each."""
    suite_settings: Mapping[str, Mapping[str, Any]]
    """By suite: prompt template, sampling, pixel limits, metric, rewards, seed, data hash: what a repetition needs."""
    seconds: float

    def __repr__(self) -> str:
        """One line, for a notebook: every row would be pages."""
        score = self.first.score
        accuracies = ", ".join(f"{name} {result.score.accuracy:.3f}" for name, result in self.main.items())
        format_rate = f"{score.format_rate:.3f}" if score.format_rate == score.format_rate else "-"
        rows = counted(score.rows, "row")
        return f"<Report of step {self.step}, {rows}: accuracy {accuracies}; format rate {format_rate}>"

    @property
    def main(self) -> Mapping[str, Result]:
        """The first suite's results by decoding: of the rows of ``data.eval``, where there are any."""
        return next(iter(self.results.values()))

    @property
    def first(self) -> Result:
        """The first suite under its first decoding, usually greedy."""
        return next(iter(self.main.values()))

    @property
    def greedy(self) -> Score:
        """The first suite, one completion per row, always the likeliest token.

        Raises:
            KeyError: The first suite was not evaluated so.
        """
        return self.main["greedy"].score

    @property
    def sampled(self) -> Score | None:
        """The first suite at the rollout's temperature; None where it was not evaluated so."""
        return self.main["sampled"].score if "sampled" in self.main else None

    @property
    def greedy_rows(self) -> tuple[RowResult, ...]:
        """Rows of :attr:`greedy`; none where there is no such result."""
        return self.main["greedy"].rows if "greedy" in self.main else ()

    @property
    def sampled_rows(self) -> tuple[RowResult, ...]:
        """Rows of :attr:`sampled`; none where there is no such result."""
        return self.main["sampled"].rows if "sampled" in self.main else ()

    @property
    def settings(self) -> Mapping[str, Any]:
        """Of the first suite, what a repetition needs."""
        return next(iter(self.suite_settings.values()), {})

    def scores(self) -> dict[str, dict[str, Score]]:
        """Totals by suite and decoding."""
        return {
            suite: {decoding: result.score for decoding, result in results.items()}
            for suite, results in self.results.items()
        }

    def metrics(self) -> dict[str, float]:
        """Values by logged name: ``eval/…`` and ``eval/sampled/…``, of a named suite ``eval/{suite}/…``."""
        metrics: dict[str, float] = {}
        for suite, results in self.results.items():
            for decoding, result in results.items():
                metrics |= _named(result.score, metric_prefix(suite, decoding))
        return metrics

    def summary(self) -> dict[str, Any]:
        """JSON-ready totals and settings, without the rows; null where there is no number."""
        plain = {
            suite: {decoding: _plain(asdict(score)) for decoding, score in scores.items()}
            for suite, scores in self.scores().items()
        }
        further = {suite: scores for suite, scores in plain.items() if suite}
        return {
            "step": self.step,
            **{decoding: plain.get("", {}).get(decoding) for decoding in ("greedy", "sampled")},
            **({"suites": further} if further else {}),
            "settings": dict(self.suite_settings.get("", {})),
            **({"suite_settings": {name: dict(self.suite_settings[name]) for name in further}} if further else {}),
            "seconds": self.seconds,
        }


def metric_prefix(suite: str, decoding: str) -> str:
    """What the logged names of a suite under a decoding begin with.

    Example:
        >>> metric_prefix("", "greedy"), metric_prefix("", "sampled"), metric_prefix("hard", "sampled")
        ('eval/', 'eval/sampled/', 'eval/hard/sampled/')
    """
    return "eval/" + "".join(f"{part}/" for part in (suite, "" if decoding == "greedy" else decoding) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How one evaluation differs from an earlier one on the same rows."""

    gain: float
    """Difference of accuracies."""
    standard_error: float
    """Of the paired difference."""

    @property
    def significant(self) -> bool:
        """Whether the gain exceeds two paired standard errors."""
        return self.gain > 2 * self.standard_error


def score_rows(rows: Sequence[RowResult]) -> Score:
    """Sum up the rows of one evaluation.

    Args:
        rows: At least one.

    Returns:
        Means over rows; a row where the metric does not apply is left out of the accuracies, which are NaN (never
        a silent 0) where it applies to none.
    """
    judged = [r for r in rows if r.correct is not None]
    formed = sum(r.well_formed for r in judged)
    names = dict.fromkeys(name for r in rows for name in r.rewards)
    by_answer: dict[str, list[float]] = {}
    for row in judged:
        by_answer.setdefault(row.answer, []).append(row.correct or 0.0)
    return Score(
        accuracy=_mean([r.correct for r in judged if r.correct is not None], nothing=math.nan),
        format_rate=_mean([r.well_formed for r in rows]),
        accuracy_well_formed=sum(r.correct_well_formed for r in judged) / formed if formed else math.nan,
        rewards={
            n: _mean([v for r in rows for v in r.rewards.get(n, ()) if v is not None], nothing=math.nan) for n in names
        },
        length=_mean([r.length for r in rows]),
        truncated=_mean([r.truncated for r in rows]),
        by_answer={a: (_mean(by_answer[a]), len(by_answer[a])) for a in sorted(by_answer, key=_natural)},
        rows=len(rows),
    )


def paired_gain(
    before: Sequence[RowResult],
    after: Sequence[RowResult],
    *,
    of: Callable[[RowResult], float | None] = lambda row: row.correct,
) -> Gain:
    """Compare two evaluations of the same rows.

    gain = mean(d), standard error = std(d) / sqrt(n), with d = value after - value before of each row

    Args:
        before: Rows of the earlier evaluation.
        after: Rows of the later one; paired by id.
        of: What is compared of a row; None: the row has no value.

    Returns:
        Gain and standard error; 0 and infinity where no row is in both.
    """
    first = {r.id: value for r in before if (value := of(r)) is not None}
    pairs = [(first[r.id], value) for r in after if r.id in first and (value := of(r)) is not None]
    if len(pairs) < 2:
        return Gain(gain=0.0, standard_error=math.inf)
    differences = [b - a for a, b in pairs]
    mean = _mean(differences)
    variance = sum((d - mean) ** 2 for d in differences) / (len(differences) - 1)
    return Gain(gain=mean, standard_error=math.sqrt(variance / len(differences)))


def _mean(values: Sequence[float], *, nothing: float = 0.0) -> float:
    return sum(values) / len(values) if values else nothing


def _plain(value: Any) -> Any:
    """Put None in the place of NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


_TOTALS: Mapping[str, Callable[[Score], float]] = {
    "accuracy": lambda score: score.accuracy,
    "format_rate": lambda score: score.format_rate,
    "accuracy_well_formed": lambda score: score.accuracy_well_formed,
    "completions/mean_length": lambda score: score.length,
    "completions/clipped_ratio": lambda score: score.truncated,
}


def check_metric(name: str, prefixes: Sequence[str], *, where: str) -> None:
    """Refuse a metric that no evaluation logs. Rewards may log names of their own: these are believed.

    Args:
        name: For example ``eval/accuracy``.
        prefixes: Of all suites and decodings, from :func:`metric_prefix`.
        where: The key that holds it, for the message.

    Raises:
        ConfigError: There is no such metric.
    """
    names = [f"{prefix}{total}" for prefix in prefixes for total in _TOTALS]
    if name not in names and not any(name.startswith(f"{prefix}rewards/") for prefix in prefixes):
        expected = f"{', '.join(names)} or {prefixes[0]}rewards/NAME/mean"
        raise ConfigError(explain("There is no such eval metric", where=where, expected=expected, got=name))


def _named(score: Score, prefix: str) -> dict[str, float]:
    metrics = {name: read(score) for name, read in _TOTALS.items()}
    metrics |= {f"rewards/{name}/mean": value for name, value in score.rewards.items()}
    return {f"{prefix}{name}": value for name, value in metrics.items()}
