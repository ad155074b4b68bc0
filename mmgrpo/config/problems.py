"""What pydantic found wrong, in words for the person who wrote the YAML: where, what was expected, what to write.

All problems of a configuration are reported together. For a key that is not one, the valid name is looked for: a near
spelling, another section, or another tool's word for it. This file knows the schema's names, not what keys do.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mmgrpo.config.keys import ConfigKey, all_keys, choices_of, describe, find_keys, one_of, sections_at
from mmgrpo.config.yaml_text import Document, KeyPath, to_flow
from mmgrpo.errors import ConfigError, explain

_DOTTED = re.compile(r"\b[a-z_]+(?:\.[a-z_]+)+\b")


@dataclass(frozen=True, slots=True)
class _Problem:
    path: KeyPath
    text: str


def config_error(error: ValidationError, document: Document) -> ConfigError:
    """Turn pydantic's findings into one error that names every place.

    Args:
        error: What pydantic found.
        document: The merged values and where they stand.

    Returns:
        The error to raise.
    """
    problems: dict[KeyPath, _Problem] = {}
    for details in error.errors(include_url=False):
        path = _written_path(details["loc"], document.values)
        problems.setdefault(path, _Problem(path, _text(details, path, document)))
    texts = [problem.text for problem in sorted(problems.values(), key=lambda problem: _order(problem.path, document))]
    head = [f"The configuration has {len(texts)} faults."] if len(texts) > 1 else []
    return ConfigError("\n\n".join([*head, *texts]))


def _order(path: KeyPath, document: Document) -> tuple[int, int]:
    """As in the file, overrides last."""
    mark = document.marks.get(path) or document.marks.get(path[:-1])
    return (mark.line or sys.maxsize, mark.column or 0) if mark else (0, 0)


def _text(details: ErrorDetails, path: KeyPath, document: Document) -> str:
    """Choose the wording for one finding."""
    kind, here = details["type"], find_keys(path)
    if kind == "extra_forbidden":
        return _unknown(path, document)
    if kind == "missing" and path not in document.marks:
        return _missing(path, document)
    if kind == "only_with":
        key, condition = (details.get("ctx", {})[name] for name in ("key", "condition"))
        what = f"{dotted((*path, key))} only goes with {condition}"
        return explain(what, where=_where((*path, key), document), fix=f"Set {condition}, or remove {key}.")
    if kind == "value_error":
        told = details["msg"].removeprefix("Value error, ")
        if not path or any(key.sections for key in here):
            return explain(_sentence(told), where=_where(path, document, told=told))
        allowed = describe(here[0]) if here else ""
        return explain(f"Wrong value for {dotted(path)}: {told}", where=_where(path, document), expected=allowed)
    return _wrong(details, path, document)


def _wrong(details: ErrorDetails, path: KeyPath, document: Document) -> str:
    kind, here, given = details["type"], find_keys(path), _get(document.values, path)
    expected = describe(here[0]) if here else details["msg"].removeprefix("Input should be ")
    fix = ""
    if kind == "literal_error":
        named = [str(choice) for key in here for choice in choices_of(key.field.annotation)]  # of all variants
        options = list(dict.fromkeys(named)) or re.findall(r"'([^']*)'", str(details.get("ctx", {}).get("expected")))
        expected = one_of(options)
        near = closest(str(given), options)
        fix = f"Write {near}." if near else ""
    elif kind == "string_type":
        fix = "Put the value in quotes."
    elif kind in ("model_type", "dict_type"):
        expected = "keys under it"
        if isinstance(given, str) and any("path" in section.model_fields for key in here for section in key.sections):
            fix = f"Write {dotted(path)}: {{path: {given}}}."
        if isinstance(given, str) and _of_functions(path[:-1]):
            fix = f"Write {{fn: {given}}}."
    elif kind == "tuple_type" and any(key.sections for key in here):
        expected = "a list of sections"
        if isinstance(given, str | dict) and _of_functions(path):
            written = given if isinstance(given, dict) else {"fn": given}
            fix = f"Write {dotted(path)}: [{to_flow(written)}]."
    what = f"Wrong value for {dotted(path)}"
    return explain(what, where=_where(path, document), expected=expected, got=_shown(given), fix=fix)


def _of_functions(path: KeyPath) -> bool:
    """Tell whether a list of sections names functions, as ``rewards`` does."""
    return any("fn" in section.model_fields for key in find_keys(path) for section in key.sections)


def _unknown(path: KeyPath, document: Document) -> str:
    section = dotted(path[:-1])
    found = suggest(path)
    what = f"Unknown key {path[-1]}" + (f" under {section}" if section else " at the top level")
    return explain(what, where=_where(path, document), expected=found.valid, fix=found.fix)


def _missing(path: KeyPath, document: Document) -> str:
    here = find_keys(path)
    expected = f"{describe(here[0])}: {here[0].doc}" if here else ""
    return explain(f"{dotted(path)} is missing", where=_where(path[:-1], document), expected=expected)


def _where(path: KeyPath, document: Document, *, told: str = "") -> str:
    """Say where a key stands; a sentence that names keys (``train.num_steps``) is placed at those."""
    named: list[KeyPath] = [tuple(name.split(".")) for name in _DOTTED.findall(told)]
    places = [f"{document.marks[key]} ({dotted(key)})" for key in dict.fromkeys(named) if key in document.marks]
    if places:
        return ", ".join(places)
    mark = document.marks.get(path) or document.marks.get(())
    if mark is None:
        return ""
    return str(mark) if mark.line is None else f"{mark} ({dotted(path)})"


def dotted(path: Sequence[str | int]) -> str:
    """Write a path as in ``rewards.0.weight``."""
    return ".".join(str(part) for part in path)


def _written_path(loc: tuple[int | str, ...], values: Any) -> KeyPath:
    """Drop the names of variants that pydantic puts between the keys."""
    return tuple(_steps(loc, values))


def _steps(loc: tuple[int | str, ...], values: Any) -> Iterator[str | int]:
    at: Any = values
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(at, dict) and part in at:
            at = cast("Mapping[Any, Any]", at)[part]
            yield part
        elif isinstance(at, list) and isinstance(part, int) and part < len(cast("list[Any]", at)):
            at = cast("list[Any]", at)[part]
            yield part
        elif isinstance(at, dict) and last:
            yield part


def _get(values: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(values, dict):
            values = cast("Mapping[Any, Any]", values).get(part)
        elif isinstance(values, list):
            values = cast("list[Any]", values)[int(part)]
    return values


def _shown(value: object) -> str:
    words = {True: "true", False: "false", None: "null"}
    if value is None or isinstance(value, bool):
        return words[value]
    return repr(value) if len(repr(value)) < 80 else repr(value)[:77] + "..."


def _sentence(text: str) -> str:
    """Begin with a capital letter, unless the first word is a key."""
    return text if _DOTTED.match(text) else text[:1].upper() + text[1:]


ELSEWHERE = {
    "model_name_or_path": "model.name",
    "model_path": "model.name",
    "torch_dtype": "model.dtype",
    "peft": "model.tune",
    "use_peft": "model.tune",
    "lora_rank": "model.lora.r",
    "lora_target_modules": "model.lora.targets",
    "target_modules": "model.lora.targets",
    "freeze_vision_tower": "model.freeze.vision",
    "freeze_vit": "model.freeze.vision",
    "dataset": "data.train",
    "dataset_name": "data.train.path",
    "train_files": "data.train.path",
    "val_files": "data.eval.path",
    "max_prompt_length": "data.max_prompt_tokens",
    "filter_overlong_prompts": "data.on_long_prompt",
    "image_folder": "data.train.media_root",
    "group_size": "rollout.num_generations",
    "num_return_sequences": "rollout.num_generations",
    "max_new_tokens": "rollout.max_completion_length",
    "max_response_length": "rollout.max_completion_length",
    "use_vllm": "rollout.engine",
    "dynamic_sample": "rollout.dynamic_sampling",
    "online_filtering": "rollout.dynamic_sampling",
    "filter_groups": "rollout.dynamic_sampling",
    "reward_funcs": "rewards.N.fn",
    "reward_weights": "rewards.N.weight",
    "kl_coef": "loss.beta",
    "kl_loss_coef": "loss.beta",
    "clip_ratio": "loss.epsilon",
    "cliprange": "loss.epsilon",
    "lr": "train.learning_rate",
    "max_steps": "train.num_steps",
    "total_steps": "train.num_steps",
    "num_train_epochs": "train.num_epochs",
    "total_epochs": "train.num_epochs",
    "per_device_train_batch_size": "train.prompts_per_step",
    "train_batch_size": "train.prompts_per_step",
    "rollout_batch_size": "train.prompts_per_step",
    "gradient_accumulation_steps": "train.max_batch_tokens",
    "optimizer": "train.optim",
    "lr_scheduler": "train.lr_scheduler_type",
    "logging_steps": "observe.log_steps",
    "eval_strategy": "eval.eval_steps",
    "logger": "observe.report_to",
}
"""Words of other tools, and the key here that does it."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to write instead of an unknown key."""

    valid: str
    """Valid names at that place; empty where ``fix`` says it all."""
    fix: str
    """One sentence."""


