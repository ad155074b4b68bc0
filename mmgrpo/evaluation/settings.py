"""How an evaluation decodes and judges, from the configuration, with all that pins its numbers.

Knows the configuration; no engine and no reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmgrpo.config.eval import Eval
from mmgrpo.config.schema import Config
from mmgrpo.types import Sampling

WELL_FORMED = "the last <answer> tag behind the reasoning"
"""Where an answer is looked for, to tell whether a completion is well-formed."""


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
    """What else pins the number: template, limits of media, model, rewards; saved with the report."""


def eval_settings(config: Config, *, sampling: Sampling, rewards: Sequence[str]) -> EvalSettings:
    """Read the settings of an evaluation; where there is no ``eval:`` section, its defaults.

    Args:
        config: The configuration.
        sampling: How the rollout draws.
        rewards: Names of the rewards that judge.

    Returns:
        The settings.
    """
    section = config.eval or Eval()
    return EvalSettings(
        sampling=replace(sampling, seed=section.seed, stream="eval"),
        sampled=section.sampled,
        num_generations=section.num_generations,
        batch_size=section.batch_size,
        metric=section.metric,
        fixed={
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
            "well_formed": WELL_FORMED,
        },
    )


def settings_report(settings: EvalSettings, *, metric: str, rows: int, data_sha256: str) -> dict[str, Any]:
    """List everything that a repetition of an evaluation needs.

    Args:
        settings: How it was run.
        metric: The reward that counted as accuracy.
        rows: Held-out rows.
        data_sha256: Of prompts, media and truths.

    Returns:
        Values by name, ready for JSON.
    """
    s = settings.sampling
    return {
        **settings.fixed,
        "metric": metric,
        "rows": rows,
        "data_sha256": data_sha256,
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
