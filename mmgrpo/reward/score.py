"""All rewards of a run together: call them, scale, weigh, gate, and add up.

Implements :class:`mmgrpo.contracts.Scorer`. Where each reward runs is the business of ``run`` and ``pool``; what an
answer is worth, of the rewards themselves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from pydantic import ValidationError
from torch import Tensor

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import ConfigError, counted, explain
from mmgrpo.metrics import Max, Metric, Sum
from mmgrpo.reward.calling import check_columns
from mmgrpo.reward.columns import Table, table
from mmgrpo.reward.compose import Moments, combine, scale_group, scale_running
from mmgrpo.reward.demands import RowSource, check_rows
from mmgrpo.reward.run import Loop
from mmgrpo.reward.term import Scores, Term, make_term
from mmgrpo.types import Group, ScoredGroup

AnyReward = str | Callable[..., Any] | Mapping[str, Any]
"""A spec, a function or class, or a mapping with one of these as ``fn`` and the keys of ``rewards:`` beside it."""

_KEYS = ", ".join(Reward.model_fields)


class RewardSum:
    """The rewards of one run and their total."""

    names: tuple[str, ...]
    """Names of the rewards, in the order of the YAML; unique."""
    terms: tuple[Term, ...]
    """The rewards, in the same order."""

    def __init__(self, terms: Sequence[Term], *, loop: Loop | None = None) -> None:
        """Take rewards that are already loaded; :meth:`from_config` loads them.

        Args:
            terms: The rewards with their weights and roles.
            loop: The loop of the asynchronous ones.

        Raises:
            ConfigError: Two share a name, or none is added.
        """
        self.names = tuple(term.name for term in terms)
        self.terms, self._loop = tuple(terms), loop or Loop()
        self._moments = {term.name: Moments() for term in terms if term.scale == "running"}
        self._metrics: dict[str, Metric] = {}
        self._columns: tuple[str, ...] = ()
        self._warned = False
        self.gather: Callable[[Float[Tensor, "S"]], list[Float[Tensor, "S"]]] = lambda values: [values]
        """Gives the values of all processes; a run of several sets it, so that running means are those of one."""
        _check_terms(terms)

    @classmethod
    def from_config(
        cls,
        rewards: Sequence[Reward],
        base: Path,
        extra: Sequence[AnyReward] = (),
        *,
        weights: Sequence[float] | None = None,
    ) -> RewardSum:
        """Load the rewards of a YAML, and those given in Python.

        Args:
            rewards: The ``rewards:`` section.
            base: Folder of the YAML, where relative paths start.
            extra: Functions, classes without arguments, or specs, given in Python; or a mapping with one of these as
                ``fn`` and the keys of the YAML beside it (``{"fn": mine, "weight": 0.5, "style": "trl"}``).
            weights: One weight for each of ``extra``; None: 1 each.

        Returns:
            The rewards, ready to score.

        Raises:
            ConfigError: A reward cannot be found or built, names are not unique, or the weights are not as many as
                the functions.
        """
        if weights is not None and len(weights) != len(extra):
            raise ConfigError(
                explain(
                    "There must be one weight for each reward function",
                    expected=f"{len(extra)} weights for {len(extra)} reward functions",
                    got=f"{len(weights)} weights",
                    fix="Give a weight for each function, or none at all.",
                )
            )
        loop = Loop()
        terms = [make_term(reward.fn, reward, base=base, loop=loop) for reward in rewards]
        for index, given in enumerate(extra):
            keys: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"fn": given}
            if weights is not None:
                keys["weight"] = float(weights[index])
            terms.append(make_term(keys.get("fn", ""), _entry(keys, index), base=base, loop=loop))
        return cls(terms, loop=loop)

    def check_columns(self, columns: Iterable[str]) -> None:
        """Find arguments that have no column, before training.

        Args:
            columns: Columns of the data that rewards can get (``Sample.extras``).

        Raises:
            ConfigError: A reward asks for something that the data does not have.
        """
        self._columns = tuple(columns)
        for term in self.terms:
            check_columns(term.reward, self._columns)

    def check_rows(self, rows: RowSource) -> None:
        """Find arguments that have no column, or no value in any row, before training.

        Args:
            rows: Rows to train on or to evaluate.

        Raises:
            ConfigError: A reward asks for something that the rows do not have.
        """
        self._columns = tuple(rows.columns)
        check_rows([term.reward for term in self.terms], rows)

    def score(self, groups: Sequence[Group], *, step: int = 0, training: bool = True) -> list[ScoredGroup]:
        """Score every completion with every reward, each called once for all of them.

        Args:
            groups: Prompts with their completions.
            step: Steps done so far; rewards see it as ``trainer_state.global_step``.
            training: False (evaluation) leaves running means as they are.

        Returns:
            The groups, in order, with totals and each reward's unweighted values in float64; NaN where none applies.

        Raises:
            RewardError: A reward raised or broke its contract, and its ``on_error`` is ``stop``.
        """
        if not groups:
            return []
        rows = table(groups, known=self._columns)
        waiting = [term.start(rows, step=step) for term in self.terms]  # asynchronous ones and workers go first
        scores = [wait() for wait in waiting]
        values = {term.name: _tensor(s.values) for term, s in zip(self.terms, scores, strict=True)}
        totals = self.totals(values, rows, training=training)
        skipped = {row for s in scores for group in s.skipped for row in range(*rows.bounds[group])}
        totals[list(skipped)] = torch.nan
        self._warn_if_none_applies(totals, skipped, rows)
        self._note(scores)
        for term, s in zip(self.terms, scores, strict=True):
            values |= {f"{term.name}/{key}": _tensor(column) for key, column in s.metrics.items()}
        extra = {key: column for s in scores for key, column in s.extra.items() if len(column) == rows.rows}
        return [
            ScoredGroup(
                group=group,
                totals=totals[a:b],
                rewards={name: v[a:b] for name, v in values.items()},
                extra={name: column[a:b] for name, column in extra.items()},
            )
            for group, (a, b) in zip(groups, rows.bounds, strict=True)
        ]

    def metrics(self) -> dict[str, Metric]:
        """Numbers of the last call that values alone do not show.

        Returns:
            For each reward ``rewards/{name}/seconds`` and ``/errors`` (groups left out), and whatever rewards logged
            with ``log_metric``.
        """
        return dict(self._metrics)

    def state(self) -> dict[str, Any]:
        """Running means, for a checkpoint."""
        return {name: moments.state() for name, moments in self._moments.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the running means of ``state``."""
        for name, moments in self._moments.items():
            if name in state:
                moments.load_state(state[name])

    def close(self) -> None:
        """End worker processes and the loop."""
        for term in self.terms:
            term.runner.close()
        self._loop.close()

    def totals(
        self, values: Mapping[str, Float[Tensor, "S"]], rows: Table, *, training: bool = False
    ) -> Float[Tensor, "S"]:
        """Scale, weigh, gate and add up values that are already known.

        Args:
            values: Each reward's values by name.
            rows: The completions they belong to.
            training: True takes the values into the running means.

        Returns:
            Totals; NaN where no reward applies.
        """
        added = [(t.weight, self._scaled(t, values[t.name], rows, training)) for t in self.terms if t.role == "add"]
        return combine(added, [values[t.name] for t in self.terms if t.role == "gate"])

    def _scaled(self, term: Term, values: Float[Tensor, "S"], rows: Table, training: bool) -> Float[Tensor, "S"]:
        if term.scale == "group":
            return scale_group(values, rows.bounds)
        if term.scale == "running":
            if training:
                self._moments[term.name].add(torch.cat(self.gather(values)))
            return scale_running(values, self._moments[term.name])
        return values

    def _note(self, scores: Sequence[Scores]) -> None:
        self._metrics = {}
        for term, s in zip(self.terms, scores, strict=True):
            name = f"rewards/{term.name}"
            self._metrics[f"{name}/seconds"] = Max(s.seconds)
            self._metrics[f"{name}/errors"] = Sum(float(len(s.skipped)))
            self._metrics |= s.logged

    def _warn_if_none_applies(self, totals: Float[Tensor, "S"], skipped: set[int], rows: Table) -> None:
        lost = [row for row, total in enumerate(totals.tolist()) if math.isnan(total) and row not in skipped]
        if lost and not self._warned:
            self._warned = True
            sample = rows.columns["ids"][lost[0]]
            warnings.warn(
                f"No reward applies to {len(lost)} of {counted(rows.rows, 'completion')} (first: sample {sample}); "
                "they are not learned from. Said once.",
                stacklevel=3,
            )


