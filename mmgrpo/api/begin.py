"""How a run begins: its configuration, from a YAML, from Python or from the folder of an earlier start.

Loads no rows and no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmgrpo.config.load import AnyConfig, LoadedConfig, Overrides, read_overrides, resolve_config
from mmgrpo.errors import ConfigError, explain
from mmgrpo.observe.runfolder import RunFolder, newest_run_folder, open_run_folder

OneReward = str | Mapping[str, Any] | Callable[..., Any]
"""A spec, an entry as in the YAML, a function or a class."""
Rewards = OneReward | Sequence[OneReward]
"""Rewards given in Python; a single one may stand without a list."""


def begin(
    config: AnyConfig, overrides: Overrides, sections: Mapping[str, Any], resume: bool | str | Path | None
) -> tuple[LoadedConfig, RunFolder | None]:
    """Load the configuration; on resume that of the run folder, with the same overrides on top.

    Args:
        config: A YAML, a configuration, a mapping of sections, or None when everything is in ``sections``.
        overrides: Laid over it.
        sections: Laid over these.
        resume: A run folder, True for the newest of this name, or False (None).

    Returns:
        The configuration, and the folder to resume in; None: a new run.

    Raises:
        ConfigError: See :func:`mmgrpo.config.load.load_config`.
        CheckpointError: There is no such run.
    """
    if not isinstance(resume, bool | str | Path | None):
        expected = "a run folder, or True for the newest of this name"
        raise ConfigError(explain("resume names no run", expected=expected, got=f"{resume!r:.80}"))
    layers = joined(overrides, sections)
    if resume is None or resume is False:
        return resolve_config(config, layers), None
    if resume is True:
        loaded = resolve_config(config, layers)
        folder = newest_run_folder(loaded.config.train.output_dir, loaded.name)
    else:
        folder = open_run_folder(resume)
    loaded = resolve_config(folder.config, layers, folder=folder.base_folder())
    return replace(loaded, name=folder.path.name), folder


def joined(overrides: Overrides, sections: Mapping[str, Any]) -> Overrides:
    """Make one layer of overrides and of sections given in Python, which win.

    Example:
        >>> joined(["train.seed=1", "loss.beta=0.1"], {"train": {"seed": 2}})
        {'train.seed': 2, 'loss.beta': 0.1}
    """
    if not sections:
        return overrides
    return dict([*_dotted(nested(overrides)), *_dotted(sections)])


def written(rewards: Rewards | None) -> tuple[dict[str, Any], Sequence[Any] | None]:
    """Tell rewards that a YAML could name from Python objects.

    Args:
        rewards: As they were given.

    Returns:
        A section of the configuration and None, where all of them can be written down (a run can then be resumed
        from its folder alone); else an empty section, and the rewards as they are.

    Example:
        >>> written(["rewards/format.py:think_answer", {"fn": "mine.py:short", "weight": 0.5}])[0]
        {'rewards': [{'fn': 'rewards/format.py:think_answer'}, {'fn': 'mine.py:short', 'weight': 0.5}]}
    """
    if rewards is None:
        return {}, None
    listed = [rewards] if isinstance(rewards, str | Mapping) or callable(rewards) else rewards
    if not isinstance(listed, Sequence) or not all(isinstance(r, str | Mapping) or callable(r) for r in listed):
        raise ConfigError(
            explain(
                "These are no rewards",
                expected='functions, specs ("rewards/exact.py:exact_answer") or {"fn": …, "weight": 0.5}, in a list',
                got=f"{rewards!r:.120}",
            )
        )
    if any(
        not isinstance(reward, str | Mapping) or callable(reward.get("fn") if isinstance(reward, Mapping) else 0)
        for reward in listed
    ):
        return {"rewards": []}, listed  # the folder's configuration must not name others than were used
    return {"rewards": [{"fn": reward} if isinstance(reward, str) else dict(reward) for reward in listed]}, None


def nested(overrides: Overrides) -> Mapping[Any, Any]:
    """Read overrides of any form as a mapping."""
    return overrides if isinstance(overrides, Mapping) else read_overrides(overrides).values


def _dotted(values: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
