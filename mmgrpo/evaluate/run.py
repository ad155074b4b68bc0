"""Running an evaluation: held-out prompts through engine and rewards, greedily and sampled.

Trains nothing and changes nothing: its random streams are its own, and running means of rewards stay as they are.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mmgrpo.contracts import Engine
from mmgrpo.errors import ConfigError, explain
from mmgrpo.evaluate.report import Report, RowResult, score_rows
from mmgrpo.reward.answers import read_answer
from mmgrpo.types import Group, Prompt, Sample, Sampling, ScoredGroup


class Scores(Protocol):
    """The rewards of the run."""

    names: tuple[str, ...]

    def score(self, groups: Sequence[Group], *, step: int = 0, training: bool = True) -> list[ScoredGroup]:
        """Score every completion."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """How an evaluation decodes and judges."""

    sampling: Sampling
    """Of the sampled evaluation; the greedy one uses the same with temperature 0."""
    sampled: bool
    """Evaluate sampled completions, too."""
    num_generations: int
    """Sampled completions per row."""
    batch_size: int
    """Prompts at once."""
    metric: str | None
    """The reward that counts as accuracy; None: the first."""
    fixed: Mapping[str, Any]
    """What else pins the number: template, pixel limits, model; saved with the report."""


def evaluate(
    engine: Engine,
    rewards: Scores,
    samples: Sequence[Sample],
    encode: Callable[[Sample, int], Prompt],
    *,
    settings: EvalSettings,
    step: int = 0,
    on_rows: Callable[[int], None] | None = None,
) -> Report:
    """Evaluate the policy that the engine holds.

    Args:
        engine: Writes the completions.
        rewards: Score them.
        samples: Held-out rows.
        encode: Turns a sample and its place into a prompt.
        settings: How.
        step: Step of the run, for the report.
        on_rows: Told how many rows are done after each batch (each way of decoding counts).

    Returns:
        The report; the same weights and settings give the same one.

    Raises:
        ConfigError: The metric names no reward.
    """
    start = time.perf_counter()
    metric = _metric(settings.metric, rewards.names)
    greedy_sampling = replace(settings.sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    ways = [(greedy_sampling, 1)]
    if settings.sampled:
        ways.append((settings.sampling, settings.num_generations))
    results: list[list[RowResult]] = [[] for _ in ways]
    for batch in _batches(samples, settings.batch_size):
        prompts = [encode(sample, place) for place, sample in batch]
        for (sampling, count), rows in zip(ways, results, strict=True):
            groups = engine.generate(prompts, [count] * len(prompts), sampling)
            rows += [_row(s, metric) for s in rewards.score(groups, step=step, training=False)]
            if on_rows is not None:
                on_rows(len(prompts))
    sampled = results[1] if settings.sampled else []
    return Report(
        step=step,
        greedy=score_rows(results[0]),
        sampled=score_rows(sampled) if sampled else None,
        greedy_rows=tuple(results[0]),
        sampled_rows=tuple(sampled),
        settings=_settings(settings, metric, samples),
        seconds=time.perf_counter() - start,
    )


def _metric(asked: str | None, names: Sequence[str]) -> str:
    if asked is None:
        return names[0]
    if asked not in names:
        raise ConfigError(
            explain("eval.metric names no reward", where="eval.metric", got=asked, expected=", ".join(names))
        )
    return asked


def _batches(samples: Sequence[Sample], size: int) -> Iterator[list[tuple[int, Sample]]]:
    for start in range(0, len(samples), size):
        yield [(i, samples[i]) for i in range(start, min(start + size, len(samples)))]


def _row(scored: ScoredGroup, metric: str) -> RowResult:
    group = scored.group
    judged = [v for v in scored.rewards[metric].tolist() if v == v]  # NaN: does not apply
    texts = tuple(c.text for c in group.completions)
    count = len(group.completions)
    return RowResult(
        id=group.prompt.sample.id,
        answer=truth_text(group.prompt.sample.answer),
        texts=texts,
        rewards={n: tuple(None if v != v else v for v in t.tolist()) for n, t in scored.rewards.items()},
        correct=sum(v >= 1.0 for v in judged) / len(judged) if judged else None,
        well_formed=sum(read_answer(group.prompt.prefill + text) is not None for text in texts) / count,
        length=sum(len(c.token_ids) for c in group.completions) / count,
        truncated=sum(c.finish_reason == "length" for c in group.completions) / count,
        media=tuple(m.name for m in group.prompt.media),
    )


def truth_text(answer: Any) -> str:
    """The truth as a row of a table names it: the content of an answer tag, or the value as text."""
    text = str(answer)
    inner = read_answer(text) if "<answer>" in text else None
    return (inner if inner is not None else text).strip()


def _settings(settings: EvalSettings, metric: str, samples: Sequence[Sample]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr((sample.id, str(sample.answer))).encode("utf-8", "surrogatepass"))
    s = settings.sampling
    return {
        **settings.fixed,
        "metric": metric,
        "rows": len(samples),
        "data_sha256": digest.hexdigest(),
        "max_completion_length": s.max_completion_length,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k,
        "min_p": s.min_p,
        "repetition_penalty": s.repetition_penalty,
        "stop": list(s.stop),
        "seed": s.seed,
        "num_generations": settings.num_generations if settings.sampled else 0,
    }
