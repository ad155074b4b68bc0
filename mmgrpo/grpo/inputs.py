"""What a loss is given and what it gives: settings, packed per-token tensors, denominators of an optimizer step.

Letters in shapes: K completion tokens in a flat row, S completions, U things with a ratio of their own (tokens or
completions). Values only; knows no formula, and not which YAML key a setting came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.errors import explain

LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo"]
"""How token losses are averaged."""
Level = Literal["token", "sequence"]
"""What has a ratio of its own."""


@runtime_checkable
class LossSettings(Protocol):
    """What the formulas of this room read. ``mmgrpo.config.loss.Loss`` has it, and holds every rule about it.

    A loss of a user's own may read any other attribute of the section, too.
    """

    @property
    def loss_type(self) -> LossType:
        """The average, a name of ``mmgrpo.grpo.loss.AGGREGATES``."""
        ...

    @property
    def epsilon(self) -> float:
        """Ratios below 1 - epsilon are clipped where the advantage is negative."""
        ...

    @property
    def epsilon_high(self) -> float | None:
        """Ratios above 1 + epsilon_high are clipped where the advantage is positive; None: epsilon."""
        ...

    @property
    def delta(self) -> float | None:
        """Upper bound of the ratio where the advantage is negative; None: unbounded."""
        ...

    @property
    def beta(self) -> float:
        """Weight of the KL term to the reference; 0: there is none."""
        ...

    @property
    def use_bias_correction_kl(self) -> bool:
        """Multiply the KL estimate by the importance ratio."""
        ...

    @property
    def importance_sampling_level(self) -> Level:
        """token: each token has its ratio. sequence: one ratio per completion (GSPO)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The denominators of one optimizer step, over all its micro-batches and ranks.

    Every micro-batch of the step is divided by these same numbers, so that the losses add up to the step's loss.
    """

    num_tokens: int
    """Completion tokens whose loss mask is True."""
    num_sequences: int
    """Completions with at least one such token."""
    max_completion_length: int
    """Longest completion allowed, in tokens; a constant of the run (only dr_grpo divides by it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputs:
    """All that is known of the K completion tokens of a micro-batch when its loss is computed.

    A loss gets these with zeros wherever ``loss_mask`` is False, and without gradient through anything but
    ``logprobs`` and ``entropy``: what stands outside the mask can then become neither inf nor NaN.

    Raises:
        ValueError: A tensor has another shape than ``logprobs``; torch would broadcast it without a word.

    Example:
        >>> import torch
        >>> now = torch.tensor([-1.0, -2.0])
        >>> inputs = TokenInputs(
        ...     logprobs=now, old_logprobs=now, rollout_logprobs=now, advantages=torch.ones(2),
        ...     loss_mask=torch.tensor([True, True]), sequence=torch.tensor([0, 0]), num_sequences=1,
        ... )
        >>> inputs.log_ratio, inputs.sequence_means(now)
        (tensor([0., 0.]), tensor([-1.5000]))
    """

    logprobs: Float[Tensor, "K"]
    """Under the policy now, in nats; differentiable."""
    old_logprobs: Float[Tensor, "K"]
    """Under the policy at the start of the step, in nats."""
    rollout_logprobs: Float[Tensor, "K"]
    """As the engine recorded them when the tokens were sampled, in nats; 0 for tokens of an environment."""
    advantages: Float[Tensor, "K"]
    """How much better than expected the token did; usually that of its completion."""
    loss_mask: Bool[Tensor, "K"]
    """True where the token is trained."""
    sequence: Int[Tensor, "K"]
    """Which completion (0 to S - 1) a token belongs to. All tokens of a completion stand in one micro-batch."""
    num_sequences: int
    """S, completions in this micro-batch."""
    ref_logprobs: Float[Tensor, "K"] | None = None
    """Under the reference, in nats; None: ``beta`` is 0."""
    entropy: Float[Tensor, "K"] | None = None
    """Of the distribution each token was drawn from, in nats. Differentiable for a loss with ``needs_entropy``; None
    where nobody asked for it."""

    def __post_init__(self) -> None:
        """Refuse tensors that torch would broadcast silently."""
        names = ("old_logprobs", "rollout_logprobs", "advantages", "loss_mask", "sequence", "ref_logprobs", "entropy")
        for name in names:
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != self.logprobs.shape:
                expected, got = list(self.logprobs.shape), list(tensor.shape)
                raise ValueError(explain(f"{name} does not fit logprobs", expected=f"shape {expected}", got=f"{got}"))

    @property
    def log_ratio(self) -> Float[Tensor, "K"]:
        """Log p_now - log p_old of each token, differentiable."""
        return self.logprobs - self.old_logprobs

    def masked(self) -> TokenInputs:
        """Give the inputs as a loss gets them: constants detached, zeros outside the mask, one float type."""
        out = ~self.loss_mask
        constants = {
            name: None if value is None else value.detach().to(self.logprobs.dtype).masked_fill(out, 0)
            for name in ("old_logprobs", "rollout_logprobs", "advantages", "ref_logprobs")
            for value in [getattr(self, name)]
        }
        entropy = None if self.entropy is None else self.entropy.masked_fill(out, 0)
        changed: dict[str, Any] = {**constants, "logprobs": self.logprobs.masked_fill(out, 0), "entropy": entropy}
        return replace(self, **changed)

    def sequence_sums(self, values: Float[Tensor, "K"]) -> Float[Tensor, "S"]:
        """Add up the values of each completion's tokens; completions without a token get 0."""
        return values.new_zeros(self.num_sequences).index_add(0, self.sequence, values)

    def sequence_means(self, values: Float[Tensor, "K"]) -> Float[Tensor, "S"]:
        """Average the values of each completion's loss tokens; values outside the mask must be 0.

        mean[s] = sum of values over M[s] / |M[s]|,  M[s] the loss tokens of completion s; 0 where there is none
        """
        lengths = self.sequence_sums(self.loss_mask.to(values.dtype))
        return self.sequence_sums(values) / lengths.clamp(min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """The importance ratios of a micro-batch for its metrics: one per token (U = K) or per completion (U = S)."""

    log_ratio: Float[Tensor, "U"]
    """log p_now - log p_old before any clipping; 0 where nothing is trained."""
    trained: Bool[Tensor, "U"]
    """True for loss tokens, and for completions that have one."""
    clipped_low: Bool[Tensor, "U"]
    """Clipped from below; no gradient comes from here."""
    clipped_high: Bool[Tensor, "U"]
    """Clipped from above."""
    per_sequence: bool = False
    """True: a ratio per completion. False: a ratio per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """What a surrogate gives."""

    values: Float[Tensor, "K"]
    """The loss of each token, to be averaged; differentiable. Values outside the mask are ignored."""
    ratios: Ratios | None = None
    """For the metrics; None: a ratio per token, none of them clipped."""
    metrics: Mapping[str, Float[Tensor, "K"]] = field(default_factory=dict[str, Tensor])
    """Further values per token, by logged name: their means over loss tokens are logged."""
