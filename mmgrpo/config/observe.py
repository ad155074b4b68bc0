"""``eval:``, ``warm_start:``, ``cache:``, ``checks:`` and ``observe:``: what surrounds the loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmgrpo.config.base import Float, Int, Section
from mmgrpo.config.data import Source


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


class WarmStart(Section):
    """Supervised steps before GRPO: teach the answer form (and a little of the task) from rows with a target."""

    data: Source
    """Rows to imitate, disjoint from training and evaluation."""
    target: str = "{{ answer }}"
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
    max_batch_tokens: Int = Field(default=16384, ge=1)
    """Packed tokens per micro-batch."""
    seed: Int = Field(default=0, ge=0)
    """Order of the rows."""


class Cache(Section):
    """Media kept between uses: each content is decoded and processed once, and encoded once a step."""

    media_bytes: Int = Field(default=0, ge=0)
    """Keep media in memory up to this many bytes; 0: none."""
    features_bytes: Int = Field(default=1_000_000_000, ge=0)
    """Keep what frozen encoders make of a step's prompts, on the policy's device, from the rollout to the update, up
    to this many bytes; 0: encode in each pass. Results are the same."""
    folder: str | None = None
    """Keep media in files of this folder, between runs too; nothing in it is ever deleted. Relative to the YAML."""


class Checks(Section):
    """The run checks itself. Each can be switched off; the bounds are for float32, and wider for bfloat16."""

    media_count: bool = True
    """Placeholder tokens equal encoder features, before each forward."""
    engine_logprobs: bool = True
    """First step: the engine's log-probs equal the trainer's."""
    packed_equals_plain: bool = True
    """First step: the packed forward equals plain rows, log-probs and gradients."""
    picture_swap: bool = True
    """First step: another picture must change the log-probs."""
    finite: bool = True
    """Stop before an optimizer step whose loss or gradient is not finite."""
    constant_reward_steps: Int = Field(default=20, ge=0)
    """Warn when a reward has not changed for so many steps; 0: never."""
    truncated_share: Float = Field(default=0.5, gt=0, le=1)
    """Warn when more than this share of completions hit the length limit."""
    drift_logprobs: Float = Field(default=0.02, gt=0)
    """Warn when the engine's and the trainer's log-probs differ by more than this on average, in nats."""


class Observe(Section):
    """What a run shows and writes."""

    log_steps: Int = Field(default=5, ge=1)
    """Print a line and write completions every so many steps; metrics are written at every step."""
    log_completions: Int = Field(default=8, ge=0)
    """Completions written at each logged step."""
    completions_format: Literal["jsonl", "parquet"] = "jsonl"
    """Format of the completions files."""
    report_to: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers beside the metrics.jsonl that is always written."""
    progress: bool = True
    """Show a progress bar with the time left."""
