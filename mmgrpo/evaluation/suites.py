"""What is evaluated and how: suites of held-out rows, each with its decodings and its metric.

Reads the configuration; knows no engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmgrpo.config.eval import Eval
from mmgrpo.config.eval import Suite as SuiteSection
from mmgrpo.config.schema import Config
from mmgrpo.errors import ConfigError, explain
from mmgrpo.evaluation.results import check_metric, metric_prefix
from mmgrpo.plugins import load_object, plugin_errors, requested_names
from mmgrpo.reward.answers import Mode, read_answer
from mmgrpo.types import Sample, Sampling, ScoredGroup

ANSWER_PLACES: Mapping[Mode | None, str] = {
    "tag": "the last <answer> tag behind the reasoning",
    "boxed": r"the last \boxed{} behind the reasoning",
    "last_number": "the last number behind the reasoning",
    None: r"the last <answer> tag or \boxed{} behind the reasoning",
}
"""Where an answer is looked for, to tell whether a completion is well-formed; by ``mode`` of the metric's reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How completions of held-out rows are drawn."""

    name: str
    sampling: Sampling
    num_generations: int
    """Completions per row."""


def _greedy(sampling: Sampling, section: Eval) -> Decoding:
    likeliest = replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    return Decoding(name="greedy", sampling=likeliest, num_generations=1)


def _sampled(sampling: Sampling, section: Eval) -> Decoding:
    return Decoding(name="sampled", sampling=sampling, num_generations=section.num_generations)


DECODINGS: Mapping[str, Callable[[Sampling, Eval], Decoding]] = {"greedy": _greedy, "sampled": _sampled}
"""By the name in the YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What counts as accuracy: a reward, or a function of a user's own."""

    name: str
    """The reward, or how the YAML names the function."""
    function: Callable[..., Any] | None = None
    """The user's own; None: the fraction of completions whose reward is at least 1."""

    def of(self, scored: ScoredGroup) -> float | None:
        """Measure the completions of one row; None: the metric does not apply to it.

        Raises:
            ConfigError: The user's function raised, or gave no number.
        """
        if self.function is None:
            values = [v for v in scored.rewards[self.name].tolist() if v == v]  # NaN: does not apply
            return sum(v >= 1.0 for v in values) / len(values) if values else None
        offered = {
            "completions": [completion.text for completion in scored.group.completions],
            "answer": scored.group.prompt.sample.answer,
            "sample": scored.group.prompt.sample,
            "rewards": {name: [None if v != v else v for v in t.tolist()] for name, t in scored.rewards.items()},
        }
        names = requested_names(inspect.signature(self.function), tuple(offered))
        with plugin_errors(
            f"The evaluation metric {self.name} failed",
            where=f"sample {scored.group.prompt.sample.id}",
            expected=f"a function of any of {', '.join(offered)} that gives a number or None",
            fix="Correct the function.",
        ):
            value = self.function(**{name: offered[name] for name in names})
            return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Held-out rows with what is measured on them."""

    name: str
    """Its name in metrics and files; empty for the rows of ``data.eval``."""
    samples: Sequence[Sample]
    sampling: Sampling
    """How the rollout draws, from the streams of the evaluation."""
    decodings: tuple[Decoding, ...]
    metric: Metric
    batch_size: int
    """Prompts at once."""
    answer_mode: Mode | None
    """Where the metric's reward reads the answer; None: it has no argument ``mode``."""
    fixed: Mapping[str, Any]
    """What else pins the numbers: template, limits of media, model, rewards; saved with them."""


def open_metric(name: str | None, rewards: Sequence[str], *, folder: Path, where: str) -> Metric:
    """Choose what counts as accuracy.

    Args:
        name: Of a reward, or ``path.py:name`` of a user's own function; None: the first reward.
        rewards: Names of all rewards.
        folder: Folder of the YAML.
        where: The key, for messages.

    Raises:
        ConfigError: It names no reward, and no function that can be loaded.
    """
    if name is None or name in rewards:
        return Metric(name=name or rewards[0])
    if ":" not in name:
        expected = f"{', '.join(rewards)}, or path/to/file.py:name of a function of your own"
        raise ConfigError(explain(f"{where} names no reward", where=where, got=name, expected=expected))
    function = load_object(name, kind="evaluations", folder=folder, where=where)
    if not callable(function):
        raise ConfigError(explain("An evaluation metric must be callable", where=where, got=type(function).__name__))
    return Metric(name=name, function=function)


