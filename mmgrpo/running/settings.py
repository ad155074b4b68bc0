"""What follows from the configuration alone: how long a run is, and how its completions are drawn.

Knows the configuration; no rows, no engine.
"""

from __future__ import annotations

import math

from mmgrpo.config.rollout import Rollout
from mmgrpo.config.schema import Config
from mmgrpo.config.train import Train
from mmgrpo.errors import ConfigError, explain
from mmgrpo.types import Sampling


def num_steps(train: Train, rows: int) -> int:
    """Steps of the whole run: those that are set, or as many as the epochs take.

    Args:
        train: The ``train:`` section.
        rows: Training rows that can be read.

    Returns:
        Steps; the last one of an epoch that does not divide evenly goes on into the next epoch.

    Raises:
        ConfigError: Neither is set.

    Example:
        >>> num_steps(Train(num_epochs=2, prompts_per_step=8), rows=10)
        3
    """
    if train.num_steps is not None:
        return train.num_steps
    if train.num_epochs is not None:
        return math.ceil(train.num_epochs * rows / train.prompts_per_step)
    raise ConfigError(
        explain("The length of the run is not set", where="train", fix="Set train.num_steps or train.num_epochs.")
    )


def check_divisible(config: Config, world_size: int, *, warm_start: bool) -> None:
    """Refuse sizes that do not divide among the processes, before anything is loaded.

    Args:
        config: The configuration.
        world_size: How many processes there are.
        warm_start: The warm start is still to come.

    Raises:
        ConfigError: One does not divide.
    """
    per_rank(config.train.prompts_per_step, world_size, key="train.prompts_per_step")
    if config.warm_start is not None and warm_start:
        per_rank(config.warm_start.batch_size, world_size, key="warm_start.batch_size")


def per_rank(count: int, world_size: int, *, key: str) -> int:
    """Divide a count among processes.

    Args:
        count: Of all.
        world_size: How many processes.
        key: Where the count stands in the YAML.

    Raises:
        ConfigError: It does not divide.

    Example:
        >>> per_rank(8, 2, key="train.prompts_per_step")
        4
    """
    if count % world_size == 0:
        return count // world_size
    raise ConfigError(
        explain(
            f"{count} cannot be divided among {world_size} processes",
            where=key,
            expected=f"a multiple of {world_size}",
            fix=f"Write {key}: {-(-count // world_size) * world_size}.",
        )
    )


def sampling_of(rollout: Rollout) -> Sampling:
    """How the rollout draws completions."""
    return Sampling(
        max_completion_length=rollout.max_completion_length,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        repetition_penalty=rollout.repetition_penalty,
        stop=rollout.stop,
        seed=rollout.seed,
    )
