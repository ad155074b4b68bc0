"""``eval:`` held-out evaluation, of the rows of ``data.eval`` or of several suites."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from mmgrpo.config.base import Int, OnlyWith, Section
from mmgrpo.config.data import Source


def _listed(value: Any) -> Any:
    """Take one decoding without its brackets."""
    return (value,) if isinstance(value, str) else value


Decodings = Annotated[tuple[Literal["greedy", "sampled"], ...], BeforeValidator(_listed)]
"""Ways in which completions are drawn for an evaluation."""
_SAMPLED = OnlyWith("sampled: true", lambda section: section.samples())


class Suite(Section):
    """One entry of ``eval.suites``: rows of their own, with a metric and decodings of their own."""

    name: str
    """Its name in metrics: ``eval/{name}/…``. Letters, digits, ``_``, ``-`` and ``.``."""
    data: Source
    """Its rows, disjoint from the training rows."""
    metric: str | None = None
    """The reward that counts as accuracy here; null: ``eval.metric``."""
    decoding: Decodings | None = None
    """greedy, sampled, or a list of both; null: as ``eval.sampled`` says."""

    @field_validator("name")
    @classmethod
    def _in_metric_names(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.-]+", value):
            raise ValueError(f"{value!r} stands in names of metrics and files; use letters, digits, _, - and .")
        return value

    @field_validator("decoding")
    @classmethod
    def _some(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError("name greedy, sampled or both, each once; leave the key out for the default")
        return value


class Eval(Section):
    """Held-out evaluation: before step 0, every eval_steps, and at the end."""

    eval_steps: Int = Field(default=0, ge=0)
    """Evaluate every so many steps; 0: only before and after."""
    at_start: bool = True
    """Evaluate before the first step."""
    limit: Int | None = Field(default=None, ge=1)
    """Use this many held-out rows; None: all."""
    metric: str | None = None
    """The reward that counts as accuracy (its share of values of at least 1); default: the first reward."""
    sampled: bool = True
    """Also evaluate at the rollout's temperature, not only greedily."""
    num_generations: Annotated[Int, _SAMPLED] = Field(default=1, ge=1)
    """Sampled completions per held-out prompt."""
    batch_size: Int = Field(default=256, ge=1)
    """Prompts evaluated at once."""
    seed: Annotated[Int, _SAMPLED] = Field(default=1234, ge=0)
    """Random streams of the sampled evaluation."""
    suites: tuple[Suite, ...] = ()
    """Further sets of held-out rows, each with a name; rows of ``data.eval`` are evaluated beside them."""

    @model_validator(mode="after")
    def _names(self) -> Eval:
        names = [suite.name for suite in self.suites]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"eval.suites has two suites called {twice}; give each a name of its own")
        return self

    def samples(self) -> bool:
        """Tell whether anything is evaluated by sampling."""
        return self.sampled or any("sampled" in (suite.decoding or ()) for suite in self.suites)
