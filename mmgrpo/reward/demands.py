"""What rewards demand of the rows: that each argument has a column, and that at least one row has a value there.

A column without any value would make a reward apply to nothing, and a run learn from nothing. Calls no reward and
builds no class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import ConfigError, DataError, counted, explain
from mmgrpo.reward.calling import check_columns
from mmgrpo.reward.loading import Loaded, load_reward
from mmgrpo.types import Sample

_SPREAD = 64


class RowSource(Protocol):
    """Samples of one source."""

    @property
    def name(self) -> str:
        """What messages call the source."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that rewards may ask for."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any:
        """Make one sample."""
        ...


def check_rows(rewards: Sequence[Loaded], rows: RowSource) -> None:
    """Find rewards that the rows cannot serve, before training.

    Args:
        rewards: The rewards.
        rows: Rows to train on or to evaluate.

    Raises:
        ConfigError: A reward asks for a column that the rows do not have, or that holds no value in any of them.
    """
    columns = rows.columns
    for reward in rewards:
        check_columns(reward, [*columns, "answer"])
    wanted = {name: needs(reward, columns) for reward in rewards for name in [reward.name]}
    empty, unreadable = without_value(rows, {column for names in wanted.values() for column in names})
    for name, names in wanted.items():
        lacking = [column for column in names if column in empty]
        if lacking:
            raise ConfigError(_nothing_there(name, lacking, rows, unreadable))


def check_rewards(entries: Sequence[Reward], base: Path, sources: Sequence[RowSource]) -> None:
    """Do the same for the rewards of a YAML, without building any.

    Args:
        entries: The ``rewards:`` section.
        base: Folder of the YAML.
        sources: Rows to train on and to evaluate.

    Raises:
        ConfigError: A reward cannot be found, or the rows cannot serve it.
    """
    rewards = [
        load_reward(entry.fn, base=base, args=entry.args, style=entry.style, name=entry.name, build=False)
        for entry in entries
    ]
    for rows in sources:
        check_rows(rewards, rows)


def needs(reward: Loaded, columns: Collection[str]) -> tuple[str, ...]:
    """Name what a reward cannot do without and only the rows can give.

    Args:
        reward: The reward.
        columns: Columns of the data.

    Returns:
        Columns, and ``answer`` for the truth under whichever name it is asked for.

    Example:
        >>> reward = load_reward(lambda completions, solution, size, hint=None: [], base=Path())
        >>> needs(reward, ["size", "hint"])
        ('answer', 'size')
    """
    asked = [name for name in reward.asked.names if name in reward.asked.required]
    truth = reward.style == "easyr1" or "answer" in asked or ("solution" in asked and "solution" not in columns)
    return (*(("answer",) if truth else ()), *(name for name in asked if name in columns and name != "answer"))


def without_value(rows: RowSource, columns: Collection[str]) -> tuple[set[str], DataError | None]:
    """Name the columns that hold no value in any row. Usually the first row shows that there is none such.

    Args:
        rows: The rows.
        columns: Columns to look at; ``answer`` is the ground truth.

    Returns:
        The columns, and what is wrong with the first row that cannot be read.

    Raises:
        DataError: No row can be read: then nothing is known of its values.
    """
    empty = set(columns)
    unreadable: DataError | None = None
    is_read = False
    for row in _spread(len(rows)):
        if not empty:
            break
        try:
            sample: Sample = rows[row]
        except DataError as error:  # raised, or its row left out, where media are verified
            unreadable = unreadable or error
            continue
        is_read = True
        empty -= {name for name in empty if _value(sample, name) is not None}
    if unreadable is not None and empty and not is_read:
        raise unreadable
    return empty, unreadable


def _value(sample: Sample, name: str) -> Any:
    return sample.answer if name == "answer" else sample.extras.get(name)


def _spread(count: int) -> Iterator[int]:
    """A few rows from everywhere, then all: sources stand behind one another, and the first may be the odd one."""
    yield from range(0, count, max(1, count // _SPREAD))
    yield from range(count)


def _nothing_there(name: str, lacking: Sequence[str], rows: RowSource, unreadable: DataError | None) -> str:
    have = ", ".join(sorted(rows.columns)) or "none"
    truth = "answer" in lacking
    return explain(
        f"Reward {name} asks for {', '.join(lacking)}, and no row has a value there: it would apply to nothing",
        where=rows.name,
        expected="a truth in at least one row" if truth else "a value in at least one row",
        got=f"None in all {counted(len(rows), 'row')} (columns: {have})"
        if unreadable is None
        else f"None in every row that can be read; of the others the first says: {str(unreadable).splitlines()[0]}",
        fix=f"{'Name the column of the truth: data.columns.answer. ' if truth else ''}Add the values to the rows, "
        f"take another reward, or give the argument a default ({lacking[0]}=None) if the reward can do without.",
    )
