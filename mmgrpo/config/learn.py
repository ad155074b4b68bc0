"""``rollout:``, ``rewards:``, ``loss:`` and ``train:``: how completions are drawn, scored and learned from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, Section


class Rollout(Section):
    """Writing completions."""

    engine: Literal["local"] = "local"
    """local: in this process, each prompt computed once."""
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


class Reward(Section):
    """One reward function. Keys of its own (constructor arguments) go under ``args``."""

    fn: str
    """``path.py:name``, ``module:name``, or the name of an installed entry point."""
    weight: Float = 1.0
    """Weight in the total; only with role: add."""
    name: str | None = None
    """Name in logs; default: the function's."""
    args: dict[str, Any] = {}
    """Keyword arguments: of a class's constructor, or of every call of a function."""
    style: Literal["auto", "native", "trl", "swift", "easyr1"] = "auto"
    """Whose conventions it follows; auto knows ms-swift classes and EasyR1 functions, all others are native."""
    role: Literal["add", "gate", "metric"] = "add"
    """add: weighted into the total; gate: multiplies the total; metric: logged only."""
    scale: Literal["none", "running", "group"] = "none"
    """Before weighting: as it is, by mean and deviation over the run, or by those of each group (GDPO)."""
    workers: Int = Field(default=0, ge=0)
    """Worker processes that score group by group; 0: in this process."""
    timeout_seconds: Float | None = Field(default=None, gt=0)
    """Longest time for one call; a function that is not async then runs in a worker process. None: no limit."""
    on_error: Literal["stop", "skip_group"] = "stop"
    """When it raises, takes too long or breaks its contract: stop, or leave the group out of the step (counted)."""
    cache: bool = True
    """Keep the values of a reward that declares itself pure."""

    @model_validator(mode="after")
    def _role(self) -> Reward:
        if self.role != "add":
            unused = [key for key in ("weight", "scale") if key in self.model_fields_set]
            if unused:
                raise ValueError(f"{', '.join(unused)} has no meaning with role: {self.role}; leave it out")
        return self


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


class Train(Section):
    """Steps, optimizer, checkpoints."""

    num_steps: Int | None = Field(default=None, ge=0)
    """Steps of the run: one rollout and its optimizer steps each. Give this or num_epochs."""
    num_epochs: Float | None = Field(default=None, gt=0)
    """Passes over the training rows."""
    prompts_per_step: Int = Field(default=8, ge=1)
    """Prompts per rollout; completions per step = prompts_per_step x num_generations."""
    optimizer_steps: Int = Field(default=1, ge=1)
    """Optimizer steps per rollout and iteration; must divide prompts_per_step."""
    max_batch_tokens: Int = Field(default=16384, ge=1)
    """Packed tokens per micro-batch; memory grows with it, results do not change."""
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
    adam_beta1: Float = Field(default=0.9, ge=0, lt=1)
    """AdamW: decay of the gradient's mean."""
    adam_beta2: Float = Field(default=0.99, ge=0, lt=1)
    """AdamW: decay of the squared gradient's mean."""
    adam_epsilon: Float = Field(default=1e-8, gt=0)
    """AdamW: added to the denominator."""
    max_grad_norm: Float = Field(default=1.0, ge=0)
    """Clip the gradient's norm; 0: never."""
    max_seconds: Float | None = Field(default=None, gt=0)
    """Stop (and save) after this many seconds."""
    output_dir: str = "runs/{name}"
    """Run folder; {name} is the YAML's name, and a taken folder gets a number."""
    save_steps: Int = Field(default=0, ge=0)
    """Checkpoint every so many steps; 0: only at the end."""
    save_total_limit: Int | None = Field(default=None, ge=1)
    """Keep the newest so many checkpoints (and the best)."""
    save_best: str | None = None
    """Also keep the checkpoint with the highest value of this eval metric, for example eval/accuracy."""
    seed: Int = Field(default=0, ge=0)
    """Seeds Python, numpy and torch; data and rollout have seeds of their own."""
    threads: Int | None = Field(default=None, ge=1)
    """CPU threads of torch; None: torch's own choice."""
