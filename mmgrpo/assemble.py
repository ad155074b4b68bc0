"""Choosing: from a configuration to the parts of a run. The only file that decides which engine, rows or rewards.

Two stages: :func:`assemble` makes everything that reads, writes and scores, which evaluation needs too;
:func:`assemble_run` the components of a training run around it. Nothing here runs a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from mmgrpo.checks.monitor import RunMonitor
from mmgrpo.config.load import LoadedConfig
from mmgrpo.config.schema import Config
from mmgrpo.contracts import Engine, RunLogger, StopCondition
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.opening import left_out_errors, open_all, verify_media
from mmgrpo.data.prompt_loader import BuildPrompt, DataShard, PromptLoader
from mmgrpo.data.row_errors import SkippedRows
from mmgrpo.data.sampler import InOrder, RowOrder, open_sampler, rows_per_block_of
from mmgrpo.errors import ConfigError, DatasetError, explain
from mmgrpo.evaluation.evaluator import SuiteEvaluator, first_rows
from mmgrpo.evaluation.suites import Suite, check_evaluation, open_suites
from mmgrpo.grpo.advantages import load_advantages
from mmgrpo.grpo.loss import load_loss
from mmgrpo.media.adapters import load_adapters, open_adapters
from mmgrpo.media.prompt_builders import PromptBuilders
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.runfolder import RunFolder
from mmgrpo.parallel.strategy import Single, Strategy
from mmgrpo.plugins import load_object
from mmgrpo.policy.model.forward import FeatureCache
from mmgrpo.policy.model.loading import GivenModel
from mmgrpo.policy.model.policy import Policy, load_policy
from mmgrpo.reward.score import AnyReward, RewardSum
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.running.callback import OnStep, StepCallback
from mmgrpo.running.checkpoints import CheckpointWriter
from mmgrpo.running.quota import quota_of
from mmgrpo.running.settings import check_divisible, num_steps, per_rank, sampling_of
from mmgrpo.running.state import Intervals, RunState
from mmgrpo.running.warm_start import SupervisedStart
from mmgrpo.trainer import Components
from mmgrpo.training.learner import Learner
from mmgrpo.training.manifest import step_of
from mmgrpo.types import Prompt, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInputs:
    """What was handed over in Python instead of the YAML; None: use the YAML's."""

    rewards: Sequence[AnyReward] | None = None
    train_rows: Any = None
    eval_rows: Any = None
    model: GivenModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Everything of a run that reads, writes and scores."""

    loaded: LoadedConfig
    policy: Policy
    prompt_builder: PromptBuilder
    engine: Engine
    rewards: RewardSum
    train: AnySamples | None
    """None where only evaluation was asked for."""
    eval: AnySamples | None
    """Held-out rows of ``data.eval``; None where there are none."""
    suites: Mapping[str, AnySamples]
    """Further held-out rows, by the name of their suite."""
    warm_start: AnySamples | None
    """Rows to imitate; None where there is no warm start (any more)."""
    left_out: SkippedRows
    """Training rows that are left out: at first those whose media cannot be read."""
    dist: Strategy
    """The processes that share the work of each step."""
    build_prefetched: BuildPrompt
    """As :meth:`build_prompt`, for ``data.prefetch`` threads at once."""

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.loaded.config

    def build_prompt(self, sample: Sample, draw_index: int = 0) -> Prompt:
        """Turn a sample into a prompt."""
        return self.prompt_builder.build_prompt(sample, draw_index)

    def start_engine(self, version: int) -> None:
        """Hand the policy's weights to the engine, where no training run does it."""
        self.engine.start(self.policy.named_weights(), version)

    def close(self) -> None:
        """End what runs beside this process: workers of rewards, the engine."""
        self.rewards.close()
        self.engine.close()


