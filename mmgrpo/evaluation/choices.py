"""Choices that name a number of an evaluation, checked before anything is loaded.

Knows the configuration and the names of the rewards.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.config.schema import Config
from mmgrpo.errors import ConfigError, explain
from mmgrpo.evaluation.report import check_metric
from mmgrpo.evaluation.run import choose_metric


def check_choices(config: Config, rewards: Sequence[str]) -> None:
    """Find choices that would only be missed hours later.

    Args:
        config: The configuration.
        rewards: Names of the rewards.

    Raises:
        ConfigError: ``eval.metric`` names no reward, or ``train.save_best`` no number of an evaluation.
    """
    choose_metric(config.eval.metric if config.eval else None, rewards)
    if config.train.save_best and config.eval:
        check_metric(config.train.save_best, sampled=config.eval.sampled, where="train.save_best")
    if config.train.save_best and not config.eval:
        raise ConfigError(
            explain(
                "The best checkpoint is chosen by an evaluation, and there is none",
                where="train.save_best",
                got=config.train.save_best,
                fix="Add eval: {} to the YAML, or remove train.save_best.",
            )
        )
