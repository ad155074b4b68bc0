"""The resolved configuration for people: YAML with every meaning, what differs from another, the page of all keys.

``python -m mmgrpo.config.show`` prints that page. This file knows the schema and nothing of what keys do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, cast

from mmgrpo.config.base import Section
from mmgrpo.config.keys import ConfigKey, all_keys, always_there, describe, is_list, one_line
from mmgrpo.config.schema import Config
from mmgrpo.config.warm_start import WarmStart
from mmgrpo.config.yaml_text import to_block, to_flow
from mmgrpo.errors import counted

_WIDTH = 119


def render_config(config: Config) -> str:
    """Write a configuration as YAML: every key with its value and its meaning, and the sizes that follow from them.

    Args:
        config: The configuration.

    Returns:
        YAML that loads back to the same configuration.
    """
    return "\n".join([*_sizes_lines(config), "", *_lines(config, ""), ""])


def derived_sizes(config: Config) -> dict[str, str]:
    """Work out the sizes that follow from the keys, each with its unit.

    Args:
        config: The configuration.

    Returns:
        Name and value, in the order in which they are shown.

    Example:
        >>> from mmgrpo.config.load import load_config
        >>> derived_sizes(load_config(None, ["model.name=tiny:x"]))["completions per step"]
        '64 (8 prompts x 8)'
    """
    train, group = config.train, config.rollout.num_generations
    updates = train.optimizer_steps * config.loss.num_iterations
    length = config.rollout.max_completion_length
    product = f"{counted(train.prompts_per_step, 'prompt')} x {group:,}"
    found = {
        "prompts per step": f"{train.prompts_per_step:,}",
        "completions per step": f"{train.prompts_per_step * group:,} ({product})",
        "optimizer steps per rollout": f"{updates:,}",
        "completions per optimizer step": f"{_learned_at_once(config):,}",
        "completion tokens per step": f"at most {train.prompts_per_step * group * length:,}",
        "tokens per micro-batch": f"at most {train.max_batch_tokens:,}",
    }
    if train.num_steps is not None:
        found["whole run"] = _whole(config, train.num_steps)
    if config.warm_start is not None:
        found["warm start"] = _warm(config.warm_start)
    return found


def unit_lines(config: Config, steps: int) -> list[str]:
    """Say in two lines how large a run is, as it says it at its start.

    Args:
        config: The configuration.
        steps: Steps of the whole run.

    Returns:
        One line for a step, and one for all of them.

    Example:
        >>> from mmgrpo.config.load import load_config
        >>> unit_lines(load_config(None, ["model.name=tiny:x"]), 1)[1]
        'the run: 1 step, 8 prompts, 64 completions'
    """
    train, group = config.train, config.rollout.num_generations
    updates = train.optimizer_steps * config.loss.num_iterations
    each = f" of {_learned_at_once(config):,} completions" if train.optimizer_steps > 1 else ""
    step = (
        f"each step: {counted(train.prompts_per_step, 'prompt')} x {group:,} = {train.prompts_per_step * group:,} "
        f"completions of at most {counted(config.rollout.max_completion_length, 'token')}; "
        f"{counted(updates, 'optimizer step')}{each}, micro-batches up to {counted(train.max_batch_tokens, 'token')}"
    )
    warm = "" if config.warm_start is None else f"a warm start of {_warm(config.warm_start)}, then "
    return [step, f"the run: {warm}{_whole(config, steps)}"]


def _learned_at_once(config: Config) -> int:
    return config.train.prompts_per_step // config.train.optimizer_steps * config.rollout.num_generations


def _whole(config: Config, steps: int) -> str:
    drawn = steps * config.train.prompts_per_step
    written = counted(drawn * config.rollout.num_generations, "completion")
    return f"{counted(steps, 'step')}, {counted(drawn, 'prompt')}, {written}"


def _warm(warm: WarmStart) -> str:
    return f"{counted(warm.num_steps, 'step')} of {counted(warm.batch_size, 'row')}"


def _sizes_lines(config: Config) -> Iterator[str]:
    yield "# Sizes that follow from the keys below:"
    for name, size in derived_sizes(config).items():
        yield f"#   {name}: {size}"


def _lines(section: Section, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        doc = one_line(field.description)
        value = getattr(section, name)
        if not section.shows(name):
            continue
        if isinstance(value, Section):
            yield from _commented([f"{indent}{name}:"], doc, indent)
            yield from _lines(value, indent + "  ")
        elif value and isinstance(value, tuple) and isinstance(value[0], Section):
            yield from _commented([f"{indent}{name}:"], doc, indent)
            for item in value:
                yield from _item(list(_lines(item, indent + "    ")), indent)
        else:
            yield from _commented(_entry(name, value, indent), doc, indent)


def _item(lines: list[str], indent: str) -> Iterator[str]:
    """Make the lines of a section a list item: the dash stands before its first key."""
    first = next(i for i, line in enumerate(lines) if not line.lstrip().startswith("#"))
    dashed = f"{indent}  - {lines[first].lstrip()}"
    yield from [*lines[:first], dashed, *lines[first + 1 :]]


def _entry(name: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, str):
        head, *rest = to_block(value, indent + "  ")
        return [f"{indent}{name}: {head}", *rest]
    return [f"{indent}{name}: {to_flow(value)}"]


def _commented(lines: list[str], doc: str, indent: str) -> Iterator[str]:
    """Put the meaning behind a single line where it fits, else above."""
    if len(lines) == 1 and len(lines[0]) + len(doc) + 4 <= _WIDTH:
        yield f"{lines[0]}  # {doc}"
        return
    yield from textwrap.wrap(doc, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    yield from lines


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
    old, new = (dict(_flat(config.model_dump(mode="json"), "")) for config in (before, after))
    names = [*old, *(name for name in new if name not in old)]
    return {
        name: f"{to_flow(old.get(name))} -> {to_flow(new.get(name))}"
        for name in names
        if old.get(name) != new.get(name)
    }


def _flat(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(cast("Mapping[str, Any]", value), f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def schema_markdown() -> str:
    """Write the page that documents every key: its values, its default and its meaning.

    Returns:
        Markdown, one table per section.
    """
    sections = dict.fromkeys(key.section for key in all_keys())
    return "\n".join([_HEAD.format(always=len(always_there())), *(_table(section) for section in sections)])


def _table(section: type[Section]) -> str:
    keys = [key for key in all_keys() if key.section is section]
    parents = list(dict.fromkeys(key.parent for key in keys))
    parents = [parent for parent in parents if not any(parent.startswith(f"{other}.") for other in parents if other)]
    title = ", ".join(f"`{parent.removesuffix('.N')}`" for parent in parents if parent) or "Sections"
    if {key.section for key in all_keys() if key.parent == parents[0]} != {section}:
        title += f" with `{next(key.name for key in keys if key.field.is_required())}`"
    rows = {key.name: f"| `{key.name}` | {_values(key)} | {_default(key)} | {_cell(key.doc)} |" for key in keys}
    head = ["| key | values | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", one_line(section.__doc__), "", *head, *rows.values(), ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _values(key: ConfigKey) -> str:
    if key.sections:
        return "list of sections" if is_list(key.field.annotation) else "section"
    return describe(key)


def _default(key: ConfigKey) -> str:
    if key.field.is_required():
        return "**required**"
    value = key.field.get_default(call_default_factory=True)
    return "see below" if isinstance(value, Section) else f"`{to_flow(value)}`"


_HEAD = """# Configuration

Every key of the YAML. {always} keys are always there; the others exist under the variant or section that they belong
to ("Only with …"), and are refused elsewhere, where they would do nothing. This page is written from
the schema by `make docs`; a test keeps it up to date.

A value is one key away: `mmgrpo train my.yaml loss.beta=0.01` on the command line, `train={{"num_steps": 20}}` in
Python. `mmgrpo config my.yaml` prints the resolved tree. Numbers are read as YAML 1.2 reads them (`1e-6` is a number,
and so is `1_000`); only `true` and `false` are booleans; `${{NAME}}` is not expanded; a file never runs code. In an
override, a key that takes text takes it as it stands (`null` is null), and a number in a key is a position in a list:
`rewards.0.weight=2`. Layers, lowest first: the file that `data.config` names, the YAML, the overrides. Mappings are
merged key by key; where a section is chosen among several (`data.train`), choosing another replaces it whole.
"""


if __name__ == "__main__":
    print(schema_markdown(), end="")