def open_suites(
    config: Config,
    rows: Mapping[str, Sequence[Sample]],
    *,
    sampling: Sampling,
    rewards: Mapping[str, Callable[..., Any]],
    folder: Path,
) -> tuple[Suite, ...]:
    """Tie the rows of each suite to its decodings and its metric; where there is no ``eval:``, to the defaults.

    Args:
        config: The configuration.
        rows: Samples by suite; ``""`` for those of ``data.eval``.
        sampling: How the rollout draws.
        rewards: The functions that score, by name.
        folder: Folder of the YAML.

    Raises:
        ConfigError: A metric names no reward.
    """
    section = config.eval or Eval()
    named = {"": None, **{suite.name: suite for suite in section.suites}}
    drawn = replace(sampling, seed=section.seed, stream="eval")
    suites: list[Suite] = []
    for name, samples in rows.items():
        metric = _metric(section, named[name], list(rewards), folder)
        mode = answer_mode(rewards[metric.name]) if metric.function is None else None
        decodings = tuple(DECODINGS[one](drawn, section) for one in _decodings(section, named[name]))
        fixed = {**_fixed(config, list(rewards)), "well_formed": ANSWER_PLACES[mode]}
        suites.append(
            Suite(
                name=name,
                samples=samples,
                sampling=drawn,
                decodings=decodings,
                metric=metric,
                batch_size=section.batch_size,
                answer_mode=mode,
                fixed=fixed,
            )
        )
    return tuple(suites)


def answer_mode(reward: Callable[..., Any]) -> Mode | None:
    r"""Tell where a reward reads the answer of a completion, by its argument or attribute ``mode``.

    Args:
        reward: A function with its arguments bound, or an object that can be called.

    Returns:
        None where it does not say; its answers are then looked for in an ``<answer>`` tag or a ``\boxed{}``.

    Example:
        >>> answer_mode(lambda completions, mode="boxed": [0.0])
        'boxed'
    """
    try:
        parameter = inspect.signature(reward).parameters.get("mode")
    except (TypeError, ValueError):  # of some callables made in C nothing can be read
        parameter = None
    mode: Any = getattr(reward, "mode", None) if parameter is None else parameter.default
    return mode if mode in ("tag", "boxed", "last_number") else None


def has_answer(text: str, mode: Mode | None) -> bool:
    """Whether an answer can be read from a completion, at the place that :data:`ANSWER_PLACES` names."""
    return any(read_answer(text, one) is not None for one in ((mode,) if mode else ("tag", "boxed")))


def check_evaluation(config: Config, rewards: Sequence[str], *, folder: Path) -> None:
    """Find choices that would only be missed hours later.

    Args:
        config: The configuration.
        rewards: Names of the rewards.
        folder: Folder of the YAML.

    Raises:
        ConfigError: A metric names no reward, or ``train.save_best`` no number of an evaluation.
    """
    section = config.eval or Eval()
    suites = [*([None] if config.data.eval or not section.suites else []), *section.suites]
    for suite in suites:
        _metric(section, suite, rewards, folder)
    if config.train.save_best and config.eval:
        prefixes = [
            metric_prefix(suite.name if suite else "", decoding)
            for suite in suites
            for decoding in _decodings(section, suite)
        ]
        check_metric(config.train.save_best, prefixes, where="train.save_best")
    if config.train.save_best and not config.eval:
        raise ConfigError(
            explain(
                "The best checkpoint is chosen by an evaluation, and there is none",
                where="train.save_best",
                got=config.train.save_best,
                fix="Add eval: {} to the YAML, or remove train.save_best.",
            )
        )


def _decodings(section: Eval, suite: SuiteSection | None) -> tuple[str, ...]:
    if suite is not None and suite.decoding is not None:
        return suite.decoding
    return ("greedy", "sampled") if section.sampled else ("greedy",)


def _metric(section: Eval, suite: SuiteSection | None, rewards: Sequence[str], folder: Path) -> Metric:
    if suite is not None and suite.metric is not None:
        return open_metric(suite.metric, rewards, folder=folder, where=f"eval.suites ({suite.name}) metric")
    return open_metric(section.metric, rewards, folder=folder, where="eval.metric")


def _fixed(config: Config, rewards: Sequence[str]) -> dict[str, Any]:
    return {
        "model": config.model.name,
        "max_pixels": config.model.max_pixels,
        "min_pixels": config.model.min_pixels,
        "chat_template": config.model.chat_template,
        "chat_template_kwargs": config.rollout.chat_template_kwargs,
        "template": config.data.template.model_dump(),
        "columns": config.data.columns.model_dump(),
        "background": config.data.background,
        "limits": {kind: getattr(config.data, kind).model_dump() for kind in ("image", "audio", "video")},
        "adapters": [adapter.model_dump() for adapter in config.data.adapters],
        "rewards": list(rewards),
        "reward_settings": [reward.model_dump(mode="json") for reward in config.rewards],
    }


def pinned_settings(suite: Suite, *, data_sha256: str) -> dict[str, Any]:
    """List everything that a repetition of a suite needs.

    Args:
        suite: What was evaluated.
        data_sha256: Of prompts, media and ground truths.

    Returns:
        Values by name, ready for JSON.
    """
    sampling = suite.sampling
    return {
        **suite.fixed,
        "metric": suite.metric.name,
        "rows": len(suite.samples),
        "data_sha256": data_sha256,
        "max_completion_length": sampling.max_completion_length,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": list(sampling.stop),
        "seed": sampling.seed,
        "num_generations": next((one.num_generations for one in suite.decodings if one.name == "sampled"), 0),
    }