def suggest(path: KeyPath) -> Suggestion:
    """Find what was meant by an unknown key.

    Args:
        path: Where it stands; the last part is the unknown key.

    Returns:
        The nearest valid name of that section, else the section where the name belongs, else all valid names.

    Example:
        >>> suggest(("train", "learnig_rate")).fix
        'Write learning_rate.'
        >>> suggest(("train", "beta")).fix
        'beta belongs under loss: write loss.beta.'
    """
    name = _spelling(str(path[-1]))
    here = list(dict.fromkeys(field for section in sections_at(path[:-1]) for field in section.model_fields))
    if name in here and name == str(path[-1]):
        return _other_variant(path, name)
    near = name if name in here else closest(name, here)
    elsewhere = _elsewhere(name)
    if near and (name in here or not elsewhere):
        return Suggestion(valid=near, fix=f"Write {near}.")
    if elsewhere:
        return Suggestion(valid="", fix=_moved(name, elsewhere))
    far = _near_elsewhere(name)
    fix = f"Did you mean {one_of([key.dotted for key in far])}?" if far else "Remove it."
    return Suggestion(valid=one_of(here) if here else "no keys", fix=fix)


def closest(word: str, words: Iterable[str]) -> str:
    """Give the word of ``words`` that is spelt most like ``word``, or an empty text."""
    return next(iter(difflib.get_close_matches(_spelling(word), list(words), n=1, cutoff=0.75)), "")


