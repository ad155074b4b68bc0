"""What to write instead of an unknown key or value: a near spelling, another section, or what another tool calls so.

TRL, transformers, verl, ms-swift and EasyR1 count some things in other units; the advice then holds an example that is
computed from the given value. It knows names and units, not what keys do.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, cast

from mmgrpo.config.keys import ConfigKey, all_keys, one_of, sections_at
from mmgrpo.config.paths import shipped_reward_names
from mmgrpo.config.yaml_text import KeyPath, to_flow
from mmgrpo.errors import shortened

ELSEWHERE = {
    "model_name_or_path": "model.name",
    "model_path": "model.name",
    "torch_dtype": "model.dtype",
    "lora_rank": "model.lora.r",
    "lora_target_modules": "model.lora.targets",
    "target_modules": "model.lora.targets",
    "freeze_vision_tower": "model.freeze.vision",
    "freeze_vit": "model.freeze.vision",
    "freeze_aligner": "model.freeze.projector",
    "freeze_llm": "model.freeze.language",
    "dataset_name": "data.train.path",
    "train_files": "data.train.path",
    "val_files": "data.eval.path",
    "max_prompt_length": "data.max_prompt_tokens",
    "image_folder": "data.train.media_root",
    "dataloader_num_workers": "data.prefetch",
    "group_size": "rollout.num_generations",
    "num_return_sequences": "rollout.num_generations",
    "max_new_tokens": "rollout.max_completion_length",
    "max_response_length": "rollout.max_completion_length",
    "dynamic_sample": "rollout.dynamic_sampling",
    "online_filtering": "rollout.dynamic_sampling",
    "kl_coef": "loss.beta",
    "kl_loss_coef": "loss.beta",
    "clip_ratio": "loss.epsilon",
    "clip_ratio_low": "loss.epsilon",
    "clip_ratio_high": "loss.epsilon_high",
    "cliprange": "loss.epsilon",
    "lr": "train.learning_rate",
    "total_steps": "train.num_steps",
    "num_train_epochs": "train.num_epochs",
    "total_epochs": "train.num_epochs",
    "train_batch_size": "train.prompts_per_step",
    "rollout_batch_size": "train.prompts_per_step",
    "optimizer": "train.optim",
    "lr_scheduler": "train.lr_scheduler_type",
    "save_freq": "train.save_steps",
    "save_limit": "train.save_total_limit",
    "logging_steps": "observe.log_steps",
    "val_freq": "eval.eval_steps",
    "val_before_train": "eval.at_start",
    "logger": "observe.report_to",
}
"""Keys of other tools with the same meaning and unit as a key here."""

VALUES: dict[str, dict[str, str]] = {
    "model.dtype": {
        "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32",
        "float8": "", "fp8": "", "int8": "", "int4": "", "float64": "",
    },
    "model.device": {"gpu": "cuda", "cuda:0": "cuda", "xpu": "", "npu": "", "tpu": ""},
    "model.tune": {"none": "full", "dora": "", "adalora": "", "prefix": ""},
    "loss.loss_type": {
        "gspo": "loss.importance_sampling_level: sequence", "cispo": "", "sapo": "", "luspo": "", "ppo": "",
        "vespo": "", "gmpo": "", "reinforce++": "", "rloo": "",
    },
    "loss.scale_rewards": {"true": "group", "false": "none", "std": "group", "gdpo": ""},
    "loss.importance_sampling_level": {"sequence_token": ""},
    "loss.beta": {"adaptive": ""},
    "rollout.engine": {"vllm": "", "sglang": "", "lmdeploy": "", "hf": "local", "transformers": "local"},
    "train.optim": {
        "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adam": "adamw", "adamw_hf": "adamw",
        "adafactor": "", "adamw_8bit": "", "adamw_bnb_8bit": "", "paged_adamw_8bit": "", "lion": "", "muon": "",
    },
    "train.lr_scheduler_type": {
        "constant_with_warmup": "constant", "cosine_with_restarts": "", "cosine_with_min_lr": "", "polynomial": "",
        "inverse_sqrt": "",
    },
    "observe.report_to": {
        "none": "observe.report_to: []", "all": "", "mlflow": "", "swanlab": "", "comet_ml": "", "comet": "",
    },
}  # fmt: skip
"""Values that exist elsewhere: what to write here (a value, or ``key: value``); empty: there is no such thing yet."""

_REMOVED = {
    "use_vllm": "the engine is local, which needs no switch",
    "push_to_hub": "nothing is uploaded; upload the folder policy/ of a checkpoint",
    "hub_model_id": "nothing is uploaded; upload the folder policy/ of a checkpoint",
    "tf32": "matrix products are in model.dtype",
    "attn_implementation": "the attention kernel is chosen for the device",
    "use_liger_kernel": "the LM head is computed in chunks already (model.logprob_chunk_tokens)",
    "use_liger_loss": "the LM head is computed in chunks already (model.logprob_chunk_tokens)",
    "remove_unused_columns": "every column of the rows reaches the rewards",
    "dataloader_pin_memory": "prompts are prepared by the threads of data.prefetch",
    "resume_from_checkpoint": "run mmgrpo train --resume RUN_FOLDER",
    "deepspeed": "each process holds the whole model; start one per GPU with torchrun",
    "fsdp": "each process holds the whole model; start one per GPU with torchrun",
    "sync_ref_model": "the reference stays what it is when GRPO starts",
    "logging_dir": "everything is written below train.output_dir",
    "logging_strategy": "observe.log_steps counts steps",
    "disable_dropout": "dropout is always 0",
    "top_entropy_quantile": "there are no entropy masks yet",
    "load_best_model_at_end": "train.save_best keeps the best checkpoint",
    "reward_weights": "each entry of rewards has a weight of its own",
}
"""Keys that have no counterpart, and why they are not needed."""
_REMOVED_PREFIXES = {"vllm_": "use_vllm", "fsdp_": "fsdp", "hub_": "push_to_hub", "deepspeed_": "deepspeed"}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to write instead of an unknown key."""

    valid: str
    """Valid names at that place; empty where ``fix`` says it all."""
    fix: str
    """One or two sentences."""


