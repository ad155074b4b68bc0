"""The warm start of a run: supervised steps before GRPO, so that the policy knows the form of an answer.

Ties rows and the words of the YAML to ``training/supervised.py``, which trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from mmgrpo.config.schema import Config
from mmgrpo.config.warm_start import WarmStart
from mmgrpo.contracts import PromptSource, StopCondition
from mmgrpo.data.templates import fill
from mmgrpo.observe.progress import Progress
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.policy.model.policy import Policy
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.supervised import warm_start
from mmgrpo.types import Prompt


class SupervisedStart:
    """Imitates rows with a target; fulfils :class:`mmgrpo.contracts.WarmStart`.

    Args:
        policy: What learns.
        loader: Opens the source of the rows to imitate; called when the warm start begins.
        count: Rows of a step in this process.
        config: Its ``warm_start:`` section says how long, ``train:`` which optimizer.
        dist: The processes that share the rows.
        progress: The screen.
    """

    def __init__(
        self,
        policy: Policy,
        loader: Callable[[], PromptSource],
        *,
        count: int,
        config: Config,
        dist: Strategy,
        progress: Progress,
    ) -> None:
        assert config.warm_start is not None
        self._policy, self._loader, self._count = policy, loader, count
        self._config, self._settings = config, config.warm_start
        self._dist, self._progress = dist, progress

    def run(self, stop: StopCondition) -> bool:
        """Take all supervised steps; False: stopped before the last.

        Raises:
            TrainingError: A loss or gradient is not finite.
        """
        settings, policy, loader = self._settings, self._policy, self._loader()
        unfrozen = policy.all_parameters_trainable() if settings.unfreeze else nullcontext()
        every = min(50, max(1, settings.num_steps // 4))
        with unfrozen, self._progress.phase("warm start", settings.num_steps, every=every) as advance:

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                advance(metrics)
                if stop.reason:
                    raise _Stopped

            try:
                warm_start(
                    policy,
                    lambda: [(p, target_ids(p, policy.tokenizer, settings)) for p in loader.take(self._count)],
                    num_steps=settings.num_steps,
                    max_batch_tokens=settings.max_batch_tokens,
                    optimizer=self._new_optimizer(),
                    check_finite=self._config.checks.finite,
                    on_step=on_step,
                )
            except _Stopped:
                return False
        return True

    def _new_optimizer(self) -> Optimizer:
        """Rate and decay of ``warm_start:``, all else of ``train:``."""
        settings, policy = self._settings, self._policy
        schedule = Schedule(
            peak=settings.learning_rate,
            warmup_steps=settings.warmup_steps,
            total_steps=settings.num_steps,
            kind=settings.lr_scheduler_type,
        )
        return Optimizer(
            policy.trainable(),
            settings=self._config.train,
            schedule=schedule,
            weight_decay=settings.weight_decay,
            compute_dtype=policy.dtype,
            dist=self._dist,
        )


def target_ids(prompt: Prompt, tokenizer: Any, settings: WarmStart) -> Tensor:
    """Give the tokens that the policy should write after a prompt, the end token included.

    Args:
        prompt: Its sample fills the template.
        tokenizer: Of the policy.
        settings: ``target`` is the template.

    Raises:
        DatasetError: The row lacks a column of the template.
    """
    sample = prompt.sample
    values = {**sample.extras, "answer": sample.answer}
    text = fill(settings.target, values, key="warm_start.target", where=f"sample {sample.id}")
    options = {"split_special_tokens": True} if sample.controls_as_text else {}
    ids = tokenizer(text, add_special_tokens=False, **options).input_ids
    return torch.tensor([*ids, tokenizer.eos_token_id])


class _Stopped(Exception):
    """Leaves the warm start."""
