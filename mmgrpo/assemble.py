"""Choosing: from a configuration to the parts of a run. The only file that decides which engine, rows or rewards.

Two stages, because an optimizer must not be built before the warm start: :func:`assemble` makes everything that reads
and writes, :func:`assemble_loop` the loop around it. Nothing here runs a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmgrpo.checks.first_step import check_first_step
from mmgrpo.config.load import LoadedConfig
from mmgrpo.config.schema import Config
from mmgrpo.data.feed import PromptFeed, Share
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.opening import left_out_errors, open_all, verify_media
from mmgrpo.data.ordering import open_draws, together_in
from mmgrpo.errors import ConfigError, DatasetError, explain
from mmgrpo.evaluation.choices import check_choices
from mmgrpo.media.plugins import open_adapters
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.parallel.groups import all_gather_groups
from mmgrpo.parallel.strategy import Single, Strategy
from mmgrpo.policy.features import Features
from mmgrpo.policy.policy import Policy, load_policy
from mmgrpo.reward.score import AnyReward, RewardSum
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.running.clock import Stopwatch
from mmgrpo.running.imitation import imitation
from mmgrpo.running.prompts import open_encoder, open_memory, open_processor
from mmgrpo.running.quota import quota_of
from mmgrpo.running.sizes import part_of, sampling_of
from mmgrpo.trainer import Parts
from mmgrpo.training.build import build_optimizer, update_settings
from mmgrpo.training.optimizer import Optimizer
from mmgrpo.training.packing import pack
from mmgrpo.training.update import update
from mmgrpo.types import Group, OptimizerBatch, Prompt, Sample, ScoredGroup, UpdateStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was handed over in Python instead of the YAML; None: use the YAML's."""

    rewards: Sequence[AnyReward] | None = None
    train_rows: Any = None
    eval_rows: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Everything of a run that reads, writes and scores."""

    loaded: LoadedConfig
    policy: Policy
    processor: PromptBuilder
    engine: LocalEngine
    rewards: RewardSum
    train: AnySamples | None
    """None where only evaluation was asked for."""
    eval: AnySamples | None
    warm_start: AnySamples | None
    """Rows to imitate; None where there is no warm start (any more)."""
    left_out: frozenset[int]
    """Training rows whose media cannot be read."""
    dist: Strategy
    """This rank among those that share the work of each step."""
    encode_aside: Callable[[Sample, int], Prompt]
    """As :meth:`encode`, for ``data.prefetch`` threads at once."""

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.loaded.config

    def encode(self, sample: Sample, occurrence: int) -> Prompt:
        """Turn a sample into a prompt."""
        return self.processor.encode(sample, occurrence=occurrence)


def assemble(
    loaded: LoadedConfig,
    given: Given,
    *,
    training: bool = True,
    fresh: bool = True,
    dist: Strategy | None = None,
) -> Assembly:
    """Load rows, rewards and policy, cheapest first, and check that they fit each other.

    Args:
        loaded: The configuration and its folder.
        given: Rewards and rows given in Python.
        training: False: only what evaluation needs.
        fresh: False: the run is resumed, and has its warm start behind it.
        dist: This rank among those that share the work of each step; default: this process alone.

    Returns:
        The parts.

    Raises:
        ConfigError: Something is missing or does not fit.
        DataError: Rows or media cannot be read.
    """
    config = loaded.config
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    dist = dist or Single()
    if training:
        part_of(config.train.prompts_per_step, dist.world_size, key="train.prompts_per_step")
    opened = open_all(
        config, given.train_rows, given.eval_rows, base=loaded.folder, training=training, warm_start=fresh
    )
    rewards = open_rewards(loaded, given.rewards)
    rewards.gather = dist.all_gather
    for samples in (opened.eval, opened.train):
        if samples is not None:
            rewards.check_rows(samples)
    check_choices(config, rewards.names)
    verify = open_adapters(config.data, base=loaded.folder).verify
    share = Share(rank=dist.rank, world=dist.world_size, gather=dist.all_gather)
    left_out = verify_media(config.data, opened, verify, share=share)
    policy = load_policy(config.model)
    policy.module.check_media = config.checks.media_count
    policy.module.features = Features(config.cache.features_bytes)
    memory = open_memory(config, policy.processor, base=loaded.folder)
    processor = open_processor(config, policy.processor, policy.facts, base=loaded.folder, memory=memory)
    return Assembly(
        loaded=loaded,
        policy=policy,
        processor=processor,
        encode_aside=open_encoder(config, policy, processor, base=loaded.folder, memory=memory),
        engine=LocalEngine(policy, max_rows=config.rollout.max_rows),
        rewards=rewards,
        dist=dist,
        train=opened.train,
        eval=opened.eval,
        warm_start=opened.warm_start,
        left_out=left_out,
    )


def open_rewards(loaded: LoadedConfig, given: Sequence[AnyReward] | None) -> RewardSum:
    """Load the rewards of the YAML, or those of Python in their place.

    Raises:
        ConfigError: There are none, or one cannot be loaded.
    """
    if given is not None:
        return RewardSum.from_config((), loaded.folder, list(given))
    if not loaded.config.rewards:
        raise ConfigError(
            explain(
                "There are no rewards",
                where="rewards",
                fix="Add {fn: rewards/clevr_counting.py:count_accuracy}, or hand a function over in Python.",
            )
        )
    return RewardSum.from_config(loaded.config.rewards, loaded.folder)


def open_feed(assembly: Assembly) -> PromptFeed:
    """The endless, resumable source of training prompts."""
    config, data = assembly.config, assembly.config.data
    if assembly.train is None:
        raise DatasetError(explain("There are no rows to train on", where="data.train"))
    return PromptFeed(
        assembly.train,
        assembly.encode_aside,
        order=open_draws(assembly.train, data, prompts_per_step=config.train.prompts_per_step),
        leave_out=left_out_errors(data),
        left_out=assembly.left_out,
        share=_share(assembly, assembly.train, threads=data.prefetch),
    )


def _share(assembly: Assembly, samples: AnySamples, *, threads: int = 0) -> Share:
    dist, kept = assembly.dist, together_in(samples)
    return Share(rank=dist.rank, world=dist.world_size, together=kept, threads=threads, gather=dist.all_gather)


def open_optimizer(assembly: Assembly, steps: int) -> Optimizer:
    """Build the optimizer of GRPO; call it after the warm start."""
    train, iterations = assembly.config.train, assembly.config.loss.num_iterations
    weights, dist = assembly.policy.trainable(), assembly.dist
    return build_optimizer(weights, train, num_steps=steps, num_iterations=iterations, dist=dist)


def assemble_loop(
    assembly: Assembly,
    feed: PromptFeed,
    optimizer: Optimizer,
    clock: Stopwatch,
    on_checked: Callable[[dict[str, float]], None],
) -> Parts:
    """Tie the parts of the loop together.

    Args:
        assembly: What reads, writes and scores.
        feed: Where prompts come from.
        optimizer: Over the policy's trainable weights.
        clock: Times every part.
        on_checked: Told what the checks of the first step measured.

    Returns:
        The parts that :func:`mmgrpo.trainer.fit` needs.
    """
    config, engine = assembly.config, assembly.engine

    def score(groups: Sequence[Group], step: int) -> list[ScoredGroup]:
        return assembly.rewards.score(groups, step=step)

    def share(local: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        scored = all_gather_groups(assembly.dist, local)
        feed.note([s.group.prompt.occurrence for s in scored], [float(s.totals.nanmean()) for s in scored])
        return scored

    def sync(version: int) -> None:
        engine.load_weights(assembly.policy.named_weights(), version)

    packed = partial(
        pack,
        optimizer_steps=config.train.optimizer_steps,
        max_batch_tokens=config.train.max_batch_tokens,
        mask_truncated=config.loss.mask_truncated_completions,
        keep_zero=config.loss.beta > 0,
    )
    return Parts(
        take=clock.timed("data", feed.take),
        generate=clock.timed("rollout", engine.generate),
        score=clock.timed("reward", score),
        share=clock.timed("sync", share),
        pack=clock.timed("update", packed),
        update=clock.timed("update", _learner(assembly, optimizer)),
        sync=clock.timed("sync", sync),
        first_step=clock.timed("checks", _checker(assembly, on_checked)),
        quota=partial(quota_of, config, world=assembly.dist.world_size),
        sampling=sampling_of(config.rollout),
        loss=config.loss,
    )


def _learner(assembly: Assembly, optimizer: Optimizer) -> Callable[[Sequence[OptimizerBatch]], UpdateStats]:
    """Tie the update to the policy and the configuration."""
    config = assembly.config
    settings = update_settings(config.loss, config.rollout, check_finite=config.checks.finite)
    return partial(update, assembly.policy, settings=settings, optimizer=optimizer)


def _checker(
    assembly: Assembly, on_checked: Callable[[dict[str, float]], None]
) -> Callable[[Sequence[ScoredGroup]], None]:
    """Tie the checks of the first step to the policy, the run's own processor and the groups of this process."""

    def check(scored: Sequence[ScoredGroup]) -> None:
        found = check_first_step(
            assembly.policy,
            [one.group for one in scored if one.is_local],
            lambda sample: assembly.encode(sample, 0),
            checks=assembly.config.checks,
            temperature=assembly.config.rollout.temperature,
        )
        on_checked(found)

    return check


def open_warm_start(assembly: Assembly) -> Callable[[], list[tuple[Prompt, Tensor]]]:
    """Give prompts and the tokens that the policy should write after them, end token included.

    Raises:
        DatasetError: There are no rows to imitate.
    """
    settings, samples = assembly.config.warm_start, assembly.warm_start
    if settings is None or samples is None:
        raise DatasetError(explain("There are no rows to imitate", where="warm_start.data"))
    skipped = left_out_errors(assembly.config.data)
    share = _share(assembly, samples)
    feed = PromptFeed(
        samples, assembly.encode, seed=settings.seed, shuffle=True, leave_out=skipped, share=share
    )  # fmt: skip
    count = part_of(settings.batch_size, share.world, key="warm_start.batch_size")
    return imitation(feed, assembly.policy.tokenizer, settings, count=count)
