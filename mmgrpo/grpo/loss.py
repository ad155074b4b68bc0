"""The loss of one micro-batch, as its contribution to the optimizer step's: surrogate x weights, averaged, plus terms.

    loss = average of (surrogate[t] x product of weights[t])  +  sum over terms of coefficient x average of term[t]

A surrogate, a weight and a term are each one function of :class:`~mmgrpo.grpo.inputs.TokenInputs`; the tables here
name those that are built in, and :func:`load_loss` finds a user's own. Works on packed tokens; knows nothing of
models, of how log-probs were computed, or of how many micro-batches and ranks there are: ``Counts`` carries that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.errors import ConfigError, TrainingError, explain
from mmgrpo.grpo.inputs import Counts, LossSettings, Ratios, TokenInputs, TokenLoss
from mmgrpo.grpo.logprobs import kl_estimate
from mmgrpo.plugins import build_object, load_object, plugin_errors

Surrogate = Callable[[TokenInputs, LossSettings], TokenLoss | Tensor]
"""The loss of each token. Two attributes say more about it, both False where it has none: with ``needs_entropy`` it
gets ``inputs.entropy``, with its gradient; ``zero_without_advantage`` promises a gradient of exactly 0 where
advantages are 0, so that groups of equal rewards need not be computed."""
Weight = Callable[[TokenInputs, LossSettings], Tensor]
"""A factor of each token's loss, taken as a constant."""
Term = Callable[[TokenInputs, LossSettings], tuple[float, Tensor] | None]
"""A coefficient and the value of each token, added to the loss; None: switched off by the settings."""
Aggregate = Callable[[Tensor, TokenInputs, Counts], Tensor]
"""Token values, 0 outside the mask, to this micro-batch's contribution to the step's average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """What :func:`policy_loss` gives."""

    loss: Float[Tensor, ""]
    """This micro-batch's contribution to the optimizer step's loss; call ``backward`` on it."""
    policy_loss: Float[Tensor, ""]
    """The same without terms, detached."""
    terms: Mapping[str, Float[Tensor, "K"]]
    """The values of each term by name, detached, 0 outside the mask."""
    ratios: Ratios
    """Detached."""
    metrics: Mapping[str, Float[Tensor, "K"]]
    """What the surrogate measured, detached, 0 outside the mask."""


def policy_loss(
    inputs: TokenInputs,
    settings: LossSettings,
    counts: Counts,
    *,
    surrogate: Surrogate | None = None,
    weights: Sequence[Weight] = (),
) -> PolicyLoss:
    """Compute the loss of one micro-batch.

    The losses of all micro-batches of an optimizer step add up to the step's loss: do not divide again. Where all
    advantages are 0, the policy part and its gradient are exactly 0; with ``beta`` above 0 the KL term still draws the
    policy towards the reference.

    Args:
        inputs: The micro-batch. Outside ``loss_mask`` its values may be anything: they give exactly 0 loss and 0
            gradient.
        settings: The ``loss:`` section.
        counts: Denominators of the whole optimizer step. ``num_tokens`` of 0 gives a loss of exactly 0.
        surrogate: The loss of each token; default: :func:`clip`.
        weights: Factors of it.

    Returns:
        The differentiable loss, and what its metrics are made of.

    Raises:
        ValueError: ``beta`` is above 0 without ``ref_logprobs``.
        TrainingError: A surrogate or weight gave something else than one value per token, or raised.

    Source: DeepSeekMath, arXiv:2402.03300, equation 3; see the functions of the tables for the variants.

    Example:
        >>> from mmgrpo.config.loss import Loss
        >>> now = torch.tensor([-1.0, -2.0, -3.0])
        >>> inputs = TokenInputs(
        ...     logprobs=now, old_logprobs=now, rollout_logprobs=now, advantages=torch.tensor([1.0, 1.0, -1.0]),
        ...     loss_mask=now < 0, sequence=torch.tensor([0, 0, 1]), num_sequences=2,
        ... )
        >>> counts = Counts(num_tokens=3, num_sequences=2, max_completion_length=4)
        >>> policy_loss(inputs, Loss(loss_type="dapo"), counts).loss
        tensor(-0.3333)
    """
    inputs = inputs.masked()

    def average(values: Float[Tensor, "K"]) -> Float[Tensor, ""]:
        # masked once more: a surrogate may give anything there, 1 at a ratio of 1 for example
        return AGGREGATES[settings.loss_type](values.masked_fill(~inputs.loss_mask, 0), inputs, counts)

    given = (surrogate or clip)(inputs, settings)
    token_loss = given if isinstance(given, TokenLoss) else TokenLoss(values=given)
    values = _fitting(token_loss.values, inputs, "The loss")
    for weight in weights:
        values = values * _fitting(weight(inputs, settings), inputs, "A weight").detach()
    policy = loss = average(values)
    terms: dict[str, Tensor] = {}
    for name, term in TERMS.items():
        if (found := term(inputs, settings)) is not None:
            loss = loss + found[0] * average(found[1])
            terms[name] = found[1].detach().masked_fill(~inputs.loss_mask, 0)
    return PolicyLoss(
        loss=loss,
        policy_loss=policy.detach(),
        terms=terms,
        ratios=_detached(token_loss.ratios or _token_ratios(inputs)),
        metrics={name: v.detach().masked_fill(~inputs.loss_mask, 0) for name, v in token_loss.metrics.items()},
    )


# Surrogates


def clip(inputs: TokenInputs, settings: LossSettings) -> TokenLoss:
    """Clip the importance ratio of each token, or of each completion.

    loss[t] = -min(min(w, delta) A, clip(w, 1 - epsilon, 1 + epsilon_high) A),  A = advantages[t]

    which is -w' A, with w' = min(w, 1 + epsilon_high) where A >= 0 and w' = min(max(w, 1 - epsilon), delta) where
    A < 0. With ``importance_sampling_level``

        token:    log w[t] = log p_now[t] - log p_old[t]
        sequence: log w[t] = mean of that over the loss tokens of t's completion

    The bounds are put on log w, so that a clipped ratio cannot overflow: its gradient is 0, never NaN. Where A is 0
    the loss and its gradient are exactly 0. Without a bound (A < 0, no delta) a ratio that overflows gives an honest
    infinity. The bound ``delta`` is not counted as clipped.

    Args:
        inputs: The micro-batch, masked.
        settings: Gives epsilon, epsilon_high, delta and the level.

    Returns:
        The loss of each token, and the ratios.

    Source: DeepSeekMath, arXiv:2402.03300, equation 3; DAPO, arXiv:2503.14476, section 3.1 (epsilon_high);
        INTELLECT-2, arXiv:2505.07291, "Two-sided GRPO clipping" (delta); GSPO, arXiv:2507.18071, section 4 (sequence).
    """
    low, high, delta = log_bounds(settings)
    log_ratio = level_log_ratio(inputs, settings)
    negative = inputs.advantages < 0
    floor = torch.full_like(log_ratio, -torch.inf).masked_fill(negative, low)
    ceiling = torch.full_like(log_ratio, high).masked_fill(negative, delta)
    values = -log_ratio.clamp(floor, ceiling).exp() * inputs.advantages
    is_low = (log_ratio < low) & negative
    is_high = (log_ratio > high) & (inputs.advantages > 0)
    if settings.importance_sampling_level == "sequence":
        return TokenLoss(values=values, ratios=_sequence_ratios(inputs, is_low, is_high))
    return TokenLoss(values=values, ratios=_token_ratios(inputs, is_low, is_high))


clip.zero_without_advantage = True  # type: ignore[attr-defined]


def level_log_ratio(inputs: TokenInputs, settings: LossSettings) -> Float[Tensor, "K"]:
    """Give log w of each token: its own, or that of its completion, as ``importance_sampling_level`` says."""
    if settings.importance_sampling_level == "token":
        return inputs.log_ratio
    # zeros outside the mask again: the ratio of a whole completion may overflow there
    return inputs.sequence_means(inputs.log_ratio)[inputs.sequence].masked_fill(~inputs.loss_mask, 0)


def log_bounds(settings: LossSettings) -> tuple[float, float, float]:
    """Give log(1 - epsilon), log(1 + epsilon_high), log(delta); infinite where there is no bound.

    Example:
        >>> from mmgrpo.config.loss import Loss
        >>> log_bounds(Loss(epsilon=1.0, epsilon_high=1.0))
        (-inf, 0.6931471805599453, inf)
    """
    upper = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
    # A ratio is positive, so a lower bound of 0 or less never binds.
    low = math.log1p(-settings.epsilon) if settings.epsilon < 1 else -math.inf
    return low, math.log1p(upper), math.inf if settings.delta is None else math.log(settings.delta)


LOSSES: Mapping[str, Surrogate] = {"clip": clip}
"""Surrogates by name. A user's own needs no entry: ``loss.fn`` may name a file."""


