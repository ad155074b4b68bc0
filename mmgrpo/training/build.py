"""From sections of the configuration to optimizers and settings. The only file of the room that reads them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mmgrpo.config.loss import Loss
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.train import Train
from mmgrpo.config.warm_start import WarmStart
from mmgrpo.grpo.objective import Objective
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.training.optimizer import Optimizer, OptimizerSettings
from mmgrpo.training.schedule import Schedule
from mmgrpo.training.supervised import WarmStartSettings
from mmgrpo.training.update import UpdateSettings


def build_optimizer(
    named: Sequence[tuple[str, nn.Parameter]],
    train: Train,
    *,
    num_steps: int,
    num_iterations: int = 1,
    dist: Strategy | None = None,
) -> Optimizer:
    """Build the optimizer of a GRPO run.

    ``warmup_steps`` and ``num_steps`` count steps of the run; the schedule counts optimizer steps.

    Args:
        named: ``policy.trainable()``.
        train: The ``train:`` section.
        num_steps: Steps of the whole run, also those before a resume.
        num_iterations: Passes over each rollout.
        dist: The ranks that hold the same weights; default: this process alone.

    Returns:
        The optimizer, at the first step of its schedule.
    """
    per_step = train.optimizer_steps * num_iterations
    schedule = Schedule(
        peak=train.learning_rate,
        warmup_steps=train.warmup_steps * per_step,
        total_steps=num_steps * per_step,
        kind=train.lr_scheduler_type,
    )
    return Optimizer(named, settings=optimizer_settings(train), schedule=schedule, dist=dist)


def build_warm_start_optimizer(
    named: Sequence[tuple[str, nn.Parameter]],
    warm_start: WarmStart,
    train: Train,
    *,
    dist: Strategy | None = None,
) -> Optimizer:
    """Build the optimizer of the supervised steps: rate and decay of ``warm_start:``, all else of ``train:``."""
    schedule = Schedule(
        peak=warm_start.learning_rate,
        warmup_steps=warm_start.warmup_steps,
        total_steps=warm_start.num_steps,
        kind=warm_start.lr_scheduler_type,
    )
    settings = optimizer_settings(train, weight_decay=warm_start.weight_decay)
    return Optimizer(named, settings=settings, schedule=schedule, dist=dist)


def optimizer_settings(train: Train, *, weight_decay: float | None = None) -> OptimizerSettings:
    """Read the optimizer's settings from ``train:``, with another weight decay where given."""
    return OptimizerSettings(
        optim=train.optim,
        weight_decay=train.weight_decay if weight_decay is None else weight_decay,
        adam_beta1=train.adam_beta1,
        adam_beta2=train.adam_beta2,
        adam_epsilon=train.adam_epsilon,
        max_grad_norm=train.max_grad_norm,
    )


def update_settings(loss: Loss, rollout: Rollout, *, check_finite: bool = True) -> UpdateSettings:
    """Read the settings of the update from ``loss:`` and ``rollout:``."""
    objective = Objective(
        loss_type=loss.loss_type,
        epsilon=loss.epsilon,
        epsilon_high=loss.epsilon_high,
        delta=loss.delta,
        beta=loss.beta,
        importance_sampling_level=loss.importance_sampling_level,
    )
    return UpdateSettings(
        objective=objective,
        temperature=rollout.temperature,
        max_completion_length=rollout.max_completion_length,
        num_iterations=loss.num_iterations,
        check_finite=check_finite,
    )


def warm_start_settings(warm_start: WarmStart, *, check_finite: bool = True) -> WarmStartSettings:
    """Read the settings of the supervised steps from ``warm_start:``."""
    return WarmStartSettings(
        num_steps=warm_start.num_steps,
        max_batch_tokens=warm_start.max_batch_tokens,
        check_finite=check_finite,
    )
