"""``train:`` steps, optimizer and checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, OnlyWith, Section


def _by_steps(train: Any) -> bool:
    return train.num_epochs is None or train.num_steps is not None  # both are refused with a sentence of their own


def _by_epochs(train: Any) -> bool:
    return train.num_steps is None or train.num_epochs is not None


_ADAMW = OnlyWith("optim: adamw", lambda train: train.optim == "adamw")
_SAVES = OnlyWith("save_steps above 0", lambda train: train.save_steps > 0)


class Train(Section):
    """Steps, optimizer, checkpoints."""

    num_steps: Annotated[Int | None, OnlyWith("num_epochs: null", _by_steps)] = Field(default=None, ge=0)
    """Steps of the run: one rollout and its optimizer steps each. Give this or num_epochs."""
    num_epochs: Annotated[Float | None, OnlyWith("num_steps: null", _by_epochs)] = Field(default=None, gt=0)
    """Passes over the training rows."""
    prompts_per_step: Int = Field(default=8, ge=1)
    """Prompts per rollout; completions per step = prompts_per_step x num_generations."""
    optimizer_steps: Int = Field(default=1, ge=1)
    """Optimizer steps per rollout and iteration; must divide prompts_per_step."""
    max_batch_tokens: Int = Field(default=16384, ge=64)
    """Tokens per micro-batch of the update, a prompt counted once under the packed layout and once per completion,
    with padding, under ``rows``; memory grows with it, results do not change. The rollout is bounded by
    ``rollout.max_rows``."""
    learning_rate: Float = Field(default=1e-6, ge=0)
    """Peak learning rate."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after warm-up; linear and cosine end at zero at the last step."""
    warmup_steps: Int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from zero."""
    optim: Literal["adamw", "sgd"] = "adamw"
    """Optimizer."""
    weight_decay: Float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    adam_beta1: Annotated[Float, _ADAMW] = Field(default=0.9, ge=0, lt=1)
    """AdamW: decay of the gradient's mean."""
    adam_beta2: Annotated[Float, _ADAMW] = Field(default=0.99, ge=0, lt=1)
    """AdamW: decay of the squared gradient's mean."""
    adam_epsilon: Annotated[Float, _ADAMW] = Field(default=1e-8, gt=0)
    """AdamW: added to the denominator."""
    max_grad_norm: Float = Field(default=1.0, ge=0)
    """Clip the gradient's norm; 0: never."""
    max_seconds: Float | None = Field(default=None, gt=0)
    """Stop (and save) after this many seconds."""
    output_dir: str = "runs/{name}"
    """Run folder; {name} is the YAML's name, and a taken folder gets a number."""
    save_steps: Int = Field(default=50, ge=0)
    """Checkpoint every so many steps, and at any end that leaves the weights whole; 0: only at the end."""
    save_total_limit: Annotated[Int | None, _SAVES] = Field(default=None, ge=1)
    """Keep the newest so many checkpoints (and the best). null: all of them, or 2 where save_steps is left out too."""
    save_best: str | None = None
    """Also keep the checkpoint with the highest value of this eval metric, for example eval/accuracy."""
    seed: Int = Field(default=0, ge=0)
    """Seeds Python, numpy and torch; data and rollout have seeds of their own."""
    threads: Int | None = Field(default=None, ge=1)
    """CPU threads of torch; None: torch's own choice."""

    @model_validator(mode="after")
    def _combinations(self) -> Train:
        if self.prompts_per_step % self.optimizer_steps:
            below = max(n for n in range(1, self.optimizer_steps) if self.prompts_per_step % n == 0)
            above = -(-self.prompts_per_step // self.optimizer_steps) * self.optimizer_steps
            raise ValueError(
                f"train.optimizer_steps {self.optimizer_steps} does not divide train.prompts_per_step "
                f"{self.prompts_per_step}: each optimizer step needs the same number of whole groups; write "
                f"train.optimizer_steps: {below}, or train.prompts_per_step: {above}"
            )
        if self.num_steps is not None and self.num_epochs is not None:
            raise ValueError("train.num_steps and train.num_epochs both give the length of the run; write one of them")
        if not {"save_steps", "save_total_limit"} & self.model_fields_set:
            # nobody asked for these checkpoints, so they must not fill the disk; set here as Model sets its lora
            object.__setattr__(self, "save_total_limit", 2)
        return self
