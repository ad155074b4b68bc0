"""One micro-batch backward, checked: GRPO and warm start share it. Knows neither's loss."""

from __future__ import annotations

from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.errors import TrainingError, explain
from mmgrpo.training.optimizer import Optimizer
from mmgrpo.types import Batch

NAMED_SAMPLES = 8
"""Sample ids that an error lists before it only counts."""


def backward(loss: Float[Tensor, ""], batch: Batch, *, optimizer: Optimizer, check_finite: bool = True) -> None:
    """Add a micro-batch's gradient to those of its optimizer step.

    Args:
        loss: The micro-batch's share of the step's loss.
        batch: Where the loss comes from; only named in errors.
        optimizer: Collects the gradients.
        check_finite: Stop on a loss or gradient that is infinite or NaN.

    Raises:
        TrainingError: Loss or gradient is not finite. Weights are as they were; the caller clears the gradients.
    """
    if check_finite and not bool(torch.isfinite(loss)):
        _stop("loss", float(loss.detach()), batch)
    loss.backward()
    optimizer.collect()
    if check_finite:
        norm = optimizer.grad_norm()
        # Gradients were finite before this micro-batch, or the one before would have stopped.
        if not bool(torch.isfinite(norm)):
            _stop("gradient norm", float(norm), batch)


def _stop(name: str, value: float, batch: Batch) -> NoReturn:
    raise TrainingError(
        explain(
            f"The {name} is not finite; training stops before the weights are changed",
            where=f"samples {sample_names(batch)}",
            expected="a finite number",
            got=f"{name} {value}",
            fix="Look at these samples, their pictures and rewards. If they are sound, lower train.learning_rate or "
            "set model.dtype: float32. The last checkpoint is not affected.",
        )
    )


def sample_names(batch: Batch) -> str:
    """List the sample ids of a micro-batch, the first few by name."""
    ids = list(dict.fromkeys(segment.prompt.sample.id for segment in batch.segments))
    more = f" and {len(ids) - NAMED_SAMPLES} more" if len(ids) > NAMED_SAMPLES else ""
    return ", ".join(ids[:NAMED_SAMPLES]) + more
