"""``rollout:`` how completions are drawn."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from pydantic import Field, field_validator

from mmgrpo.config.base import Float, Int, Section


class Rollout(Section):
    """Writing completions."""

    engine: str = "local"
    """local: in this process, each prompt computed once. A user's own: path.py:name, module:name, or the name of an
    installed entry point."""
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
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    chat_template_kwargs: dict[str, Any] = {}
    """Handed to the chat template, for example {enable_thinking: false}."""
    max_rows: Int = Field(default=1024, ge=1)
    """Completions decoded side by side; memory grows with it, results do not change."""
    dynamic_sampling: bool = False
    """Replace groups whose totals are all equal, which teach nothing, by groups of further prompts (DAPO)."""
    max_resample_times: Int = Field(default=3, ge=1, le=32)
    """dynamic_sampling: further rollouts of a step at the most; what is missing then is filled with such groups."""
    seed: Int = Field(default=0, ge=0)
    """Random streams of the completions."""

    @field_validator("engine")
    @classmethod
    def _engine(cls, name: str) -> str:
        known = ["local", *entry_points(group="mmgrpo.engines").names]
        if ":" in name or name in known:
            return name
        near = get_close_matches(name, known, n=1)
        advice = f"write {near[0]}" if near else "or path/to/file.py:name for one of your own"
        raise ValueError(f"no engine is called {name!r:.80}; there is {', '.join(known)}; {advice}")
