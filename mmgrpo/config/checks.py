"""``checks:`` how the run checks itself."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.base import Float, Int, Section


class Checks(Section):
    """The run checks itself. Each can be switched off; the bounds are for float32, and wider for bfloat16."""

    media_count: bool = True
    """Placeholder tokens equal encoder features, before each forward."""
    engine_logprobs: bool = True
    """First step: the engine's log-probs equal the trainer's."""
    packed_equals_plain: bool = True
    """First step: the packed forward equals plain rows, log-probs and gradients."""
    picture_swap: bool = True
    """First step: another image must change the log-probs."""
    weight_sync: bool = True
    """After each weight sync: an engine with weights of its own writes with the trainer's."""
    finite: bool = True
    """Stop before an optimizer step whose loss or gradient is not finite."""
    constant_reward_steps: Int = Field(default=20, ge=0)
    """Warn when a reward has not changed for so many steps; 0: never."""
    truncated_share: Float = Field(default=0.5, gt=0, le=1)
    """Warn when more than this share of completions hit the length limit."""
    drift_logprobs: Float = Field(default=0.02, gt=0)
    """Warn when the engine's and the trainer's log-probs differ by more than this on average, in nats."""