def _spelling(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _elsewhere(name: str) -> list[ConfigKey]:
    """Keys of other sections that are called so, alone or with their section in front (``lora_r``)."""
    known = ELSEWHERE.get(name)
    return [key for key in all_keys() if key.dotted == known or name in (key.name, "_".join(key.path[-2:]))]


def _near_elsewhere(name: str) -> list[ConfigKey]:
    near = closest(name, {key.name for key in all_keys()})
    return [key for key in all_keys() if key.name == near][:3]


def _moved(name: str, keys: list[ConfigKey]) -> str:
    places = list(dict.fromkeys(key.dotted for key in keys))
    if all(key.name == name for key in keys):
        sections = list(dict.fromkeys(key.parent or "the top level" for key in keys))
        return f"{name} belongs under {one_of(sections)}: write {one_of(places)}."
    return f"{name} is called {one_of(places)} here."


def _other_variant(path: KeyPath, name: str) -> Suggestion:
    """A key that exists at this place, but not beside the keys that stand there."""
    goes = [section for section in sections_at(path[:-1]) if name in section.model_fields]
    needs = [key for section in goes for key, field in section.model_fields.items() if field.is_required()]
    beside = next((key for key in needs if key != name), "")
    return Suggestion(valid="", fix=f"{name} only goes with {beside}: give that, or remove {name}.")