def suggest(path: KeyPath, values: Any = None) -> Suggestion:
    """Find what was meant by an unknown key.

    Args:
        path: Where it stands; the last part is the unknown key.
        values: The whole tree, for advice that converts the given value.

    Returns:
        The nearest valid name of that section, else the section where the name belongs or what it is called here, with
        a value where that can be given, else all valid names.

    Example:
        >>> suggest(("train", "learnig_rate")).fix
        'Write learning_rate.'
        >>> suggest(("train", "beta")).fix
        'beta belongs under loss: write loss.beta.'
        >>> suggest(("train", "fp16"), {"train": {"fp16": True}}).fix
        'Write model.dtype: float16.'
    """
    name = _spelling(str(path[-1]))
    here = list(dict.fromkeys(field for section in sections_at(path[:-1]) for field in section.model_fields))
    if name in here:
        return _other_variant(path, name) if name == str(path[-1]) else Suggestion("", f"Write {name}.")
    given = _Given(name, _value_at(values, path), values)
    known = _known_elsewhere(given)
    near = closest(name, here)
    if near and not known:
        return Suggestion(valid=near, fix=f"Write {near}.")
    if known:
        return Suggestion(valid="", fix=known)
    far = _near_elsewhere(name)
    fix = f"Did you mean {one_of([key.dotted for key in far])}?" if far else f"Remove {shortened(name)}."
    return Suggestion(valid=one_of(here) if here else "no keys", fix=fix)


def value_advice(key: str, value: object) -> str:
    """Say what to write instead of a value that another tool knows; empty where none is known.

    Args:
        key: The dotted key, without positions in lists.
        value: The value.

    Example:
        >>> value_advice("model.dtype", "bf16"), value_advice("loss.loss_type", "cispo")
        ('Write model.dtype: bfloat16.', 'There is no cispo here yet; choose another value.')
    """
    known = VALUES.get(key, {}).get(str(value).lower()) if isinstance(value, str | bool) else None
    if known is None:
        return ""
    if not known:
        return f"There is no {value} here yet; choose another value."
    return f"Write {known if ': ' in known else f'{key}: {known}'}."


def closest(word: str, words: Iterable[str]) -> str:
    """Give the word of ``words`` that is spelt most like ``word``, or an empty text."""
    if len(word) > 100:
        return ""
    return next(iter(difflib.get_close_matches(_spelling(word), list(words), n=1, cutoff=0.75)), "")


