"""``loss:`` the objective."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, OnlyWith, Plugin, Section


def _ratio_per_token(loss: Any) -> bool:
    return loss.importance_sampling_level == "token"


def _built_in_advantages(loss: Any) -> bool:
    return loss.advantages_fn is None


def _has_kl(loss: Any) -> bool:
    return loss.beta > 0


def _own_loss(loss: Any) -> bool:
    return loss.fn is not None


def _own_advantages(loss: Any) -> bool:
    return loss.advantages_fn is not None


class Loss(Section):
    """The objective."""

    fn: Plugin | None = None
    """A loss of your own in place of the clipped one: ``path.py:name``, ``module:name``, or the name of an installed
    entry point of ``mmgrpo.losses``."""
    args: Annotated[dict[str, Any], OnlyWith("fn", _own_loss)] = {}
    """Keyword arguments of ``fn``: of a class's constructor, or of every call of a function."""
    advantages_fn: Plugin | None = None
    """Advantages of your own: ``path.py:name``, ``module:name``, or the name of an installed entry point of
    ``mmgrpo.advantages``."""
    advantages_args: Annotated[dict[str, Any], OnlyWith("advantages_fn", _own_advantages)] = {}
    """Keyword arguments of ``advantages_fn``: of a class's constructor, or of every call of a function."""
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "dapo"
    """How tokens are averaged: dapo and bnpo over all tokens of the optimizer step, grpo over each completion and then
    over completions, dr_grpo by the constant max_completion_length."""
    epsilon: Float = Field(default=0.2, gt=0)
    """Clip range of the ratio, below 1."""
    epsilon_high: Float | None = Field(default=None, gt=0)
    """Clip range above 1 (clip-higher); None: epsilon."""
    delta: Annotated[Float | None, OnlyWith("importance_sampling_level: token", _ratio_per_token)] = Field(
        default=None, gt=1
    )
    """Upper bound of the ratio for negative advantages (two-sided clipping); must exceed 1 + epsilon_high."""
    beta: Float = Field(default=0.0, ge=0)
    """Weight of the KL term to the reference; 0 loads no reference."""
    use_bias_correction_kl: Annotated[bool, OnlyWith("beta above 0", _has_kl)] = False
    """Multiply the KL estimate of each token by its importance ratio (as DeepSeek-V3.2, and TRL by default)."""
    scale_rewards: Annotated[
        Literal["group", "batch", "none"], OnlyWith("advantages_fn: null", _built_in_advantages)
    ] = "group"
    """What advantages are divided by: the group's standard deviation, the batch's, or nothing (Dr. GRPO)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """The ratio of each token, or one ratio per completion (GSPO)."""
    mask_truncated_completions: bool = False
    """Leave completions that hit the length limit out of the loss, numerator and denominator."""
    num_iterations: Int = Field(default=1, ge=1)
    """Passes over each rollout."""

    @model_validator(mode="after")
    def _combinations(self) -> Loss:
        upper = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.delta is not None and self.delta <= 1 + upper:
            raise ValueError(
                f"loss.delta {self.delta:g} must be larger than 1 + loss.epsilon_high ({1 + upper:g}), "
                "or it would undo the clipping"
            )
        return self
