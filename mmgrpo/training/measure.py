"""Metrics of an update that are not the loss's own: engine against trainer, and means over optimizer steps.

Knows names and numbers; does not know models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.grpo.logprobs import mismatch
from mmgrpo.training.frozen import MicroBatch

KnownLogprobs = tuple[Float[Tensor, "K"], Float[Tensor, "K"], Bool[Tensor, "K"]]
"""Log-probs of the trainer and of the engine, in nats, and which of them are of trained tokens; on the CPU."""


def known_logprobs(micros: Sequence[MicroBatch]) -> list[KnownLogprobs]:
    """Give the log-probs of the micro-batches that were computed.

    Args:
        micros: Micro-batches; those without old log-probs are left out.
    """
    # to the CPU first: not every device has the float64 in which thousands of small differences are averaged
    return [
        (m.old_logprobs.cpu(), m.rows.rollout_logprobs.cpu(), m.rows.loss_mask.cpu())
        for m in micros
        if m.old_logprobs is not None
    ]


def sampling_metrics(known: Sequence[KnownLogprobs]) -> dict[str, float]:
    """Compare the engine's log-probs with the trainer's, on trained tokens, under the weights that the step found.

    difference[t] = |old_logprobs[t] - rollout_logprobs[t]|,  ratio[t] = exp(old_logprobs[t] - rollout_logprobs[t])

    Args:
        known: From :func:`known_logprobs`, of all processes.

    Returns:
        ``sampling/sampling_logp_difference/{mean,max}`` in nats and ``sampling/importance_sampling_ratio/
        {min,mean,max}``; nothing where no token was computed.
    """
    if not known:
        return {}
    old, rollout, mask = (torch.cat(parts) for parts in zip(*known, strict=True))
    return mismatch(old.double(), rollout.double(), mask).metrics()


def mean_over_steps(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average the metrics of several optimizer steps; ``…/min`` and ``…/max`` keep the extreme.

    Args:
        metrics: One mapping per optimizer step, which need not have the same names.

    Returns:
        One value per name, over the steps that have it.

    Example:
        >>> mean_over_steps([{"loss": 1.0, "ratio/max": 1.0}, {"loss": 3.0, "ratio/max": 2.0}])
        {'loss': 2.0, 'ratio/max': 2.0}
    """
    names = dict.fromkeys(name for step in metrics for name in step)
    return {name: _join(name, [step[name] for step in metrics if name in step]) for name in names}


def longest(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Give the longest time of each name: all processes wait for the slowest.

    Args:
        seconds: One mapping per process, which need not have the same names.

    Example:
        >>> longest([{}, {"a": 1.0}, {"a": 2.0}])
        {'a': 2.0}
    """
    names = dict.fromkeys(name for part in seconds for name in part)
    return {name: max(part[name] for part in seconds if name in part) for name in names}


def masked_sum(values: Float[Tensor, "K"], mask: Tensor) -> float:
    """Add up the values of trained tokens."""
    return float(values.detach().masked_fill(~mask, 0).sum())


def _join(name: str, values: Sequence[float]) -> float:
    if name.endswith("/min"):
        return min(values)
    return max(values) if name.endswith("/max") else sum(values) / len(values)
