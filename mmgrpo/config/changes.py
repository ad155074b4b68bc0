"""What differs between two configurations, key by key. Knows the tree; not what its keys do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from mmgrpo.config.schema import Config
from mmgrpo.config.write import flow


def changes(before: Config, after: Config) -> dict[str, str]:
    """List the keys whose values differ.

    Args:
        before: A configuration.
        after: Another one.

    Returns:
        By dotted key: the old value and the new one, as YAML writes them; a section that is not there is null.

    Example:
        >>> from mmgrpo.config.load import load_config
        >>> first = load_config(None, ["model.name=tiny:x"])
        >>> changes(first, load_config(first, ["loss.beta=0.1", "train.num_steps=5"]))
        {'loss.beta': '0.0 -> 0.1', 'train.num_steps': 'null -> 5'}
    """
    old, new = (dict(_leaves(config.model_dump(mode="json"), "")) for config in (before, after))
    names = [*old, *(name for name in new if name not in old)]
    return {
        name: f"{flow(old.get(name))} -> {flow(new.get(name))}" for name in names if old.get(name) != new.get(name)
    }


def _leaves(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(cast("Mapping[str, Any]", value), f"{above}{key}.")
        else:
            yield f"{above}{key}", value