def assemble(
    loaded: LoadedConfig,
    inputs: UserInputs,
    *,
    training: bool = True,
    fresh: bool = True,
    needs_rows: bool = True,
    dist: Strategy | None = None,
) -> Assembly:
    """Load rows, rewards and policy, cheapest first, and check that they fit each other.

    Args:
        loaded: The configuration and its folder.
        inputs: Rewards, rows and a model handed over in Python.
        training: False: only what evaluation needs.
        fresh: False: the run is resumed, and has its warm start behind it.
        needs_rows: False: without held-out rows there is just nothing to evaluate on.
        dist: The processes that share the work of each step; default: this one alone.

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
        check_divisible(config, dist.world_size, warm_start=fresh)
    opened = open_all(
        config,
        inputs.train_rows,
        inputs.eval_rows,
        base=loaded.folder,
        training=training,
        warm_start=fresh,
        needs_rows=needs_rows,
    )
    rewards = open_rewards(loaded, inputs.rewards)
    rewards.gather = dist.all_gather
    for samples in (opened.eval, *opened.suites.values(), opened.train):
        if samples is not None:
            rewards.check_rows(samples)
    check_evaluation(config, rewards.names, folder=loaded.folder)
    plugins = load_adapters(config.data.adapters, base=loaded.folder)
    verify = open_adapters(config.data, base=loaded.folder, plugins=plugins).verify
    shard = DataShard(rank=dist.rank, world_size=dist.world_size, all_gather=dist.all_gather)
    left_out = verify_media(config.data, opened, verify, shard=shard)
    policy = load_policy(config.model, inputs.model, folder=loaded.folder)
    policy.module.check_media = config.checks.media_count
    policy.module.feature_cache = FeatureCache(config.cache.features_bytes)
    builders = PromptBuilders(config, policy.processor, policy.family_info, base=loaded.folder, plugins=plugins)
    prompt_builder, threads = builders.builder(), config.data.prefetch
    return Assembly(
        loaded=loaded,
        policy=policy,
        prompt_builder=prompt_builder,
        build_prefetched=builders.pool(threads) if threads else prompt_builder.build_prompt,
        engine=open_engine(loaded, policy),
        rewards=rewards,
        dist=dist,
        train=opened.train,
        eval=opened.eval,
        suites=opened.suites,
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


def open_evaluator(
    assembly: Assembly, *, progress: Progress | None = None, rows: AnySamples | None = None, limited: bool = True
) -> SuiteEvaluator:
    """Build what evaluates the run's held-out rows.

    Args:
        assembly: Engine, rewards and rows.
        progress: Where it is shown how far it is; None: nowhere.
        rows: Other rows to evaluate on.
        limited: Use as many rows of each suite as ``eval.limit`` says.
    """
    config = assembly.config
    main = assembly.eval if rows is None else rows
    held_out = {**({"": main} if main is not None else {}), **(assembly.suites if rows is None else {})}
    suites: Sequence[Suite] = open_suites(
        config,
        held_out,
        sampling=sampling_of(config.rollout),
        rewards={term.name: term.reward.function for term in assembly.rewards.terms},
        folder=assembly.loaded.folder,
    )
    if limited and config.eval is not None and rows is None:
        suites = [first_rows(suite, config.eval.limit) for suite in suites]
    return SuiteEvaluator(
        assembly.engine,
        assembly.rewards,
        assembly.build_prefetched,
        suites,
        threads=config.data.prefetch,
        dist=assembly.dist,
        progress=progress,
    )


class EngineFactory(Protocol):
    """Builds an engine for a run."""

    def __call__(self, *, policy: Policy, config: Config) -> Engine:
        """Build it; weights come later, by :meth:`mmgrpo.contracts.Engine.start`.

        Args:
            policy: The trainer's own; an engine with weights of its own reads its settings and processor alone.
            config: The whole configuration.

        Raises:
            EngineUnavailable: It cannot run on this machine.
        """
        ...


def open_engine(loaded: LoadedConfig, policy: Policy) -> Engine:
    """Build the engine that ``rollout.engine`` names: one of the table, or a user's own.

    Raises:
        ConfigError: There is none of this name, or it cannot be loaded.
    """
    config = loaded.config
    name = config.rollout.engine
    build = ENGINES.get(name) or load_object(name, kind="engines", folder=loaded.folder, where="rollout.engine")
    return build(policy=policy, config=config)


def _local_engine(*, policy: Policy, config: Config) -> Engine:
    return LocalEngine(policy, max_rows=config.rollout.max_rows)


ENGINES: Mapping[str, EngineFactory] = {"local": _local_engine}
"""By the name in the YAML. A user's own is a function or class of the same keyword arguments."""


def open_feed(assembly: Assembly) -> PromptLoader:
    """The endless, resumable source of training prompts."""
    config, data = assembly.config, assembly.config.data
    if assembly.train is None:
        raise DatasetError(explain("There are no rows to train on", where="data.train"))
    return PromptLoader(
        assembly.train,
        assembly.build_prefetched,
        sampler=open_sampler(assembly.train, data, prompts_per_step=config.train.prompts_per_step),
        skip_errors=left_out_errors(data),
        skip_rows=assembly.left_out,
        shard=_shard(assembly.dist, assembly.train),
        threads=data.prefetch,
    )