def _spelling(name: str) -> str:
    return name.strip().lower().replace("-", "_")


@dataclass(frozen=True, slots=True)
class _Given:
    """An unknown key, its value, and the tree around it."""

    name: str
    value: Any
    values: Any

    def number(self, name: str, default: float) -> float:
        """Find a number anywhere in the tree, by the last part of its key."""
        number = next((value for key, value in _leaves(self.values) if key == name and _is_number(value)), default)
        return number if number > 0 else default

    def own(self) -> float:
        """The given value as a number; 1 where it is none."""
        return self.value if _is_number(self.value) and self.value > 0 else 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _leaves(values: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping) and depth < 4:
        for key, value in cast("Mapping[Any, Any]", values).items():
            yield str(key), value
            yield from _leaves(value, depth + 1)


def _value_at(values: Any, path: KeyPath) -> Any:
    for part in path:
        values = cast("Mapping[Any, Any]", values).get(part) if isinstance(values, Mapping) else None
    return values


def _completions(given: _Given, completions: float, how: str) -> str:
    group = given.number("num_generations", 8)
    prompts = max(1, math.ceil(completions / group))
    return (
        f"train.prompts_per_step counts prompts of a whole step over all processes, not completions: "
        f"{how} / {group:g} completions per prompt = {prompts}. Write train.prompts_per_step: {prompts}."
    )


def _per_device(given: _Given) -> str:
    steps = given.number("gradient_accumulation_steps", 1)
    how = f"{given.own():g} completions x {steps:g} accumulation steps on one process"
    return _completions(given, given.own() * steps, how)


def _accumulation(given: _Given) -> str:
    each = given.number("per_device_train_batch_size", 8)
    how = f"{each:g} completions x {given.own():g} accumulation steps on one process"
    why = "Micro-batches are cut by tokens (train.max_batch_tokens), and the gradient does not depend on them; "
    return why + _completions(given, each * given.own(), how)


def _optimizer_steps(given: _Given) -> str:
    per_rollout = given.number("optimizer_steps", 1) * given.number("num_iterations", 1)
    if given.value == -1:
        return "Remove max_steps: train.num_epochs alone gives the length."
    steps = max(1, math.ceil(given.own() / per_rollout))
    why = f"train.num_steps counts rollouts, each with {per_rollout:g} optimizer steps; " if per_rollout > 1 else ""
    return f"{why}Write train.num_steps: {steps}.".replace("; W", "; w")


def _warmup_ratio(given: _Given) -> str:
    steps = given.number("num_steps", given.number("max_steps", 100))
    ratio = given.own() if given.own() < 1 else 0.1
    count = round(ratio * steps)
    return f"Warm-up is counted in steps: {ratio:g} x {steps:g} steps. Write train.warmup_steps: {count}."


def _strategy(key: str, unit: str, off: str) -> Callable[[_Given], str]:
    def advice(given: _Given) -> str:
        if str(given.value).lower() in ("no", "false"):
            return f"Write {off}."
        return f"{key} counts steps. Write {key}: {given.number(unit, 50):g}."

    return advice


def _when_true(yes: str, no: str) -> Callable[[_Given], str]:
    return lambda given: f"Write {yes}." if given.value is not False and given.value is not None else no


def _paths(given: _Given) -> str:
    first = cast("list[Any]", given.value)[0] if isinstance(given.value, list) and given.value else given.value
    return f"Write data.train: {to_flow({'path': first if isinstance(first, str) else 'rows.jsonl'})}."


def _reward_functions(given: _Given) -> str:
    names = cast("list[Any]", given.value) if isinstance(given.value, list) else [given.value]
    return f"Write rewards: {to_flow([{'fn': reward_spec(str(name))} for name in names[:5]])}."


