"""From the configuration to the draws of a run: the curriculum of each source, and the mixture of them.

Reads one column where a curriculum needs it, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mmgrpo.config.data import Data, Mixture
from mmgrpo.data.curricula import ByPassRate, Draws, InOrder, Mixed, Weights
from mmgrpo.data.mixture import AnySamples, MixedSamples
from mmgrpo.data.sampler import EasyFirst, RowOrder
from mmgrpo.errors import DatasetError, explain


def open_draws(samples: AnySamples, data: Data, *, prompts_per_step: int = 1) -> Draws:
    """Order the rows of a run.

    Args:
        samples: The rows to train on.
        data: Curriculum, weights, seed and shuffling.
        prompts_per_step: Of all processes together; weights that move do so over steps.

    Returns:
        Endless draws.

    Raises:
        DatasetError: A row has no number in the column of difficulty.
    """
    source = data.train
    if not isinstance(source, Mixture) or not isinstance(samples, MixedSamples) or source.mixture[0].weight is None:
        return _draws(samples, data, seed=data.seed)
    start = tuple(part.weight or 0.0 for part in source.mixture)
    end = tuple((part.weight if part.end_weight is None else part.end_weight) or 0.0 for part in source.mixture)
    weights = Weights(start=start, end=end, over=(source.over_steps or 0) * prompts_per_step)
    inner = [_draws(part, data, seed=data.seed + number) for number, part in enumerate(samples.parts)]
    return Mixed(inner, weights, seed=data.seed)


def _draws(samples: AnySamples, data: Data, *, seed: int) -> Draws:
    plan, together = data.curriculum, together_in(samples)
    if plan.kind == "easy_first" and plan.column is not None:
        difficulty = _numbers(samples, plan.column)
        return InOrder(EasyFirst(difficulty, epochs=plan.epochs, seed=seed, shuffle=data.shuffle, together=together))
    order = RowOrder(len(samples), seed=seed, shuffle=data.shuffle, together=together)
    if plan.kind == "by_pass_rate":
        return ByPassRate(order, low=plan.low, high=plan.high, revisit_epochs=plan.revisit_epochs)
    return InOrder(order)


def together_in(samples: AnySamples) -> int:
    """Tell how many rows behind one another stay together: 2 where every row has a twin.

    Args:
        samples: Where rows come from.
    """
    parts = samples.parts if isinstance(samples, MixedSamples) else (samples,)
    return min(part.rows.together for part in parts)


def _numbers(samples: AnySamples, column: str) -> Sequence[float]:
    return [_number(value, samples, row, column) for row, value in enumerate(samples.column(column))]


def _number(value: Any, samples: AnySamples, row: int, column: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise DatasetError(
            explain(
                "A row has no difficulty",
                where=f"{samples.where(row)}, column {column}",
                expected="a number",
                got=repr(value)[:100],
                fix="Fill the column, or name another one as data.curriculum.column.",
            )
        )
    return number
