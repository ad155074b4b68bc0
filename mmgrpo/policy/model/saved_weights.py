"""Reading saved weights, a whole checkpoint or an adapter: what is missing is refused, what is left over is told.

transformers draws a weight that a checkpoint lacks at random, and peft leaves an adapter's layer at zero: a run would
train beside it without a word. Names of adapters that older versions of transformers wrote are mapped to today's.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from mmgrpo.config.model import Lora
from mmgrpo.config.paths import nearest_path
from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.spec import FamilySpec

_LORA_KEY = re.compile(r"base_model\.model\.(.+?)\.(lora_\w+(?:\.weight)?)$")
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError)


def load_checkpoint_weights(
    model_class: Any,
    name: str,
    family: FamilySpec | None,
    *,
    where: str,
    error: type[Exception] = ConfigError,
    **arguments: Any,
) -> Any:
    """Load a model by ``from_pretrained``, and refuse one that would be part random.

    Args:
        model_class: A transformers class.
        name: Hub id or folder.
        family: Its record; None: it has none.
        where: For messages.
        error: Raised where weights are missing.
        **arguments: Handed to ``from_pretrained``.

    Returns:
        The model.

    Raises:
        ConfigError: Weights are missing (heads that are tied to the embeddings are not), or ``error``.
    """
    model, report = model_class.from_pretrained(name, output_loading_info=True, **arguments)
    unused = tuple(family.unused_weights) if family is not None else ()
    unexpected = sorted(key for key in report["unexpected_keys"] if not (unused and key.startswith(unused)))
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        other = f" The checkpoint has {len(unexpected)} unknown ones, such as {unexpected[0]}." if unexpected else ""
        raise error(
            explain(
                "Weights are missing from the checkpoint: they would be random",
                where=where,
                expected="every weight of the model; a head that is tied to the embeddings may be left out",
                got=f"{_by_part(missing, family)} missing, such as {missing[0]}.{other}",
                fix="Download or save the checkpoint again, or load it with the transformers version that wrote it.",
            )
        )
    if unexpected:
        warnings.warn(
            explain(
                "The checkpoint has weights that this model does not use",
                where=where,
                got=f"{_by_part(unexpected, family)}, such as {unexpected[0]}",
            ),
            stacklevel=2,
        )
    return model


def _by_part(names: Iterable[str], family: FamilySpec | None) -> str:
    counts = Counter(family.part_of(name) if family is not None else "the weights" for name in names)
    return ", ".join(f"{count} of {part}" for part, count in counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAdapter:
    """An adapter as its files give it, in the names of the model that it goes to."""

    config: Any
    """peft's configuration; its targets are the layers that the file has."""
    weights: Mapping[str, Tensor]
    layers: Sequence[str]
    """Names of the adapted layers."""


def read_adapter(adapter: str, model: Any, family: FamilySpec) -> SavedAdapter:
    """Read an adapter, whoever wrote it, and find its layers in a model.

    Args:
        adapter: Folder or hub id.
        model: The bare model.
        family: Its record.

    Raises:
        ConfigError: It cannot be read, has layers that the model lacks, or lacks layers that its configuration names.
    """
    from peft import load_peft_weights

    where = f"model.lora.adapter: {adapter}"
    config = _read_config(adapter, where)
    try:
        saved = load_peft_weights(adapter, device="cpu")
    except _UNREADABLE as error:
        raise ConfigError(
            explain("The adapter's weights cannot be read", where=where, got=str(error).strip().splitlines()[0])
        ) from error
    names = {name for name, _ in model.named_modules()}
    old = dict.fromkeys(match[1] for key in saved if (match := _LORA_KEY.match(key)))
    layers = {name: find_module(name, names) for name in old}
    unknown = [name for name, found in layers.items() if found is None]
    if unknown or not layers:
        raise ConfigError(
            explain(
                "The adapter does not fit this model",
                where=where,
                got=f"{len(unknown)} of {len(layers)} adapted layers are not in it, such as {unknown[0]}"
                if unknown
                else "no LoRA weights in its file",
                fix="Name the base model that the adapter was trained on.",
            )
        )
    adapted = [name for name in layers.values() if name is not None]
    _require_whole(config, model, family, adapted, where)
    config.target_modules = set(adapted)
    return SavedAdapter(config=config, weights=rename_modules(saved, names), layers=adapted)


def _read_config(adapter: str, where: str) -> Any:
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(adapter)
    except _UNREADABLE as error:
        raise ConfigError(
            explain(
                "The adapter cannot be loaded",
                where=where,
                expected="a folder with adapter_config.json and adapter_model.safetensors, or a hub id",
                got=str(error).strip().splitlines()[0],
                fix=f"Did you mean {near}?" if (near := nearest_path(Path(adapter).absolute())) else "",
            )
        ) from error
    config.inference_mode = False
    config.base_model_name_or_path = None  # the YAML names the base; a folder may have moved
    return config


