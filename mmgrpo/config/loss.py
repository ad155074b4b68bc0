"""``loss:`` the objective."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmgrpo.config.base import Float, Int, Section


class Loss(Section):
    """The objective."""

    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "dapo"
    """How tokens are averaged: dapo and bnpo over all tokens of the optimizer step, grpo over each completion and then
    over completions, dr_grpo by the constant max_completion_length."""
    epsilon: Float = Field(default=0.2, gt=0)
    """Clip range of the ratio, below 1."""
    epsilon_high: Float | None = Field(default=None, gt=0)
    """Clip range above 1 (clip-higher); None: epsilon."""
    delta: Float | None = Field(default=None, gt=1)
    """Upper bound of the ratio for negative advantages (two-sided clipping); must exceed 1 + epsilon_high."""
    beta: Float = Field(default=0.0, ge=0)
    """Weight of the KL term to the reference; 0 loads no reference."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What advantages are divided by: the group's standard deviation, the batch's, or nothing (Dr. GRPO)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """The ratio of each token, or one ratio per completion (GSPO)."""
    mask_truncated_completions: bool = False
    """Leave completions that hit the length limit out of the loss, numerator and denominator."""
    num_iterations: Int = Field(default=1, ge=1)
    """Passes over each rollout."""
