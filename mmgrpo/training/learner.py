"""The learner of a run: scored groups and advantages in, new weights out.

Holds the optimizer, which can only be built once the weights are those that GRPO starts from (after a warm start), and
ties packing and update to the sections of the configuration. Knows no rewards and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmgrpo.config.loss import Loss
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.train import Train
from mmgrpo.contracts import TrainablePolicy
from mmgrpo.errors import TrainingError, explain
from mmgrpo.grpo.loss import Surrogate, clip
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.update import UpdateSettings, update
from mmgrpo.types import ScoredGroup, UpdateStats


class Learner:
    """Learns from one rollout after another; fulfils :class:`mmgrpo.contracts.Learner`.

    Args:
        policy: What learns.
        loss: The ``loss:`` section.
        rollout: The ``rollout:`` section; its temperature is that of the log-probs.
        train: The ``train:`` section.
        check_finite: Stop before an optimizer step whose loss or gradient is not finite.
        dist: The ranks that share the work of each step.
        surrogate: The loss of each token.
    """

    def __init__(
        self,
        policy: TrainablePolicy,
        *,
        loss: Loss,
        rollout: Rollout,
        train: Train,
        check_finite: bool,
        dist: Strategy,
        surrogate: Surrogate = clip,
    ) -> None:
        self.policy = policy
        self._loss, self._train, self._dist = loss, train, dist
        self._settings = UpdateSettings(
            loss=loss,
            temperature=rollout.temperature,
            max_completion_length=rollout.max_completion_length,
            surrogate=surrogate,
            check_finite=check_finite,
        )
        self._optimizer: Optimizer | None = None

    @property
    def beta(self) -> float:
        """Weight of the KL term."""
        return self._loss.beta

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares with the policy as it was when GRPO began."""
        return self._loss.beta > 0

    @property
    def keeps_equal_groups(self) -> bool:
        """Whether groups without any advantage still move the weights: by a KL term, or a loss of the user's own."""
        return self.needs_reference or not getattr(self._settings.surrogate, "zero_without_advantage", False)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; there is none before :meth:`start`."""
        if self._optimizer is None:
            raise RuntimeError("There is no optimizer yet: call start() first.")
        return self._optimizer

    @property
    def has_learned(self) -> bool:
        """Whether weights have changed since :meth:`start`."""
        return self._optimizer is not None and self._optimizer.has_stepped

    @property
    def updates_begun(self) -> int:
        """Optimizer steps begun or skipped: while it stays the same, weights and schedule do."""
        return self.optimizer.updates_begun

    def start(self, num_steps: int) -> None:
        """Build the optimizer over the weights as they are now.

        ``warmup_steps`` and ``num_steps`` count steps of the run; the schedule counts optimizer steps.

        Args:
            num_steps: Steps of the whole run, also those before a resume; the schedule ends with the last.
        """
        train, per_step = self._train, self._train.optimizer_steps * self._loss.num_iterations
        schedule = Schedule(
            peak=train.learning_rate,
            warmup_steps=train.warmup_steps * per_step,
            total_steps=num_steps * per_step,
            kind=train.lr_scheduler_type,
        )
        self._optimizer = Optimizer(
            self.policy.trainable(),
            settings=train,
            schedule=schedule,
            compute_dtype=self.policy.dtype,
            dist=self._dist,
        )

    def keep_reference(self) -> None:
        """Make the policy as it is now the reference, where the loss needs one."""
        if self.needs_reference:
            self.policy.fix_reference()

    def learn(self, scored: Sequence[ScoredGroup], advantages: Sequence[Tensor | Sequence[Tensor]]) -> UpdateStats:
        """Take all optimizer steps of a rollout.

        Args:
            scored: Its groups, of all ranks; those that are local are learned from here.
            advantages: Of each group G values, or for each completion a tensor of one value per token.

        Returns:
            What the update measured.

        Raises:
            TrainingError: A loss or gradient is not finite, or the device has no memory left.
        """
        batches = pack(
            scored,
            advantages,
            optimizer_steps=self._train.optimizer_steps,
            max_batch_tokens=self._train.max_batch_tokens,
            mask_truncated=self._loss.mask_truncated_completions,
            keep_zero=self.keeps_equal_groups,
            share_prompts=self.policy.layout == "packed",
            dist=self._dist,
        )
        try:
            return update(self.policy, batches, settings=self._settings, optimizer=self.optimizer)
        except torch.OutOfMemoryError as error:
            largest = max(b.num_tokens for step in batches for b in step.batches)
            raise TrainingError(
                explain(
                    "The update ran out of memory",
                    where=f"train.max_batch_tokens {self._train.max_batch_tokens}",
                    got=f"a micro-batch of {largest} packed tokens; {str(error).splitlines()[0]:.200}",
                    fix=f"Lower train.max_batch_tokens, for example to {max(1, largest // 2)}: results stay the same. "
                    "model.gradient_checkpointing: true and model.lora need less memory, too.",
                )
            ) from error