def find_module(name: str, names: set[str]) -> str | None:
    """Find a module by the name that it had in another version of transformers.

    Args:
        name: Of then.
        names: All modules of today.

    Returns:
        The one module whose name ends as this one does; None where there is none, or several.

    Example:
        >>> find_module("model.layers.0.mlp", {"model.language_model.layers.0.mlp", "model.visual.layers.0.mlp"})
        'model.language_model.layers.0.mlp'
    """
    if name in names:
        return name
    pieces = name.split(".")
    for start in range(max(len(pieces) - 1, 1)):
        end = "." + ".".join(pieces[start:])
        hits = [other for other in names if f".{other}".endswith(end)]
        if len(hits) > 1:
            hits = [other for other in hits if _sense(other) == _sense(name)]
        if hits:
            return hits[0] if len(hits) == 1 else None
    return None


def _sense(name: str) -> str:
    return next((sense for sense in ("vis", "image", "audio") if sense in name), "text")


def _require_whole(config: Any, model: Any, family: FamilySpec, adapted: Sequence[str], where: str) -> None:
    """Compare the file with its own configuration, in the parts that the file reaches."""
    if isinstance(config.target_modules, str):
        return  # a pattern, which may be over names of another version and match more than layers
    named = targeted_layers(model, config)
    if not set(adapted) <= set(named):
        return  # likewise
    parts = {family.part_of(f"{name}.weight") for name in adapted}
    missing = sorted(n for n in set(named) - set(adapted) if family.part_of(f"{n}.weight") in parts)
    if missing:
        raise ConfigError(
            explain(
                "The adapter's file lacks layers that its configuration names",
                where=where,
                expected=f"{len(adapted) + len(missing)} layers",
                got=f"{len(adapted)}; {len(missing)} missing, such as {missing[0]}",
                fix="Copy or download the adapter again.",
            )
        )


def targeted_layers(model: Any, config: Any) -> list[str]:
    """Names of the layers that get an adapter by peft's configuration."""
    from peft.tuners.tuners_utils import check_target_module_exists

    return [name for name, _ in model.named_modules() if check_target_module_exists(config, name)]


def rename_modules(weights: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """Give an adapter's weights the names that their modules have today; what is not found keeps its name."""
    renamed = {}
    for key, tensor in weights.items():
        match = _LORA_KEY.match(key)
        module, rest = (match[1], match[2]) if match else key.removeprefix("base_model.model.").rsplit(".", 1)
        renamed[f"base_model.model.{find_module(module, names) or module}.{rest}"] = tensor
    return renamed


def load_adapter_weights(wrapped: Any, weights: Mapping[str, Tensor], *, also: Iterable[str] = ()) -> None:
    """Put an adapter's weights into a model that peft has wrapped.

    Args:
        wrapped: The peft model.
        weights: By the names of this model.
        also: Parts of names whose weights may be missing: modules that this run trains whole for the first time.

    Raises:
        ValueError: Weights are left over, missing, or of another shape; it says which.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    expected = get_peft_model_state_dict(wrapped, save_embedding_layers=False).keys()
    missing = sorted(k for k in expected - weights.keys() if not any(name in k for name in also))
    unexpected = sorted(weights.keys() - expected)
    if missing or unexpected:
        counts = [
            f"{len(keys)} {word}, such as {keys[0]}"
            for keys, word in ((missing, "missing"), (unexpected, "unknown"))
            if keys
        ]
        raise ValueError("; ".join(counts))
    set_peft_model_state_dict(wrapped, dict(weights))


def refuse_contradictions(settings: Lora, saved: SavedAdapter, targets: Sequence[str] | None) -> None:
    """Refuse values of the YAML that an adapter's own files contradict: they would be ignored.

    Args:
        settings: ``model.lora``.
        saved: The adapter that it names.
        targets: Layers that its ``targets`` name; None where it names none.

    Raises:
        ConfigError: The first that differs.
    """
    own = {"r": saved.config.r, "alpha": saved.config.lora_alpha, "rslora": saved.config.use_rslora}
    differing = [
        (k, getattr(settings, k), v) for k, v in own.items() if _is_set(settings, k) and getattr(settings, k) != v
    ]
    if targets is not None and set(targets) != set(saved.layers):
        differing.append(("targets", f"{len(set(targets))} layers", f"{len(saved.layers)} layers"))
    for key, wanted, has in differing:
        raise ConfigError(
            explain(
                f"The adapter has another {key} than the configuration",
                where=f"model.lora.{key}",
                got=str(wanted),
                expected=f"{has}, as in {settings.adapter}",
                fix=f"Remove {key}: an adapter that is continued keeps its own.",
            )
        )


def _is_set(settings: Lora, key: str) -> bool:
    """Whether somebody chose a value: a configuration that was written down has all the defaults in it, too."""
    return key in settings.model_fields_set and getattr(settings, key) != type(settings).model_fields[key].default
