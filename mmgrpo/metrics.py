"""Metrics that know how they are put together: over micro-batches, over ranks, over steps.

The mean of means is not the mean when the parts differ in size, so a mean carries its count. Nothing here knows what
a metric measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over ``count`` things; merged means are weighted by their counts.

    merge(a, b) = (a.value a.count + b.value b.count) / (a.count + b.count)

    Example:
        >>> Mean(1.0, 3).merge(Mean(5.0, 1))
        Mean(value=2.0, count=4)
    """

    value: float
    """The mean; NaN where ``count`` is 0."""
    count: float = 1
    """How many things it is over."""

    def merge(self, other: Mean) -> Mean:
        """Give the mean over both."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        return Mean((self.value * self.count + other.value * other.count) / count, count)


@dataclass(frozen=True, slots=True)
class Sum:
    """A total.

    Example:
        >>> Sum(2.0).merge(Sum(3.0)).value
        5.0
    """

    value: float

    def merge(self, other: Sum) -> Sum:
        """Give the total of both."""
        return Sum(self.value + other.value)


@dataclass(frozen=True, slots=True)
class Max:
    """A largest value; NaN in any part stays visible.

    Example:
        >>> Max(2.0).merge(Max(float("nan"))).value
        nan
    """

    value: float

    def merge(self, other: Max) -> Max:
        """Give the larger."""
        return Max(_extreme(self.value, other.value, max(self.value, other.value)))


@dataclass(frozen=True, slots=True)
class Min:
    """A smallest value; NaN in any part stays visible.

    Example:
        >>> Min(2.0).merge(Min(1.0)).value
        1.0
    """

    value: float

    def merge(self, other: Min) -> Min:
        """Give the smaller."""
        return Min(_extreme(self.value, other.value, min(self.value, other.value)))


Metric = Mean | Sum | Max | Min
"""A value with its reduction."""


def merge(parts: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Put the metrics of several parts together, each by its own reduction.

    Args:
        parts: One mapping per micro-batch, rank or step. A metric may be missing from some.

    Returns:
        Every metric that any part had.

    Raises:
        ValueError: One name has two kinds of reduction.

    Example:
        >>> merge([{"kl": Mean(1.0, 2)}, {"kl": Mean(4.0, 1), "tokens": Sum(7)}])
        {'kl': Mean(value=2.0, count=3), 'tokens': Sum(value=7)}
    """
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = _pair(name, merged[name], metric) if name in merged else metric
    return merged


def values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Give the plain numbers, for a sink.

    Example:
        >>> values({"reward": Mean(0.5, 8)})
        {'reward': 0.5}
    """
    return {name: metric.value for name, metric in metrics.items()}


def _pair(name: str, first: Metric, second: Metric) -> Metric:
    if type(first) is not type(second):
        kinds = f"{type(first).__name__} and {type(second).__name__}"
        raise ValueError(f"metric {name} has two kinds of reduction: {kinds}")
    return cast("Any", first).merge(second)


def _extreme(first: float, second: float, chosen: float) -> float:
    return math.nan if math.isnan(first) or math.isnan(second) else chosen
