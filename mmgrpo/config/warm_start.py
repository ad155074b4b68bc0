"""``warm_start:`` supervised steps before GRPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmgrpo.config.base import Float, Int, Section, Text
from mmgrpo.config.data import Source


class WarmStart(Section):
    """Supervised steps before GRPO: teach the answer form (and a little of the task) from rows with a target."""

    data: Source
    """Rows to imitate, disjoint from training and evaluation."""
    target: Text = "{{ answer }}"
    """What the policy should write; ``{{ column }}`` stands for a column of the row."""
    num_steps: Int = Field(ge=1)
    """Optimizer steps."""
    batch_size: Int = Field(default=64, ge=1)
    """Rows per step."""
    learning_rate: Float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    warmup_steps: Int = Field(default=20, ge=0)
    """Steps over which the learning rate rises."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "cosine"
    """Shape after warm-up."""
    weight_decay: Float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    unfreeze: bool = True
    """Train every part, also those that model.freeze keeps still during GRPO."""
    max_batch_tokens: Int = Field(default=16384, ge=64)
    """Packed tokens per micro-batch."""
    seed: Int = Field(default=0, ge=0)
    """Order of the rows."""
