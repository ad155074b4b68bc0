"""Running an evaluation: held-out prompts through engine and rewards, suite by suite and decoding by decoding.

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
from mmgrpo.data.prompt_loader import prompt_batches
from mmgrpo.errors import ConfigError, explain
from mmgrpo.evaluation.results import Report, Result, RowResult, score_rows
from mmgrpo.evaluation.suites import Metric, Suite, has_answer, pinned_settings
from mmgrpo.observe.progress import Progress
from mmgrpo.parallel.strategy import Single, Strategy
from mmgrpo.reward.answers import Mode, read_answer
from mmgrpo.types import Group, Prompt, Sample, ScoredGroup

Value = TypeVar("Value")


class Scores(Protocol):
    """The rewards of the run."""

    names: tuple[str, ...]

    def score(self, groups: Sequence[Group], *, step: int = 0, training: bool = True) -> list[ScoredGroup]:
        """Score every completion."""
        ...


class SuiteEvaluator:
    """Evaluates the policy that an engine holds; fulfils :class:`mmgrpo.contracts.Evaluator`.

    Args:
        engine: Writes the completions.
        rewards: Score them.
        build_prompt: Turns a sample and its place into a prompt.
        suites: What is evaluated, at least one.
        threads: Make the prompts of the next batch while one is answered; 0: each when it is needed.
        dist: Ranks that share the rows; each gets the whole report. Default: this process alone.
        progress: Where it is shown how far it is; None: nowhere.
    """

    def __init__(
        self,
        engine: Engine,
        rewards: Scores,
        build_prompt: Callable[[Sample, int], Prompt],
        suites: Sequence[Suite],
        *,
        threads: int = 0,
        dist: Strategy | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._engine, self._rewards, self._build_prompt = engine, rewards, build_prompt
        self.suites, self._threads, self._dist, self._progress = tuple(suites), threads, dist or Single(), progress

    def evaluate(
        self,
        step: int,
        *,
        suites: Sequence[Suite] | None = None,
        limit: int | None = None,
        on_rows: Callable[[int], None] = lambda rows: None,
    ) -> Report:
        """Evaluate the policy as it is now.

        Args:
            step: Steps done, for the report.
            suites: What is evaluated; None: all of :attr:`suites`.
            limit: Use this many rows of each.
            on_rows: Told how many rows are done after each batch (each decoding counts).

        Returns:
            The report; the same weights and settings give the same one.

        Raises:
            ConfigError: There is nothing to evaluate, or the limit is below 1.
        """
        chosen = [first_rows(suite, limit) for suite in (self.suites if suites is None else suites)]
        if not chosen:
            fix = "Pass rows, or set data.eval."
            raise ConfigError(explain("The run has no held-out rows", where="data.eval", fix=fix))
        if self._progress is None:
            return self._evaluate(chosen, step, on_rows)
        total = sum(len(suite.decodings) * len(suite.samples) for suite in chosen)
        with self._progress.phase("evaluation", total, unit="row", every=0) as advance:

            def on_batch(rows: int) -> None:
                advance({}, rows)
                on_rows(rows)

            return self._evaluate(chosen, step, on_batch)

    def _evaluate(self, suites: Sequence[Suite], step: int, on_rows: Callable[[int], None]) -> Report:
        start = time.perf_counter()
        results: dict[str, dict[str, Result]] = {}
        settings: dict[str, dict[str, Any]] = {}
        for suite in suites:
            results[suite.name], digest = self._suite(suite, step, on_rows)
            settings[suite.name] = pinned_settings(suite, data_sha256=digest)
        self._engine.metrics()  # what these completions measured is no metric of the next step
        return Report(step=step, results=results, suite_settings=settings, seconds=time.perf_counter() - start)

    def _suite(self, suite: Suite, step: int, on_rows: Callable[[int], None]) -> tuple[dict[str, Result], str]:
        dist = self._dist
        local: list[list[RowResult]] = [[] for _ in suite.decodings]
        digests: list[str] = []
        places = range(dist.rank, len(suite.samples), dist.world_size)
        for prompts in prompt_batches(
            suite.samples, self._build_prompt, size=suite.batch_size, indices=places, threads=self._threads
        ):
            digests += [_digest(prompt) for prompt in prompts]
            for decoding, rows in zip(suite.decodings, local, strict=True):
                counts = [decoding.num_generations] * len(prompts)
                groups = self._engine.generate(prompts, counts, decoding.sampling)
                rows += [
                    _row(scored, suite.metric, suite.answer_mode)
                    for scored in self._rewards.score(groups, step=step, training=False)
                ]
                on_rows(len(prompts) * dist.world_size)
        everyone = [tuple(_in_order(dist.all_gather(rows))) for rows in local]
        digest = hashlib.sha256("".join(_in_order(dist.all_gather(digests))).encode()).hexdigest()
        if dist.is_main_process and everyone[0] and all(row.correct is None for rows in everyone for row in rows):
            _warn_not_applied(suite.metric.name, everyone[0])
        return {
            decoding.name: Result(score=score_rows(rows), rows=rows)
            for decoding, rows in zip(suite.decodings, everyone, strict=True)
        }, digest


def first_rows(suite: Suite, limit: int | None) -> Suite:
    """Give the suite with its first rows only.

    Args:
        suite: The suite.
        limit: Use this many rows; None: all.

    Raises:
        ConfigError: The limit is below 1.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        expected = "a whole number of rows, at least 1"
        raise ConfigError(explain("The limit cannot be used", where="limit", expected=expected, got=repr(limit)))
    if limit is None or limit >= len(suite.samples):
        return suite
    return replace(suite, samples=_First(suite.samples, limit))


