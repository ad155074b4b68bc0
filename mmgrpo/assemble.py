"""Choosing: from a configuration to the parts of a run. The only file that decides which engine, rows or rewards.

Two stages, because an optimizer must not be built before the warm start: :func:`assemble` makes everything that reads
and writes, :func:`assemble_loop` the loop around it. Nothing here runs a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.checks.first_step import check_engine, check_packed, check_swap
from mmgrpo.checks.watch import Watch
from mmgrpo.config.data import Source
from mmgrpo.config.load import LoadedConfig
from mmgrpo.config.schema import Config
from mmgrpo.data.check import check_media
from mmgrpo.data.feed import PromptFeed
from mmgrpo.data.rows import open_rows, rows_from_python
from mmgrpo.data.samples import Samples
from mmgrpo.data.templates import fill
from mmgrpo.errors import ConfigError, DatasetError, explain
from mmgrpo.evaluate.run import EvalSettings
from mmgrpo.media.decode import verify
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.policy import Policy, load_policy
from mmgrpo.reward.score import AnyReward, RewardSum
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.running.clock import Stopwatch
from mmgrpo.train.build import build_optimizer, update_settings
from mmgrpo.train.optimizer import Optimizer
from mmgrpo.train.packing import pack
from mmgrpo.train.update import update
from mmgrpo.trainer import Parts
from mmgrpo.types import Group, OptimizerBatch, Prompt, Sample, Sampling, ScoredGroup, UpdateStats

Rows = Sequence[Mapping[str, Any]]


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
    train: Samples | None
    """None where only evaluation was asked for."""
    eval: Samples | None
    left_out: frozenset[int]
    """Training rows whose media cannot be read."""

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.loaded.config

    def encode(self, sample: Sample, occurrence: int) -> Prompt:
        """Turn a sample into a prompt."""
        return self.processor.encode(sample, occurrence=occurrence)


def assemble(loaded: LoadedConfig, given: Given, *, training: bool = True) -> Assembly:
    """Load rows, rewards and policy, cheapest first, and check that they fit each other.

    Args:
        loaded: The configuration and its folder.
        given: Rewards and rows given in Python.
        training: False: rows to train on are not needed.

    Returns:
        The parts.

    Raises:
        ConfigError: Something is missing or does not fit.
        DataError: Rows or media cannot be read.
    """
    config = loaded.config
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    train = open_samples(loaded, config.data.train, given.train_rows, needed="data.train" if training else "")
    held_out = open_samples(
        loaded, config.data.eval, given.eval_rows, needed="data.eval" if config.eval or not training else ""
    )
    rewards = open_rewards(loaded, given.rewards)
    for samples in (train, held_out):
        if samples is not None:
            rewards.check_columns([*samples[0].extras, "answer"])
    policy = load_policy(config.model)
    policy.module.check_media = config.checks.media_count
    processor = PromptBuilder(
        policy.processor,
        facts=policy.facts,
        chat_template_kwargs=config.rollout.chat_template_kwargs,
        max_prompt_tokens=config.data.max_prompt_tokens,
        background=config.data.background,
    )
    engine = LocalEngine(policy, max_rows=config.rollout.max_rows)
    return Assembly(
        loaded=loaded,
        policy=policy,
        processor=processor,
        engine=engine,
        rewards=rewards,
        train=train if training else None,
        eval=held_out,
        left_out=readable_media(config, train if training else None, held_out),
    )


def readable_media(config: Config, train: Samples | None, held_out: Samples | None) -> frozenset[int]:
    """Read every medium once before anything is trained.

    Returns:
        Training rows to leave out, under ``data.on_bad_media: skip``.

    Raises:
        MediaError: A medium cannot be read: under ``error``, or of a held-out row, where leaving it out would change
            what is measured.
    """
    if held_out is not None:
        check_media(held_out, verify, on_bad_media="error")
    if train is None:
        return frozenset()
    return frozenset(check_media(train, verify, on_bad_media=config.data.on_bad_media).left_out)


def open_samples(loaded: LoadedConfig, source: Source | None, given: Any, *, needed: str) -> Samples | None:
    """Open rows of the YAML or of Python.

    Raises:
        ConfigError: They are needed and there are none.
    """
    data = loaded.config.data
    if given is not None:
        rows = rows_from_python(given, base=loaded.folder)
    elif source is not None:
        rows = open_rows(source, base=loaded.folder, seed=data.seed)
    elif needed:
        raise ConfigError(
            explain(
                "There are no rows",
                where=needed,
                fix=f"Add {needed}.path (or {needed}.synthetic) to the YAML, or hand rows over in Python.",
            )
        )
    else:
        return None
    return Samples(rows, columns=data.columns, template=data.template, allow_absolute_media=data.allow_absolute_media)


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


def sampling_of(config: Config) -> Sampling:
    """How the rollout draws."""
    r = config.rollout
    return Sampling(
        max_completion_length=r.max_completion_length,
        temperature=r.temperature,
        top_p=r.top_p,
        top_k=r.top_k,
        min_p=r.min_p,
        repetition_penalty=r.repetition_penalty,
        stop=r.stop,
        seed=r.seed,
    )


def eval_settings(assembly: Assembly) -> EvalSettings:
    """How held-out rows are evaluated, with what pins the number."""
    config = assembly.config
    evaluation = config.eval
    rollout = sampling_of(config)
    seed = evaluation.seed if evaluation else 1234
    return EvalSettings(
        sampling=_with_stream(rollout, seed),
        sampled=evaluation.sampled if evaluation else True,
        num_generations=evaluation.num_generations if evaluation else 1,
        batch_size=evaluation.batch_size if evaluation else 256,
        metric=evaluation.metric if evaluation else None,
        fixed={
            "model": config.model.name,
            "max_pixels": config.model.max_pixels,
            "min_pixels": config.model.min_pixels,
            "template": config.data.template.model_dump(),
            "columns": config.data.columns.model_dump(),
            "chat_template_kwargs": config.rollout.chat_template_kwargs,
            "rewards": list(assembly.rewards.names),
        },
    )


def _with_stream(sampling: Sampling, seed: int) -> Sampling:
    return replace(sampling, seed=seed, stream="eval")


def num_steps(config: Config, rows: int) -> int:
    """Steps of the whole run: as said, or as many as the epochs take.

    Raises:
        ConfigError: Neither is said.
    """
    train = config.train
    if train.num_steps is not None:
        return train.num_steps
    if train.num_epochs is not None:
        return math.ceil(train.num_epochs * rows / train.prompts_per_step)
    raise ConfigError(
        explain("The length of the run is not said", where="train", fix="Set train.num_steps or train.num_epochs.")
    )


def open_feed(assembly: Assembly) -> PromptFeed:
    """The endless, resumable source of training prompts."""
    data = assembly.config.data
    if assembly.train is None:
        raise DatasetError(explain("There are no rows to train on", where="data.train"))
    return PromptFeed(
        assembly.train,
        assembly.encode,
        seed=data.seed,
        shuffle=data.shuffle,
        on_bad_media=data.on_bad_media,
        left_out=assembly.left_out,
    )


def open_optimizer(assembly: Assembly, steps: int) -> Optimizer:
    """Build the optimizer of GRPO; call it after the warm start."""
    config = assembly.config
    return build_optimizer(
        assembly.policy.trainable(), config.train, num_steps=steps, num_iterations=config.loss.num_iterations
    )


def assemble_loop(assembly: Assembly, feed: PromptFeed, optimizer: Optimizer, clock: Stopwatch, first: Any) -> Parts:
    """Tie the parts of the loop together.

    Args:
        assembly: What reads, writes and scores.
        feed: Where prompts come from.
        optimizer: Over the policy's trainable weights.
        clock: Times every part.
        first: Told the groups of the first rollout of this process.

    Returns:
        The parts that :func:`mmgrpo.trainer.fit` needs.
    """
    config = assembly.config
    settings = update_settings(config.loss, config.rollout, check_finite=config.checks.finite)

    def learn(batches: Sequence[OptimizerBatch]) -> UpdateStats:
        return update(assembly.policy, batches, settings=settings, optimizer=optimizer)

    def packed(scored: Sequence[ScoredGroup], advantages: Sequence[Tensor]) -> list[OptimizerBatch]:
        return pack(
            scored,
            advantages,
            optimizer_steps=config.train.optimizer_steps,
            max_batch_tokens=config.train.max_batch_tokens,
            mask_truncated=config.loss.mask_truncated_completions,
            keep_zero=config.loss.beta > 0,
        )

    def score(groups: Sequence[Group], step: int) -> list[ScoredGroup]:
        return assembly.rewards.score(groups, step=step)

    def sync(version: int) -> None:
        assembly.engine.load_weights(assembly.policy.named_weights(), version)

    return Parts(
        take=clock.timed("data", feed.take),
        generate=clock.timed("rollout", assembly.engine.generate),
        score=clock.timed("reward", score),
        pack=clock.timed("update", packed),
        update=clock.timed("update", learn),
        sync=clock.timed("sync", sync),
        first_step=clock.timed("checks", first),
        prompts_per_step=config.train.prompts_per_step,
        num_generations=config.rollout.num_generations,
        sampling=sampling_of(config),
        loss=config.loss,
    )


def first_step_checks(assembly: Assembly, groups: Sequence[Group]) -> dict[str, float]:
    """Run the checks of the first step that are switched on.

    Returns:
        What they measured, by logged name.

    Raises:
        TrainingError: One failed.
    """
    checks, temperature = assembly.config.checks, assembly.config.rollout.temperature
    policy = assembly.policy
    found: dict[str, float] = {}
    if checks.engine_logprobs:
        found |= check_engine(policy, list(groups)[:8], temperature=temperature)
    if checks.packed_equals_plain:
        found |= check_packed(policy, groups[0], temperature=temperature)
    pictured = next((g for g in groups if g.prompt.media), None)
    if checks.picture_swap and pictured is not None:
        found |= check_swap(policy, pictured, lambda s: assembly.encode(s, 0), temperature=temperature)
    return found


def warm_start_source(assembly: Assembly, on_bad: str = "error") -> Callable[[], list[tuple[Prompt, Tensor]]]:
    """Prompts and the tokens that the policy should write after them, end token included."""
    settings = assembly.config.warm_start
    assert settings is not None
    samples = open_samples(assembly.loaded, settings.data, None, needed="warm_start.data")
    assert samples is not None
    feed = PromptFeed(samples, assembly.encode, seed=settings.seed, shuffle=True, on_bad_media=on_bad)
    tokenizer = assembly.policy.tokenizer

    def target(prompt: Prompt) -> Tensor:
        sample = prompt.sample
        values = {**sample.extras, "answer": sample.answer}
        text = fill(settings.target, values, key="warm_start.target", where=f"sample {sample.id}")
        ids = tokenizer(text, add_special_tokens=False).input_ids
        return torch.tensor([*ids, tokenizer.eos_token_id])

    def take() -> list[tuple[Prompt, Tensor]]:
        return [(prompt, target(prompt)) for prompt in feed.take(settings.batch_size)]

    return take


def watch_of(config: Config) -> Watch:
    """The watch over figures of every step."""
    return Watch(config.checks)