def load_loss(spec: str | None, args: Mapping[str, Any], *, folder: Path) -> Surrogate:
    """Find the surrogate of a run.

    Args:
        spec: A name of :data:`LOSSES`, ``path.py:name``, ``module:name``, or an entry point of ``mmgrpo.losses``;
            None: "clip". A class is built with ``args``, a function gets them as keyword arguments of every call.
        args: Keyword arguments.
        folder: Folder of the YAML.

    Returns:
        The surrogate; whatever a user's own raises becomes one message.

    Raises:
        ConfigError: There is none, or it cannot be built or called.

    Example:
        >>> load_loss(None, {}, folder=Path()) is clip
        True
    """
    if spec is None or spec in LOSSES:
        return LOSSES[spec or "clip"]
    target = load_object(spec, kind="losses", folder=folder, where="loss.fn")
    if isinstance(target, type):
        built = build_object(target, args, spec=spec, where="loss.fn")
    else:
        built = partial(target, **args) if args else target
    if not callable(built):
        raise ConfigError(
            explain(
                f"{spec} cannot be called",
                where="loss.fn",
                expected="a function of (inputs, settings), or a class with __call__",
                got=type(built).__name__,
            )
        )
    said = {name: bool(getattr(target, name, False)) for name in ("needs_entropy", "zero_without_advantage")}
    return _Guarded(built, spec, **said)