def _shard(dist: Strategy, samples: AnySamples) -> DataShard:
    block = rows_per_block_of(samples)
    return DataShard(rank=dist.rank, world_size=dist.world_size, rows_per_block=block, all_gather=dist.all_gather)


def open_warm_start_feed(assembly: Assembly) -> PromptLoader:
    """The source of rows to imitate.

    Raises:
        DatasetError: There are none.
    """
    settings, samples = assembly.config.warm_start, assembly.warm_start
    if settings is None or samples is None:
        raise DatasetError(explain("There are no rows to imitate", where="warm_start.data"))
    return PromptLoader(
        samples,
        assembly.build_prompt,
        sampler=InOrder(RowOrder(len(samples), seed=settings.seed)),
        skip_errors=left_out_errors(assembly.config.data),
        skip_rows=SkippedRows(source=samples.name, total=len(samples), beside=assembly.left_out),
        shard=_shard(assembly.dist, samples),
    )


def assemble_run(
    assembly: Assembly,
    *,
    folder: RunFolder,
    progress: Progress,
    logger: RunLogger,
    stop: StopCondition,
    on_step: OnStep | None,
    checkpoint: Path | None,
) -> tuple[Components, RunState]:
    """Build the components of a training run, and its state before the first step.

    Args:
        assembly: What reads, writes and scores.
        folder: The run folder; checkpoints go there.
        progress: The screen.
        logger: Measures and writes what the run does.
        stop: Knows when to stop early.
        on_step: The user's callback.
        checkpoint: Where to continue; None: from the start.

    Returns:
        What :func:`mmgrpo.trainer.run_training` needs.

    Raises:
        ConfigError: The length of the run is not set, or ``on_step`` cannot be called.
    """
    config, policy, dist = assembly.config, assembly.policy, assembly.dist
    sampling = sampling_of(config.rollout)
    total = num_steps(config.train, len(assembly.train or ()) - len(assembly.left_out))
    learner = Learner(
        policy,
        loss=config.loss,
        rollout=config.rollout,
        train=config.train,
        check_finite=config.checks.finite,
        dist=dist,
        surrogate=load_loss(config.loss.fn, config.loss.args, folder=assembly.loaded.folder),
    )
    monitor = RunMonitor(
        config,
        policy=policy,
        engine=assembly.engine,
        build_prompt=assembly.build_prompt,
        sampling=sampling,
        warns=dist.is_main_process,
        on_checked=logger.say_checks,
    )
    loader = open_feed(assembly)
    advantages = load_advantages(
        config.loss.advantages_fn,
        config.loss.advantages_args,
        scale=config.loss.scale_rewards,
        folder=assembly.loaded.folder,
    )
    stateful = {"feed": loader, "monitor": monitor, "rewards": assembly.rewards, "advantages": advantages}
    parts = Components(
        policy=policy,
        engine=assembly.engine,
        loader=loader,
        rewards=assembly.rewards,
        advantages=advantages,
        learner=learner,
        monitor=monitor,
        logger=logger,
        checkpoints=CheckpointWriter(
            folder.checkpoints, learner=learner, stateful=stateful, dist=dist, limit=config.train.save_total_limit
        ),
        dist=dist,
        clock=logger.clock,
        new_quota=partial(quota_of, config, world=dist.world_size),
        sampling=sampling,
        warm_start=_warm_start(assembly, progress),
        evaluator=open_evaluator(assembly, progress=progress) if config.eval else None,
        on_step=StepCallback(on_step, dist),
    )
    last = step_of(checkpoint) if checkpoint else None
    return parts, RunState(
        num_steps=total, intervals=_intervals(config), stop=stop, resumed_from=checkpoint, had_ended=last == total
    )


def _warm_start(assembly: Assembly, progress: Progress) -> SupervisedStart | None:
    config, dist = assembly.config, assembly.dist
    if config.warm_start is None or assembly.warm_start is None:
        return None
    return SupervisedStart(
        assembly.policy,
        partial(open_warm_start_feed, assembly),
        count=per_rank(config.warm_start.batch_size, dist.world_size, key="warm_start.batch_size"),
        config=config,
        dist=dist,
        progress=progress,
    )


def _intervals(config: Config) -> Intervals:
    evaluation = config.eval
    return Intervals(
        log=config.observe.log_steps,
        evaluate=evaluation.eval_steps if evaluation else 0,
        save=config.train.save_steps,
        at_start=evaluation is not None and evaluation.at_start,
        best_metric=config.train.save_best,
    )