class _First(Sequence[Sample]):
    """The first samples, each made when it is asked for."""

    def __init__(self, samples: Sequence[Sample], count: int) -> None:
        self._samples: Any = samples
        self._count = count

    def where(self, index: int) -> str:
        """Say where sample ``index`` came from, for messages."""
        return self._samples.where(index)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._samples[range(self._count)[index]] if isinstance(index, int) else list(self)[index]


def _warn_not_applied(metric: str, rows: Sequence[RowResult]) -> None:
    warnings.warn(
        explain(
            f"{metric}, which counts as accuracy, applies to none of the {len(rows)} held-out rows",
            where=f"for example row {rows[0].id}, whose answer is {rows[0].answer!r:.80}",
            got=f"None for {rows[0].texts[0]!r:.120}",
            fix="Name the column of the ground truth (data.columns.answer), or another reward under eval.metric; "
            "for a completion that cannot be read return 0, not None.",
        ),
        stacklevel=3,
    )


def _row(scored: ScoredGroup, metric: Metric, answer_mode: Mode | None) -> RowResult:
    group = scored.group
    correct = metric.of(scored)
    texts = tuple(c.text for c in group.completions)
    count = len(group.completions)
    right = [bool(correct)] * count
    if metric.function is None:
        right = [value >= 1.0 for value in scored.rewards[metric.name].tolist()]
    formed = [has_answer(group.prompt.prefill + text, answer_mode) for text in texts]
    return RowResult(
        id=group.prompt.sample.id,
        answer=ground_truth_text(group.prompt.sample.answer),
        texts=texts,
        rewards={n: tuple(None if v != v else v for v in t.tolist()) for n, t in scored.rewards.items()},
        correct=correct,
        well_formed=sum(formed) / count,
        correct_well_formed=sum(r and f for r, f in zip(right or [bool(correct)] * count, formed, strict=True))
        / count,
        length=sum(len(c.token_ids) for c in group.completions) / count,
        truncated=sum(c.status == "length" for c in group.completions) / count,
        media=tuple(m.name for m in group.prompt.media),
    )


def ground_truth_text(answer: Any) -> str:
    """The ground truth as a row of a table names it: the content of an answer tag, or the value as text."""
    text = str(answer)
    inner = read_answer(text) if "<answer>" in text else None
    return (inner if inner is not None else text).strip()


def _in_order(parts: Sequence[Sequence[Value]]) -> list[Value]:
    """Deal the rows of all ranks back out, one of each in turn: the order of the rows."""
    return [part[i] for i in range(max(map(len, parts), default=0)) for part in parts if i < len(part)]


def _digest(prompt: Prompt) -> str:
    """Hash what was asked, what was shown and what is true: another word, pixel or truth is another hash."""
    digest = hashlib.sha256()
    sample = prompt.sample
    digest.update(repr((sample.id, str(sample.answer), prompt.text)).encode("utf-8", "surrogatepass"))
    for item in prompt.media:
        data = item.data
        digest.update(repr((item.kind, item.rate, getattr(data, "size", None))).encode())
        digest.update(data.tobytes())
    return digest.hexdigest()
