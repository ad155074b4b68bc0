"""Try rewards on some completions: values, spread inside groups, ties, failures, time. Nothing stops at an error."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.errors import MmgrpoError, counted
from mmgrpo.reward.answers import read_ground_truth
from mmgrpo.reward.columns import table
from mmgrpo.reward.compose import group_spread
from mmgrpo.reward.score import RewardSum
from mmgrpo.types import Group

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came out of a trial."""

    ids: tuple[str, ...]
    """Sample of each completion."""
    texts: tuple[str, ...]
    """What each completion says, as rewards see it."""
    truths: tuple[str, ...]
    """The truth of each one's row, without an answer tag around it; empty where there is none."""
    values: Mapping[str, Float[Tensor, "S"]]
    """Values of each reward that worked; NaN where it does not apply."""
    totals: Float[Tensor, "S"] | None
    """Totals; None where a reward failed."""
    errors: Mapping[str, str]
    """Message of each reward that failed."""
    seconds: Mapping[str, float]
    """Time of each reward."""
    spread: Mapping[str, float]
    """Mean standard deviation inside groups of each reward; 0 teaches nothing."""
    groups: int
    """How many prompts."""
    ties: int
    """Groups in which all totals are equal, from which nothing is learned."""


def try_rewards(scorer: RewardSum, groups: Sequence[Group], *, step: int = 0) -> Trial:
    """Score some completions, each reward on its own, so that one failure does not hide the others.

    Args:
        scorer: The rewards.
        groups: Prompts with completions: model-written, or from :func:`mmgrpo.reward.paste.regroup`.
        step: What rewards see as ``trainer_state.global_step``.

    Returns:
        What came out.
    """
    rows = table(groups)
    values: dict[str, Float[Tensor, "S"]] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for term in scorer.terms:
        start = time.perf_counter()
        try:
            scores = term.start(rows, step=step)()
        except MmgrpoError as error:
            errors[term.name] = str(error)
        else:
            values[term.name] = torch.tensor(scores.values, dtype=torch.float64)
        seconds[term.name] = time.perf_counter() - start
    totals = None if errors else scorer.totals(values, rows)
    ties = 0 if totals is None else sum(len(set(totals[a:b].tolist())) == 1 for a, b in rows.bounds)
    return Trial(
        ids=tuple(rows.columns["ids"]),
        texts=tuple(rows.columns["completions"]),
        truths=tuple("" if truth is None else str(read_ground_truth(truth)) for truth in rows.columns["answer"]),
        values=values,
        totals=totals,
        errors=errors,
        seconds=seconds,
        spread={name: group_spread(column, rows.bounds) for name, column in values.items()},
        groups=len(groups),
        ties=ties,
    )


def completions_table(trial: Trial, *, width: int = 60) -> Table:
    """Lay out every completion with its values, for ``Console.print``."""
    from rich.text import Text

    heads = {**trial.values, **({"total": trial.totals} if trial.totals is not None else {})}
    grid = _grid("sample", "completion", "truth", *heads)
    for row, text in enumerate(trial.texts):
        numbers = [f"{float(column[row]):.3g}" for column in heads.values()]
        grid.add_row(
            Text(_clean(trial.ids[row], 20)), Text(_clean(text, width)), Text(_clean(trial.truths[row], 20)), *numbers
        )
    return grid


def summary_table(trial: Trial) -> Table:
    """Lay out each reward: mean, spread inside groups, share that does not apply, time for a completion."""
    from rich.text import Text

    grid = _grid("reward", "mean", "spread in group", "does not apply", "ms per completion")
    for name, seconds in trial.seconds.items():
        column = trial.values.get(name)
        cells = ["", "", ""]
        if column is not None:
            share = float(column.isnan().double().mean())
            cells = [f"{float(column.nanmean()):.3g}", f"{trial.spread[name]:.3g}", f"{share:.0%}"]
        pace = f"{1000 * seconds / max(len(trial.texts), 1):.2f}"
        grid.add_row(Text(_clean(name, 40)), *cells, "failed" if name in trial.errors else pace)
    return grid


def advice(trial: Trial) -> list[str]:
    """Say what a trial shows that would not be learned from."""
    flat = [name for name, spread in trial.spread.items() if spread == 0 and len(trial.texts) > trial.groups]
    told = [f"{name} has the same value inside every group: it cancels in GRPO and teaches nothing." for name in flat]
    if trial.ties:
        told.append(
            f"All totals are equal in {trial.ties} of {counted(trial.groups, 'group')}: nothing is learned from these."
        )
    return told


def _grid(*heads: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in heads:
        grid.add_column(
            head, overflow="fold", justify="left" if head in ("sample", "completion", "truth", "reward") else "right"
        )
    return grid


def _clean(text: str, width: int) -> str:
    """One line without control characters, cut in the middle."""
    line = "".join(c if c.isprintable() else "\u00b7" for c in text)
    return line if len(line) <= width else f"{line[: width // 2]} … {line[-width // 2 + 3 :]}"
