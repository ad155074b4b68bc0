"""The valid name for a key that is not one: a near spelling, another section, or another tool's word for it.

It knows names only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from mmgrpo.config.keys import Key, all_keys, one_of, sections_at
from mmgrpo.config.tree import KeyPath

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
    name = _plain(str(path[-1]))
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
    return next(iter(difflib.get_close_matches(_plain(word), list(words), n=1, cutoff=0.75)), "")


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _elsewhere(name: str) -> list[Key]:
    """Keys of other sections that are called so, alone or with their section in front (``lora_r``)."""
    known = ELSEWHERE.get(name)
    return [key for key in all_keys() if key.dotted == known or name in (key.name, "_".join(key.path[-2:]))]


def _near_elsewhere(name: str) -> list[Key]:
    near = closest(name, {key.name for key in all_keys()})
    return [key for key in all_keys() if key.name == near][:3]


def _moved(name: str, keys: list[Key]) -> str:
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