class _Guarded:
    """A user's surrogate, whose errors become one message.

    Args:
        surrogate: The user's.
        spec: How it was named.
        needs_entropy: As it says.
        zero_without_advantage: As it says.
    """

    def __init__(self, surrogate: Surrogate, spec: str, *, needs_entropy: bool, zero_without_advantage: bool) -> None:
        self._surrogate, self._spec, self.needs_entropy = surrogate, spec, needs_entropy
        self.zero_without_advantage = zero_without_advantage

    def __call__(self, inputs: TokenInputs, settings: LossSettings) -> TokenLoss | Tensor:
        """Call it."""
        with plugin_errors(
            f"The loss {self._spec} raised", where="loss.fn", fix="Correct the function.", error=TrainingError
        ):
            return self._surrogate(inputs, settings)


# Terms


def kl_term(inputs: TokenInputs, settings: LossSettings) -> tuple[float, Tensor] | None:
    """Draw the policy towards the reference: beta times k3 of each token; None where beta is 0.

    With ``use_bias_correction_kl`` k3 is multiplied by the importance ratio, which makes it an unbiased estimate where
    the policy has moved since the tokens were drawn.

    Source: DeepSeekMath, arXiv:2402.03300, equation 4; DeepSeek-V3.2, arXiv:2512.02556 (correction).
    """
    if settings.beta == 0:
        return None
    if inputs.ref_logprobs is None:
        raise ValueError(
            explain("beta is above 0 but there are no log-probs of a reference", expected="ref_logprobs", got="None")
        )
    values = kl_estimate(inputs.logprobs, inputs.ref_logprobs)
    if settings.use_bias_correction_kl:
        values = values * level_log_ratio(inputs, settings).exp()
    return settings.beta, values