def _entry(keys: Mapping[str, Any], index: int) -> Reward:
    """Check the keys of a reward given in Python as those of the YAML are."""
    named = "given in Python" if callable(keys.get("fn")) else keys.get("fn")
    try:
        return Reward.model_validate({**keys, "fn": named})
    except ValidationError as error:
        first = error.errors()[0]
        where = f"reward {index} given in Python, key {'.'.join(map(str, first['loc']))}"
        raise ConfigError(
            explain("A reward is described wrongly", where=where, got=first["msg"], expected=_KEYS)
        ) from error


def _tensor(values: Sequence[float]) -> Float[Tensor, "S"]:
    return torch.tensor(values, dtype=torch.float64)


def _check_terms(terms: Sequence[Term]) -> None:
    names = [term.name for term in terms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            explain(
                "Two rewards have the same name",
                got=", ".join(twice),
                fix="Give one of them another name: {fn: …, name: my_name}.",
            )
        )
    if not any(term.role == "add" for term in terms):
        raise ConfigError(
            explain(
                "There is no reward to learn from",
                expected="at least one reward with role: add",
                got=", ".join(f"{t.name} ({t.role})" for t in terms) or "no rewards",
                fix="Add one under rewards: in the YAML, or give rewards=[my_function].",
            )
        )
