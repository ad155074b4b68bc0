"""From every reward's values to one total: scaling, weights, gates.

Pure tensor arithmetic in float64; NaN means "does not apply". Knows nothing of functions or of text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Role = Literal["add", "gate", "metric"]
Scale = Literal["none", "running", "group"]
EPS = 1e-4


@dataclass(slots=True)
class Moments:
    """Running mean and variance of one reward over the run (Welford)."""

    count: int = 0
    """Values seen."""
    mean: float = 0.0
    """Their mean."""
    squares: float = 0.0
    """Sum of squared differences from the mean."""

    def add(self, values: Float[Tensor, "S"]) -> None:
        """Take in the values that are not NaN."""
        new = values[~values.isnan()]
        if not len(new):
            return
        count, mean = len(new), float(new.mean())
        squares = float(((new - mean) ** 2).sum())
        delta, total = mean - self.mean, self.count + count
        self.squares += squares + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total

    @property
    def std(self) -> float:
        """Unbiased standard deviation; 0 for fewer than two values."""
        return (self.squares / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0

    def state(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Continue where ``state`` stood."""
        self.count, self.mean, self.squares = int(state["count"]), float(state["mean"]), float(state["squares"])


def scale_running(values: Float[Tensor, "S"], moments: Moments) -> Float[Tensor, "S"]:
    """Scale by the mean and deviation of all values so far.

    s = (r - mean) / (std + eps)
    """
    return (values - moments.mean) / (moments.std + EPS)


def scale_group(values: Float[Tensor, "S"], bounds: Sequence[tuple[int, int]]) -> Float[Tensor, "S"]:
    """Scale each group by its own mean and deviation, as GDPO does with each reward before they are added.

    s = (r - mean(r over the group)) / (std(r over the group) + eps)

    Args:
        values: One reward's values; NaN where it does not apply.
        bounds: First row and row after the last of each group.

    Returns:
        Scaled values; NaN stays NaN.

    Source: GDPO, arXiv:2601.05242, section 3.

    Example:
        >>> scale_group(torch.tensor([1.0, 0.0, 5.0], dtype=torch.float64), [(0, 2), (2, 3)]).round(decimals=2)
        tensor([ 0.7100, -0.7100,  0.0000], dtype=torch.float64)
    """
    scaled = values.clone()
    for start, end in bounds:
        group = values[start:end]
        applies = group[~group.isnan()]
        std = applies.std() if len(applies) > 1 else torch.zeros((), dtype=values.dtype)
        scaled[start:end] = (group - (applies.mean() if len(applies) else 0.0)) / (std + EPS)
    return scaled


def combine(
    added: Sequence[tuple[float, Float[Tensor, "S"]]], gates: Sequence[Float[Tensor, "S"]]
) -> Float[Tensor, "S"]:
    """Add the weighted rewards that apply, then multiply by the gates that apply.

    total = prod(gates) * sum(weight * reward)

    Args:
        added: Weight and (scaled) values of each reward with role add.
        gates: Values of each reward with role gate.

    Returns:
        Totals; NaN where no added reward applies.

    Example:
        >>> nan = float("nan")
        >>> values = [torch.tensor([1.0, nan, nan]), torch.tensor([1.0, 1.0, nan])]
        >>> combine([(1.0, values[0]), (0.5, values[1])], [torch.tensor([0.5, nan, 1.0])])
        tensor([0.7500, 0.5000,    nan])
    """
    stacked = torch.stack([values for _, values in added])
    weights = torch.tensor([weight for weight, _ in added], dtype=stacked.dtype)[:, None]
    totals = torch.where(stacked.isnan(), 0.0, stacked * weights).sum(0)
    for gate in gates:
        totals = totals * torch.where(gate.isnan(), 1.0, gate)
    return torch.where(stacked.isnan().all(0), torch.nan, totals)


def group_spread(values: Float[Tensor, "S"], bounds: Sequence[tuple[int, int]]) -> float:
    """Mean over groups of the standard deviation inside each; NaN where no group has two values."""
    spreads = [g[~g.isnan()] for g in (values[start:end] for start, end in bounds)]
    stds = [float(group.std()) for group in spreads if len(group) > 1]
    return sum(stds) / len(stds) if stds else float("nan")
