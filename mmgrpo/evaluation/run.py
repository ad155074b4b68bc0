"""Running an evaluation: held-out prompts through engine and rewards, greedily and sampled.

Trains nothing and changes nothing: its random streams are its own, and running means of rewards stay as they are.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from mmgrpo.contracts import Engine
from mmgrpo.data.encoders import prompt_batches
from mmgrpo.errors import ConfigError, explain
from mmgrpo.evaluation.report import Report, RowResult, score_rows
from mmgrpo.evaluation.settings import EvalSettings, settings_report
from mmgrpo.parallel.strategy import Single, Strategy
from mmgrpo.reward.answers import read_answer
from mmgrpo.types import Group, Prompt, Sample, Sampling, ScoredGroup

Value = TypeVar("Value")


class Scores(Protocol):
    """The rewards of the run."""

    names: tuple[str, ...]

    def score(self, groups: Sequence[Group], *, step: int = 0, training: bool = True) -> list[ScoredGroup]:
        """Score every completion."""
        ...


def evaluate(
    engine: Engine,
    rewards: Scores,
    samples: Sequence[Sample],
    encode: Callable[[Sample, int], Prompt],
    *,
    settings: EvalSettings,
    step: int = 0,
    threads: int = 0,
    dist: Strategy | None = None,
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
        threads: Make the prompts of the next batch while one is answered; 0: each when it is needed.
        dist: The ranks that share the rows; each gets the whole report. Default: this process alone.
        on_rows: Told how many rows are done after each batch (each way of decoding counts).

    Returns:
        The report; the same weights and settings give the same one.

    Raises:
        ConfigError: The metric names no reward.
    """
    start = time.perf_counter()
    metric = choose_metric(settings.metric, rewards.names)
    ways = _ways(settings)
    dist = dist or Single()
    places = range(dist.rank, len(samples), dist.world_size)
    own: list[list[RowResult]] = [[] for _ in ways]
    digests: list[str] = []
    for prompts in prompt_batches(samples, encode, size=settings.batch_size, places=places, threads=threads):
        digests += [_digest(prompt) for prompt in prompts]
        for (sampling, count), rows in zip(ways, own, strict=True):
            groups = engine.generate(prompts, [count] * len(prompts), sampling)
            rows += [_row(s, metric) for s in rewards.score(groups, step=step, training=False)]
            if on_rows is not None:
                on_rows(len(prompts) * dist.world_size)
    results = [_in_order(dist.all_gather(rows)) for rows in own]
    digest = hashlib.sha256("".join(_in_order(dist.all_gather(digests))).encode())
    greedy, sampled = (*results, [])[:2]
    if dist.is_main_process and results[0] and all(row.correct is None for rows in results for row in rows):
        _warn_unjudged(metric, results[0])
    return Report(
        step=step,
        greedy=score_rows(greedy),
        sampled=score_rows(sampled) if sampled else None,
        greedy_rows=tuple(greedy),
        sampled_rows=tuple(sampled),
        settings=settings_report(settings, metric=metric, rows=len(samples), data_sha256=digest.hexdigest()),
        seconds=time.perf_counter() - start,
    )


def choose_metric(asked: str | None, names: Sequence[str]) -> str:
    """Choose the reward that counts as accuracy.

    Args:
        asked: ``eval.metric``; None: the first reward.
        names: All rewards.

    Returns:
        Its name.

    Raises:
        ConfigError: The metric names no reward.
    """
    if asked is None:
        return names[0]
    if asked not in names:
        raise ConfigError(
            explain("eval.metric names no reward", where="eval.metric", got=asked, expected=", ".join(names))
        )
    return asked


def _warn_unjudged(metric: str, rows: Sequence[RowResult]) -> None:
    warnings.warn(
        explain(
            f"Reward {metric}, which counts as accuracy, applies to none of the {len(rows)} held-out rows",
            where=f"for example row {rows[0].id}, whose answer is {rows[0].answer!r:.80}",
            got=f"None for {rows[0].texts[0]!r:.120}",
            fix="Name the column of the truth (data.columns.answer), or another reward under eval.metric; for a "
            "completion that cannot be read return 0, not None.",
        ),
        stacklevel=3,
    )


def _ways(settings: EvalSettings) -> list[tuple[Sampling, int]]:
    """Ways of decoding, and completions of each row."""
    greedy = replace(settings.sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    sampled = [(settings.sampling, settings.num_generations)] if settings.sampled else []
    return [(greedy, 1), *sampled]


def _row(scored: ScoredGroup, metric: str) -> RowResult:
    group = scored.group
    values = scored.rewards[metric].tolist()
    judged = [v for v in values if v == v]  # NaN: does not apply
    texts = tuple(c.text for c in group.completions)
    count = len(group.completions)
    formed = [read_answer(group.prompt.prefill + text) is not None for text in texts]
    return RowResult(
        id=group.prompt.sample.id,
        answer=truth_text(group.prompt.sample.answer),
        texts=texts,
        rewards={n: tuple(None if v != v else v for v in t.tolist()) for n, t in scored.rewards.items()},
        correct=sum(v >= 1.0 for v in judged) / len(judged) if judged else None,
        well_formed=sum(formed) / count,
        correct_well_formed=sum(v >= 1.0 and f for v, f in zip(values, formed, strict=True)) / count,
        length=sum(len(c.token_ids) for c in group.completions) / count,
        truncated=sum(c.status == "length" for c in group.completions) / count,
        media=tuple(m.name for m in group.prompt.media),
    )


def truth_text(answer: Any) -> str:
    """The truth as a row of a table names it: the content of an answer tag, or the value as text."""
    text = str(answer)
    inner = read_answer(text) if "<answer>" in text else None
    return (inner if inner is not None else text).strip()


def _in_order(parts: Sequence[Sequence[Value]]) -> list[Value]:
    """Deal what the processes found back out, one of each in turn: the order of the rows."""
    return [part[i] for i in range(max(map(len, parts), default=0)) for part in parts if i < len(part)]


def _digest(prompt: Prompt) -> str:
    """Hash what was asked, what was shown and what is true: another word, pixel or truth is another hash."""
    digest = hashlib.sha256()
    sample = prompt.sample
    digest.update(repr((sample.id, str(sample.answer), prompt.text)).encode("utf-8", "surrogatepass"))
    for medium in prompt.media:
        data = medium.data
        digest.update(repr((medium.kind, medium.rate, getattr(data, "size", None))).encode())
        digest.update(data.tobytes())
    return digest.hexdigest()
