"""The protocols between rooms: what an engine, a source of prompts, rewards and a family of models promise.

A room that needs one of these names the protocol, and ``assemble.py`` hands it the thing. No class inherits from
these; having the methods is enough. This module knows none of the implementations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.metrics import Metric
from mmgrpo.types import Batch, Group, Prompt, Sampling, ScoredGroup, UpdateStats


@runtime_checkable
class Engine(Protocol):
    """Writes completions, under weights that the trainer hands over.

    A run calls ``start`` once, then for each step ``generate`` (once or more), ``release``, ``load_weights``,
    ``reacquire``, and at the end ``close``. ``metrics`` may be read at any time. Evaluation calls ``generate`` between
    steps. ``tests/contract/test_engines.py`` drives every engine through all of this.
    """

    @property
    def shares_weights(self) -> bool:
        """Whether it reads the trainer's own tensors, and so can never hold other weights."""
        ...

    def start(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the weights that the first rollout is written with: of a new run, after a warm start, or on resume.

        Args:
            weights: Names and tensors of the base model, adapters added in; to be read before this returns.
            version: Weight updates of the policy so far.

        Raises:
            EngineUnavailable: It cannot run on this machine.
            WeightSyncError: A weight does not fit.
        """
        ...

    def generate(self, prompts: Sequence[Prompt], counts: Sequence[int], sampling: Sampling) -> list[Group]:
        """Write ``counts[i]`` completions for ``prompts[i]``, each prompt computed once.

        Every token carries its log-prob under the temperature of ``sampling``, before anything is cut away. A
        completion draws from its own stream of ``(sampling.seed, sampling.stream, draw index, completion index)``.

        Raises:
            RolloutError: The engine failed.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the trainer's weights; completions written after this carry ``policy_version == version``.

        Args:
            weights: As for :meth:`start`.
            version: As for :meth:`start`.

        Raises:
            WeightSyncError: A weight does not fit.
        """
        ...

    def release(self) -> None:
        """Give back the memory that only generation needs, before the update; may be called twice."""
        ...

    def reacquire(self) -> None:
        """Take that memory again; called after ``load_weights``, and may be called twice."""
        ...

    def metrics(self) -> Mapping[str, float | Metric]:
        """Measurements of the completions written since the last call, by logged name."""
        ...

    def close(self) -> None:
        """End processes and free devices; nothing is generated after this. May be called twice."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Something with a state that a checkpoint holds."""

    def state(self) -> Mapping[str, Any]:
        """Where it stands: numbers, texts, lists and mappings, as JSON has them."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood."""
        ...


@runtime_checkable
class Policy(Protocol):
    """What the loop itself needs of the policy; rooms below ask for more."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights by the base model's names, adapters added in, one after another."""
        ...


@runtime_checkable
class PromptSource(Protocol):
    """An endless, resumable source of prompts."""

    def take(self, count: int) -> list[Prompt]:
        """Hand out the next ``count`` prompts of this process."""
        ...

    def close(self) -> None:
        """Stop making prompts ahead."""
        ...

    def apply_feedback(self, draw_indices: Sequence[int], mean_rewards: Sequence[float]) -> None:
        """Say what prompts were worth, so that a curriculum can learn which rows to draw."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Where consumption stands (JSON-serialisable)."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """All rewards of a run together."""

    names: tuple[str, ...]

    def score(self, groups: Sequence[Group], *, step: int = 0) -> list[ScoredGroup]:
        """Score every completion with every reward.

        Raises:
            RewardError: A reward raised or broke its contract.
        """
        ...

    def metrics(self) -> Mapping[str, float | Metric]:
        """Measurements of the last call, by logged name."""
        ...


@runtime_checkable
class Advantages(Protocol):
    """Compares the completions of a step with each other, once per step."""

    def compute(self, scored: Sequence[ScoredGroup]) -> Sequence[Tensor | Sequence[Tensor]]:
        """Give the advantages of each group, float64.

        Args:
            scored: All groups of the step, of all ranks: totals, the values of each reward, completions with their
                lengths and versions. The same in all ranks.

        Returns:
            For each group one tensor of G values, or for each of its completions a tensor of one value per token. The
            result goes both to the update and to the log.
        """
        ...

    def state(self) -> Mapping[str, Any]:
        """What it remembers from step to step, as JSON has it; kept in checkpoints."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood."""
        ...


@runtime_checkable
class TokenStats(Protocol):
    """What a forward pass gives for the K completion tokens of a batch, in packed order."""

    @property
    def logprobs(self) -> Float[Tensor, "K"]:
        """Log p of each token given everything before it, in nats."""
        ...

    @property
    def entropy(self) -> Float[Tensor, "K"] | None:
        """Entropy of the distribution each token was drawn from, in nats; None unless asked for."""
        ...


@runtime_checkable
class TrainablePolicy(Protocol):
    """A model that learns."""

    @property
    def device(self) -> torch.device:
        """Where its tensors live."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and activations; float16 needs loss scaling."""
        ...

    @property
    def layout(self) -> str:
        """How it computes rows: ``packed``, a prompt once for its completions, or ``rows``."""
        ...

    def logprobs(
        self, batch: Batch, *, temperature: float, entropy: bool = False, entropy_gradient: bool = False
    ) -> TokenStats:
        """Read a packed micro-batch; differentiable unless called under ``torch.no_grad()``.

        Args:
            batch: At least one completion.
            temperature: Of the rollout.
            entropy: Also measure the entropy.
            entropy_gradient: With its gradient.
        """
        ...

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that learn."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """Answer as the frozen reference inside the context."""
        ...

    def fix_reference(self) -> None:
        """Make the policy as it is now the reference."""
        ...

    def reference_state(self) -> dict[str, Tensor] | None:
        """Give the reference's own weights; empty when it shares the policy's, None when there is no reference."""
        ...

    def load_reference(self, state: dict[str, Tensor] | None) -> None:
        """Take back what :meth:`reference_state` gave."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and processor into a folder."""
        ...

    def load_weights_from(self, folder: Path) -> None:
        """Read back what :meth:`save` wrote."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Learns from one rollout after another."""

    def start(self, num_steps: int) -> None:
        """Build the optimizer over the weights as they are now, for a run of so many steps."""
        ...

    def keep_reference(self) -> None:
        """Make the policy as it is now the reference, where the loss needs one."""
        ...

    def learn(self, scored: Sequence[ScoredGroup], advantages: Sequence[Tensor | Sequence[Tensor]]) -> UpdateStats:
        """Take all optimizer steps of a rollout.

        Raises:
            TrainingError: A number is not finite, or memory is exhausted.
        """
        ...


@runtime_checkable
class Monitor(Protocol):
    """Looks for silent corruption and for a run that learns nothing."""

    def check_rollout(self, scored: Sequence[ScoredGroup]) -> None:
        """Check the first rollout of this process before it is learned from.

        Raises:
            TrainingError: Two computations that must agree do not.
        """
        ...

    def check_weights(self, version: int) -> None:
        """Check that the engine writes with the weights of this version.

        Raises:
            WeightSyncError: It does not.
        """
        ...

    def observe(self, scored: Sequence[ScoredGroup], metrics: Mapping[str, float]) -> None:
        """Look at a step that is done.

        Raises:
            RewardError: No reward applies to anything.
        """
        ...

    def finish(self) -> None:
        """Look back at the whole run."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """What was measured since the last call, by logged name."""
        ...


@runtime_checkable
class Evaluation(Protocol):
    """What an evaluation found."""

    def metrics(self) -> dict[str, float]:
        """Values by logged name, ``eval/…``."""
        ...


@runtime_checkable
class Evaluator(Protocol):
    """Measures the policy on held-out rows."""

    def evaluate(self, step: int) -> Any:
        """Evaluate the policy as it is after ``step`` steps; gives an :class:`Evaluation`."""
        ...


@runtime_checkable
class RunLogger(Protocol):
    """Measures, writes and shows what a run does."""

    @property
    def clock(self) -> Any:
        """Where the loop counts its seconds."""
        ...

    def keep_config(self) -> None:
        """Write down the overrides of a resumed run, which count from now on."""
        ...

    def say_checks(self, metrics: Mapping[str, float]) -> None:
        """Show what the checks of the first rollout measured."""
        ...

    def phase(self, name: str, total: int, *, done: int = 0) -> AbstractContextManager[None]:
        """Show how far a phase of ``total`` steps is."""
        ...

    def measure(
        self,
        scored: Sequence[ScoredGroup],
        stats: UpdateStats,
        *,
        local: Mapping[str, float | Metric],
        shared: Mapping[str, float],
    ) -> Mapping[str, float]:
        """Collect the metrics of a step, over all processes."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step, and move the progress bar."""
        ...

    def write_completions(
        self, step: int, scored: Sequence[ScoredGroup], advantages: Sequence[Tensor | Sequence[Tensor]]
    ) -> None:
        """Write a sample of completions with their rewards and advantages."""
        ...

    def write_evaluation(self, evaluation: Any) -> None:
        """Write and show what an evaluation found."""
        ...

    def read_evaluation(self, step: int) -> Any:
        """Read back what was written after ``step`` steps; None if there is none."""
        ...


@runtime_checkable
class StopCondition(Protocol):
    """Knows whether a run should stop."""

    @property
    def reason(self) -> str | None:
        """Why to stop; None: go on."""
        ...


@runtime_checkable
class WarmStart(Protocol):
    """Supervised steps before GRPO."""

    def run(self, stop: StopCondition) -> bool:
        """Take them all; False: stopped before the last."""
        ...


@runtime_checkable
class Checkpoints(Protocol):
    """Saves a run, and brings it back."""

    def restore(self, run: Any) -> None:
        """Continue from the checkpoint that the run was resumed from."""
        ...

    def begin_step(self) -> None:
        """A step begins; if it fails, the run is what it is now."""
        ...

    def end_step(self) -> None:
        """The step's weights are the run's."""
        ...

    def save(self, run: Any, *, again: bool = False) -> None:
        """Write a checkpoint of the steps done, unless it is written already."""
        ...

    def save_after_failure(self, run: Any) -> None:
        """Write what is whole after an error."""
        ...


@runtime_checkable
class FamilyInfo(Protocol):
    """What ``media/`` needs to know of a model family without importing it."""

    @property
    def name(self) -> str:
        """For example ``qwen2_5_vl``."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """Media kinds that the family reads."""
        ...

    @property
    def separable_kinds(self) -> frozenset[str]:
        """Kinds of media that, processed alone and joined along the first axis, are what they are together."""
        ...

    @property
    def audio_in_video(self) -> bool:
        """Whether it was made to hear the sound of a clip woven into the clip, and not after it."""
        ...

    @property
    def counts_images(self) -> bool:
        """Whether its processor treats pictures by how many a prompt has."""
        ...

    def count_media_tokens(self, token_ids: Tensor) -> Mapping[str, int]:
        """Placeholder tokens in a prompt, by media kind."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Takes metrics: a file, TensorBoard, a tracking service."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one row of metrics."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...