_CONVERTED: dict[str, Callable[[_Given], str]] = {
    "per_device_train_batch_size": _per_device,
    "gradient_accumulation_steps": _accumulation,
    "generation_batch_size": lambda given: _completions(given, given.own(), f"{given.own():g} completions"),
    "max_steps": _optimizer_steps,
    "warmup_ratio": _warmup_ratio,
    "bf16": _when_true("model.dtype: bfloat16", "Remove bf16: model.dtype says it."),
    "fp16": _when_true("model.dtype: float16", "Remove fp16: model.dtype says it."),
    "peft": _when_true("model.tune: lora", "Write model.tune: full."),
    "use_peft": _when_true("model.tune: lora", "Write model.tune: full."),
    "filter_groups": _when_true("rollout.dynamic_sampling: true", "Remove filter_groups."),
    "filter_overlong_prompts": _when_true(
        "data.on_long_prompt: skip", "Remove filter_overlong_prompts: longer prompts stop the run."
    ),
    "eval_strategy": _strategy("eval.eval_steps", "eval_steps", "eval: null"),
    "evaluation_strategy": _strategy("eval.eval_steps", "eval_steps", "eval: null"),
    "save_strategy": _strategy("train.save_steps", "save_steps", "train.save_steps: 0"),
    "metric_for_best_model": lambda given: "Write train.save_best: eval/accuracy.",
    "dataset": _paths,
    "reward_funcs": _reward_functions,
}
"""Keys of other tools in other units or forms, and how the advice is made of the given value."""


def _known_elsewhere(given: _Given) -> str:
    """Advice for a key of another tool or of another section; empty where there is none."""
    if given.name in _CONVERTED:
        return _CONVERTED[given.name](given)
    alike = next((other for start, other in _REMOVED_PREFIXES.items() if given.name.startswith(start)), given.name)
    if alike in _REMOVED:
        return f"Remove {given.name}: {_REMOVED[alike]}."
    keys = [key for key in all_keys() if given.name in (key.name, "_".join(key.path[-2:]))]
    if keys:
        places = list(dict.fromkeys(key.dotted for key in keys))
        if all(key.name == given.name for key in keys):
            sections = list(dict.fromkeys(key.parent or "the top level" for key in keys))
            return f"{given.name} belongs under {one_of(sections)}: write {one_of(places)}."
        return f"{given.name} is called {one_of(places)} here."
    renamed = ELSEWHERE.get(given.name)
    if renamed is None:
        return ""
    if given.value is None or isinstance(given.value, Mapping):
        return f"{given.name} is called {renamed} here."
    if VALUES.get(renamed, {}).get(str(given.value).lower()) is not None:
        return f"{given.name} is called {renamed} here. {value_advice(renamed, given.value)}"
    return f"Write {renamed}: {shortened(to_flow(_listed(renamed, given.value)))}."


def _listed(key: str, value: Any) -> Any:
    lists = ("model.lora.targets", "observe.report_to")
    return [value] if key in lists and isinstance(value, str) else value


def reward_spec(name: str) -> str:
    """Say how a reward is named in a YAML: as it stands, or a file of the shipped ones that holds it.

    Example:
        >>> reward_spec("clevr_counting"), reward_spec("exact_answer"), reward_spec("my.py:f"), reward_spec("mine")
        ('rewards/clevr_counting.py:count_accuracy', 'rewards/exact.py:exact_answer', 'my.py:f', 'path.py:mine')
    """
    if ":" in name or name in entry_points(group="mmgrpo.rewards").names:
        return name
    shipped = shipped_reward_names()
    word = name.removesuffix(".py").rpartition("/")[2]
    if shipped.get(word):
        return f"rewards/{word}.py:{shipped[word][0]}"
    holder = next((file for file, names in shipped.items() if name in names), None)
    if holder is not None:
        return f"rewards/{holder}.py:{name}"
    return f"{name}:NAME" if name.endswith(".py") else f"path.py:{name}"


def _near_elsewhere(name: str) -> list[ConfigKey]:
    near = closest(name, {key.name for key in all_keys()})
    return [key for key in all_keys() if key.name == near][:3]


def _other_variant(path: KeyPath, name: str) -> Suggestion:
    """A key that exists at this place, but not beside the keys that stand there."""
    homes = [section for section in sections_at(path[:-1]) if name in section.model_fields]
    needs = [key for section in homes for key, field in section.model_fields.items() if field.is_required()]
    beside = next((key for key in needs if key != name), "")
    return Suggestion(valid="", fix=f"{name} only goes with {beside}: give that, or remove {name}.")
