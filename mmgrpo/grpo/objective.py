"""What the loss is asked for: the settings of the objective, and the denominators of an optimizer step.

Values only. Knows no tensor, and not which YAML key a value came from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from mmgrpo.errors import explain

LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo"]
"""How token losses are averaged."""
Level = Literal["token", "sequence"]
"""What has a ratio of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The clipped policy objective and its KL term.

    Raises:
        ValueError: A value is out of its range, or ``delta`` would undo the clipping.
    """

    loss_type: LossType = "dapo"
    """grpo: mean over each completion's loss tokens, then over completions. dr_grpo: sum over completions times
    max_completion_length. dapo, bnpo: mean over all loss tokens of the optimizer step."""
    epsilon: float = 0.2
    """Ratios below 1 - epsilon are clipped where the advantage is negative."""
    epsilon_high: float | None = None
    """Ratios above 1 + epsilon_high are clipped where the advantage is positive; None: epsilon."""
    delta: float | None = None
    """Upper bound of the ratio where the advantage is negative; None: unbounded."""
    beta: float = 0.0
    """Weight of the KL term to the reference; 0: there is none."""
    importance_sampling_level: Level = "token"
    """token: each token has its ratio. sequence: one ratio per completion (GSPO)."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.loss_type not in get_args(LossType):
            raise ValueError(explain("Unknown loss_type", expected=", ".join(get_args(LossType)), got=self.loss_type))
        if self.importance_sampling_level not in get_args(Level):
            got = self.importance_sampling_level
            raise ValueError(
                explain("Unknown importance_sampling_level", expected=", ".join(get_args(Level)), got=got)
            )
        if not (self.epsilon >= 0 and self.upper >= 0 and self.beta >= 0):
            got = f"epsilon {self.epsilon}, epsilon_high {self.epsilon_high}, beta {self.beta}"
            raise ValueError(explain("epsilon, epsilon_high and beta cannot be negative", got=got))
        if self.delta is not None and not self.delta > 1 + self.upper:
            raise ValueError(
                explain(
                    "delta must be larger than 1 + epsilon_high, or it would undo the clipping",
                    expected=f"more than {1 + self.upper:g}",
                    got=f"{self.delta:g}",
                )
            )

    @property
    def upper(self) -> float:
        """Clip range above 1."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    def log_bounds(self) -> tuple[float, float, float]:
        """Give log(1 - epsilon), log(1 + epsilon_high), log(delta); infinite where there is no bound."""
        # A ratio is positive, so a lower bound of 0 or less never binds.
        low = math.log1p(-self.epsilon) if self.epsilon < 1 else -math.inf
        return low, math.log1p(self.upper), math.inf if self.delta is None else math.log(self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The denominators of one optimizer step, over all its micro-batches and ranks.

    Every micro-batch of the step is divided by these same numbers, so that the losses add up to the step's loss.
    """

    num_tokens: int
    """Completion tokens whose loss mask is True."""
    num_sequences: int
    """Completions with at least one such token."""
    max_completion_length: int
    """Longest completion allowed, in tokens; a constant of the run (only dr_grpo divides by it)."""
