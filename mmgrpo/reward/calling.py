"""Call one reward by name: give it what its signature asks for, and check what comes back.

Works in this process and in worker processes; knows nothing of weights, roles or groups' totals.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmgrpo.errors import ConfigError, RewardError, explain
from mmgrpo.reward.blame import advice_for, place_of
from mmgrpo.reward.columns import CONTEXT, GIVEN, Journal, TrainerState
from mmgrpo.reward.loading import Loaded
from mmgrpo.reward.returns import BadReturn, as_float, check_returns, some_ids
from mmgrpo.reward.signature import missing_columns, missing_message, select
from mmgrpo.reward.styles import arrange, arranged_names, split_metrics

__all__ = ["Values", "acall", "call", "call_reward", "check_columns", "missing_columns"]

_SINGULAR = {"completion": "completions", "prompt": "prompts", "id": "ids"}
"""What a function that is called once per completion may call these columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What one reward said of some completions."""

    values: list[float]
    """One per completion; NaN where it does not apply."""
    metrics: Mapping[str, list[float]] = field(default_factory=dict[str, "list[float]"])
    """Further values by name (EasyR1 style); NaN where there is none."""
    journal: Journal = field(default_factory=Journal)
    """What it logged."""


def check_columns(reward: Loaded, columns: Iterable[str]) -> None:
    """Find arguments without a column before training.

    Args:
        reward: The reward.
        columns: Columns of the data beside the answer.

    Raises:
        ConfigError: It asks for a column that the data does not have (the message lists the columns), or for one
            whose name is taken.
    """
    data = set(columns)
    reserved = {*GIVEN, *CONTEXT} - {"answer", "solution", "messages"}  # these three mean the same in the data
    taken = [name for name in reward.asked.names if name in data and name in reserved]
    if taken:
        raise ConfigError(
            explain(
                f"Reward {reward.name} asks for {', '.join(taken)}, which is both a column of the data and a name "
                "that mmgrpo gives to every reward",
                got=", ".join(taken),
                fix="Rename the column of the data.",
            )
        )
    single = _SINGULAR if reward.asked.single else ()
    given = [*arranged_names(reward.style, [*GIVEN, *data], reward.asked), *CONTEXT, *single]
    missing = reward.asked.lacking(given)
    if missing:
        raise ConfigError(missing_message(reward.name, missing, data, [*GIVEN, *CONTEXT]))


def call(reward: Loaded, columns: Mapping[str, Sequence[Any]], *, step: int = 0) -> Values:
    """Call a reward on some completions.

    Args:
        reward: A reward that is not asynchronous.
        columns: Native columns, all of one length.
        step: Steps done so far.

    Returns:
        Its values.

    Raises:
        RewardError: It raised, or returned something other than one number or None per completion.
    """
    journal = Journal()
    try:
        returned = [reward.function(**keywords) for keywords in _keywords(reward, columns, _context(journal, step))]
    except (Exception, SystemExit) as error:  # a reward is the user's code: whatever it raises is named and passed on
        raise _raised(reward, error, columns["ids"]) from error
    return _checked(reward, returned, columns["ids"], journal)


def call_reward(reward: Loaded, **columns: Any) -> list[float]:
    """Call a reward from inside another one, with the columns that the outer one was given.

    Args:
        reward: From ``load_reward``.
        **columns: Columns by name; what the inner reward does not ask for is left out.

    Returns:
        One float per completion; NaN where it does not apply.

    Raises:
        RewardError: As for any reward.

    Example:
        >>> from pathlib import Path
        >>> from mmgrpo.reward.loading import load_reward
        >>> inner = load_reward(lambda completions: [float(len(text)) for text in completions], base=Path())
        >>> call_reward(inner, completions=["a", "bb"], answer=[1, 2])
        [1.0, 2.0]
    """
    rows = {name: values for name, values in columns.items() if name not in CONTEXT}
    rows.setdefault("ids", [str(row) for row in range(len(rows["completions"]))])
    state = columns.get("trainer_state")
    return call(reward, rows, step=state.global_step if state else 0).values


async def acall(reward: Loaded, columns: Mapping[str, Sequence[Any]], *, step: int = 0) -> Values:
    """Call an asynchronous reward; otherwise as :func:`call`."""
    journal = Journal()

    async def one(keywords: dict[str, Any]) -> Any:
        try:
            return await reward.function(**keywords)
        except (Exception, SystemExit) as error:  # as above; here, since an exit would end the loop of events
            raise _raised(reward, error, columns["ids"]) from error

    returned = await asyncio.gather(*map(one, _keywords(reward, columns, _context(journal, step))))
    return _checked(reward, returned, columns["ids"], journal)


def _context(journal: Journal, step: int) -> dict[str, Any]:
    return {
        "trainer_state": TrainerState(global_step=step),
        "log_extra": journal.log_extra,
        "log_metric": journal.log_metric,
    }


def _keywords(reward: Loaded, columns: Mapping[str, Sequence[Any]], context: dict[str, Any]) -> list[dict[str, Any]]:
    """The keyword arguments of each call: one call for all completions, or one for each."""
    asked = reward.asked
    arranged = arrange(reward.style, columns, asked)
    have = {*arranged, *context, *(_SINGULAR if asked.single else ())}
    missing = asked.lacking(have)
    if missing:
        raise ConfigError(missing_message(reward.name, missing, set(columns) - set(GIVEN), [*GIVEN, *CONTEXT]))
    if reward.style == "easyr1":  # its further keywords come from args alone
        arranged = {name: values for name, values in arranged.items() if name.startswith("reward_input")}
        context = {}
    if not asked.single:
        return [select(asked, {**arranged, **context})]
    singular = {one: columns[many] for one, many in _SINGULAR.items()}
    rows = range(len(columns["ids"]))
    by_row = [{name: values[row] for name, values in {**arranged, **singular}.items()} for row in rows]
    return [select(asked, {**row, **context}) for row in by_row]


def _checked(reward: Loaded, returned: Sequence[Any], ids: Sequence[str], journal: Journal) -> Values:
    flat = returned if reward.asked.single else returned[0]
    values, metrics = split_metrics(reward.style, flat, reward.name)
    return Values(
        values=check_returns(values, ids, name=reward.name),
        metrics={key: [_metric(v) for v in column] for key, column in metrics.items()},
        journal=journal,
    )


def _metric(value: Any) -> float:
    number = as_float(value) if isinstance(value, int | float) else math.nan
    return number if math.isfinite(number) else math.nan


def _raised(reward: Loaded, error: Exception | SystemExit, ids: Sequence[str]) -> Exception:
    if isinstance(error, BadReturn | ConfigError):
        return error
    return RewardError(
        explain(
            f"Reward {reward.name} raised {type(error).__name__}: {error}",
            where=f"{place_of(error, reward.function)}, scoring samples {some_ids(ids)}",
            fix=advice_for(error, reward.function, reward.style),
        )
    )
