"""``eval:`` held-out evaluation."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.base import Int, Section


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
    num_generations: Int = Field(default=1, ge=1)
    """Sampled completions per held-out prompt."""
    batch_size: Int = Field(default=256, ge=1)
    """Prompts evaluated at once."""
    seed: Int = Field(default=1234, ge=0)
    """Random streams of the sampled evaluation."""
