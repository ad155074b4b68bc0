"""How a run begins: its configuration, from a YAML, from Python or from the folder of an earlier start.

Loads no rows and no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmgrpo.config.load import LoadedConfig, Overrides, load
from mmgrpo.config.overrides import from_texts
from mmgrpo.config.schema import Config
from mmgrpo.observe.runfolder import RunFolder, newest_run_folder, open_run_folder

Rewards = Sequence[str | Mapping[str, Any] | Callable[..., Any]]
"""Rewards given in Python: specs, entries as in the YAML, functions or classes."""


def begin(
    config: str | Path | Config | None, overrides: Overrides, sections: Mapping[str, Any], resume: bool | str | Path
) -> tuple[LoadedConfig, RunFolder | None]:
    """Load the configuration; on resume that of the run folder, with the same overrides on top.

    Args:
        config: A YAML, a configuration, or None when everything is in ``sections``.
        overrides: Laid over it.
        sections: Laid over these.
        resume: A run folder, True for the newest of this name, or False.

    Returns:
        The configuration, and the folder to resume in; None: a new run.

    Raises:
        ConfigError: See :func:`mmgrpo.config.load.load_config`.
        CheckpointError: There is no such run.
    """
    layers = joined(overrides, sections)
    if resume is False:
        return load(config, layers), None
    if resume is True:
        loaded = load(config, layers)
        folder = newest_run_folder(loaded.config.train.output_dir, loaded.name)
    else:
        folder = open_run_folder(resume)
    loaded = load(folder.config, layers, folder=folder.base_folder())
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
        from its folder alone); else no section, and the rewards as they are.

    Example:
        >>> written(["rewards/format.py:think_answer", {"fn": "mine.py:short", "weight": 0.5}])[0]
        {'rewards': [{'fn': 'rewards/format.py:think_answer'}, {'fn': 'mine.py:short', 'weight': 0.5}]}
    """
    if rewards is None or not all(isinstance(reward, str | Mapping) for reward in rewards):
        return {}, rewards
    return {"rewards": [{"fn": reward} if isinstance(reward, str) else dict(reward) for reward in rewards]}, None


def nested(overrides: Overrides) -> Mapping[Any, Any]:
    """Read overrides of any form as a mapping."""
    if isinstance(overrides, Mapping):
        return overrides
    return from_texts([overrides] if isinstance(overrides, str) else overrides).values


def _dotted(values: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