TERMS: Mapping[str, Term] = {"kl": kl_term}
"""What is added to the loss, by the name under which its mean per token is logged."""


# Averages


def mean_of_sequences(values: Float[Tensor, "K"], inputs: TokenInputs, counts: Counts) -> Float[Tensor, ""]:
    """Average over each completion's loss tokens M[s], then over completions.

    sum_s (sum of values over M[s]) / |M[s]|  / num_sequences

    Source: DeepSeekMath, arXiv:2402.03300, equation 3 (grpo).
    """
    return inputs.sequence_means(values).sum() / max(counts.num_sequences, 1)


def mean_by_longest(values: Float[Tensor, "K"], inputs: TokenInputs, counts: Counts) -> Float[Tensor, ""]:
    """Divide by a constant of the run: sum of all values / (num_sequences * max_completion_length).

    Source: Dr. GRPO, arXiv:2503.20783, section 3 (dr_grpo).
    """
    return values.sum() / max(counts.num_sequences * counts.max_completion_length, 1)


def mean_of_tokens(values: Float[Tensor, "K"], inputs: TokenInputs, counts: Counts) -> Float[Tensor, ""]:
    """Average over all loss tokens of the optimizer step: sum of all values / num_tokens.

    Source: DAPO, arXiv:2503.14476, section 3.3 (dapo, bnpo).
    """
    return values.sum() / max(counts.num_tokens, 1)


AGGREGATES: Mapping[str, Aggregate] = {
    "grpo": mean_of_sequences,
    "dr_grpo": mean_by_longest,
    "dapo": mean_of_tokens,
    "bnpo": mean_of_tokens,
}
"""Averages by ``loss_type``. The results of all micro-batches add up to the step's: do not divide by their number."""


# Metrics


def _token_ratios(inputs: TokenInputs, low: Tensor | None = None, high: Tensor | None = None) -> Ratios:
    none = torch.zeros_like(inputs.loss_mask)
    return Ratios(
        log_ratio=inputs.log_ratio,
        trained=inputs.loss_mask,
        clipped_low=none if low is None else low,
        clipped_high=none if high is None else high,
    )


def _sequence_ratios(inputs: TokenInputs, low: Tensor, high: Tensor) -> Ratios:
    def any_token(mask: Tensor) -> Tensor:
        return inputs.sequence_sums((mask & inputs.loss_mask).to(inputs.logprobs.dtype)) > 0

    return Ratios(
        log_ratio=inputs.sequence_means(inputs.log_ratio),
        trained=any_token(inputs.loss_mask),
        clipped_low=any_token(low),
        clipped_high=any_token(high),
        per_sequence=True,
    )


def _detached(ratios: Ratios) -> Ratios:
    return Ratios(
        log_ratio=ratios.log_ratio.detach(),
        trained=ratios.trained,
        clipped_low=ratios.clipped_low & ratios.trained,
        clipped_high=ratios.clipped_high & ratios.trained,
        per_sequence=ratios.per_sequence,
    )


def _fitting(values: Any, inputs: TokenInputs, what: str) -> Tensor:
    """Refuse what is no tensor of one value per token; torch would broadcast it without a word."""
    expected, got = list(inputs.logprobs.shape), list(getattr(values, "shape", ()))
    if not isinstance(values, Tensor) or got != expected:
        shape = f"shape {got}" if isinstance(values, Tensor) else type(values).__name__
        raise TrainingError(
            explain(f"{what} is not one value per token", where="loss.fn", expected=f"shape {expected}", got=shape)
        )
    return values
