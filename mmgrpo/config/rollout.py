"""``rollout:`` how completions are drawn."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points
from typing import Annotated, Any

from pydantic import Field, field_validator

from mmgrpo.config.base import Float, Int, OnlyWith, Plugin, Section, Text
from mmgrpo.errors import short_repr

_NOT_YET = ("vllm", "sglang", "lmdeploy", "hf", "transformers")


class Rollout(Section):
    """Writing completions."""

    engine: Plugin = "local"
    """local: in this process, each prompt computed once. Or an engine of your own: ``path.py:name``, ``module:name``,
    or the name of an installed entry point of ``mmgrpo.engines``."""
    num_generations: Int = Field(default=8, ge=2)
    """G, completions per prompt. A group of one has nothing to compare."""
    max_completion_length: Int = Field(default=256, ge=1)
    """Tokens per completion, the end token included."""
    temperature: Float = Field(default=1.0, gt=0)
    """Sampling temperature; log-probs of the update use it too."""
    top_p: Float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens that holds this probability."""
    top_k: Int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0: all."""
    min_p: Float = Field(default=0.0, ge=0, le=1)
    """Drop tokens less likely than this share of the likeliest."""
    repetition_penalty: Float = Field(default=1.0, gt=0)
    """Above 1: tokens already seen become less likely."""
    stop: tuple[Text, ...] = ()
    """Strings that end a completion."""
    chat_template_kwargs: dict[str, Any] = {}
    """Handed to the chat template, for example {enable_thinking: false}."""
    max_rows: Annotated[Int, OnlyWith("engine: local", lambda rollout: rollout.engine == "local")] = Field(
        default=1024, ge=1
    )
    """Completions decoded side by side; memory grows with it, results do not change."""
    dynamic_sampling: bool = False
    """Replace groups whose totals are all equal, which teach nothing, by groups of further prompts (DAPO)."""
    max_resample_times: Annotated[
        Int, OnlyWith("dynamic_sampling: true", lambda rollout: rollout.dynamic_sampling)
    ] = Field(default=3, ge=1, le=32)
    """dynamic_sampling: further rollouts of a step at the most; what is missing then is filled with such groups."""
    seed: Int = Field(default=0, ge=0)
    """Random streams of the completions."""

    @field_validator("engine")
    @classmethod
    def _known(cls, value: str) -> str:
        names = ["local", *(point.name for point in entry_points(group="mmgrpo.engines"))]
        if value in names or ":" in value:
            return value
        known = f"expected {', '.join(names)}, or path.py:name"
        if value.lower() in _NOT_YET:
            raise ValueError(f"{known}, got {value!r}; write local")
        near = difflib.get_close_matches(value, names, n=1) if len(value) < 100 else []
        raise ValueError(f"{known}, got {short_repr(value)}; write {near[0] if near else 'local'}")
