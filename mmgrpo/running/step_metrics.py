"""The metrics of one step, by the names that people know: rewards, lengths, seconds per phase, memory.

Pure functions of what the step produced.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch

from mmgrpo.grpo.advantages import reward_statistics
from mmgrpo.metrics import Max, Mean, Metric, Min, Sum, merge, values
from mmgrpo.reward.compose import group_spread
from mmgrpo.types import ScoredGroup, UpdateStats


def step_metrics(scored: Sequence[ScoredGroup], stats: UpdateStats, seconds: Mapping[str, float]) -> dict[str, float]:
    """Collect the metrics of one step.

    Args:
        scored: The step's groups.
        stats: What the update said.
        seconds: Seconds of each phase.

    Returns:
        Metrics by logged name.
    """
    return {
        **reward_metrics(scored),
        **completion_metrics(scored),
        **stats.metrics,
        "optimizer_steps": stats.optimizer_steps,
        "skipped_optimizer_steps": stats.skipped_optimizer_steps,
        "num_tokens": stats.num_tokens,
        **{f"seconds/{phase}": value for phase, value in seconds.items()},
        "step_time": sum(seconds.values()),
        "peak_memory_bytes": peak_memory_bytes(),
    }


def reward_metrics(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Totals and each reward's own mean and spread.

    ``reward_std`` is the mean over groups of the standard deviation inside a group; that over the whole batch, which
    TRL calls so, is ``reward_batch_std``. A batch can spread while no group does, and then nothing is learned. Of each
    reward ``…/group_std`` is the mean spread inside groups, and ``…/none_share`` the fraction of completions
    that it does not apply to.
    """
    totals = torch.cat([s.totals for s in scored])
    group = torch.repeat_interleave(torch.arange(len(scored)), torch.tensor([len(s.totals) for s in scored]))
    metrics = dict(reward_statistics(totals, group).metrics())
    bounds = list(pairwise(accumulate(map(len, (s.totals for s in scored)), initial=0)))
    for name in scored[0].rewards:
        values = torch.cat([s.rewards[name] for s in scored])
        metrics[f"rewards/{name}/none_share"] = float(values.isnan().double().mean())
        spread = group_spread(values, bounds)
        if not math.isnan(spread):
            metrics[f"rewards/{name}/group_std"] = spread
        values = values[~values.isnan()]
        if len(values):
            metrics[f"rewards/{name}/mean"] = float(values.mean())
            metrics[f"rewards/{name}/std"] = float(values.std()) if len(values) > 1 else 0.0
            metrics[f"rewards/{name}/at_least_1"] = float((values >= 1).double().mean())
    return metrics


def completion_metrics(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Lengths in tokens, and how many completions hit the limit."""
    completions = [c for s in scored for c in s.group.completions]
    lengths = torch.tensor([len(c.token_ids) for c in completions], dtype=torch.float64)
    ended = torch.tensor([c.status == "stop" for c in completions])
    finished = lengths[ended] if bool(ended.any()) else torch.zeros(1, dtype=torch.float64)
    return {
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/mean_terminated_length": float(finished.mean()),
        "completions/clipped_ratio": float((~ended).double().mean()),
    }


def joined_metrics(parts: Sequence[Mapping[str, float | Metric]]) -> dict[str, float]:
    """Join what each rank measured of its part of a step.

    Args:
        parts: One mapping per rank. A metric says itself how it is joined: a mean by what it was counted over. Of
            plain numbers ``…/errors`` are added up, of ``…/seconds`` and ``…/max`` the largest, of ``…/min`` the
            smallest is taken, and of others the mean of ranks.

    Returns:
        Plain numbers.

    Example:
        >>> joined_metrics([{"a": Mean(0.5, 1), "a/errors": 1.0}, {"a": Mean(0.0, 99), "a/errors": 2.0}])
        {'a': 0.005, 'a/errors': 3.0}
    """
    return values(merge([{name: _metric(name, value) for name, value in part.items()} for part in parts]))


_BY_NAME = {"/errors": Sum, "/seconds": Max, "/max": Max, "/min": Min}


def _metric(name: str, value: float | Metric) -> Metric:
    if isinstance(value, Metric):
        return value
    return next((kind for end, kind in _BY_NAME.items() if name.endswith(end)), Mean)(value)


def peak_memory_bytes() -> int:
    """Peak memory so far: of the GPU where there is one, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
