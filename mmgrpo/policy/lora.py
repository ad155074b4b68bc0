"""LoRA: which layers get adapters, and how they are put in. Only this file knows peft's configuration."""

from __future__ import annotations

from typing import Any

from mmgrpo.config.model import Freeze, Lora
from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.record import Family, part_of
from mmgrpo.policy.parts import bare_name, count_parts, linear_layers

_PARTS = ("language", "vision", "projector", "audio")


def target_names(model: Any, family: Family, targets: tuple[str, ...]) -> list[str]:
    """Turn ``lora.targets`` into names of linear layers.

    Args:
        model: The bare model.
        family: Its record.
        targets: Parts, "all-linear", or (ends of) layer names.

    Returns:
        Full names of layers.

    Raises:
        ConfigError: A target that names no layer.
    """
    names: dict[str, None] = {}
    everything = linear_layers(model, family, _PARTS)
    for target in targets:
        if target == "all-linear":
            found = everything
        elif target in _PARTS:
            found = linear_layers(model, family, [target])
        else:
            found = [n for n in everything if n == target or n.endswith(f".{target}")]
        if not found:
            ends = sorted({n.rsplit(".", 1)[-1] for n in everything})
            raise ConfigError(
                explain(
                    f"LoRA target {target!r} names no linear layer of this model",
                    where="model.lora.targets",
                    expected=f"a part ({', '.join(_PARTS)}), all-linear, or one of {', '.join(ends)}",
                )
            )
        names.update(dict.fromkeys(found))
    return list(names)


def add_adapters(model: Any, family: Family, settings: Lora, freeze: Freeze) -> Any:
    """Wrap a model with adapters, fresh or from ``settings.adapter``.

    Adapters go into the language model unless ``targets`` names other parts; a part that ``model.freeze`` sets free
    but no adapter reaches is trained whole, so that "train the projector" does something.

    Args:
        model: The bare model; all its own weights are frozen here.
        family: Its record.
        settings: ``model.lora``.
        freeze: ``model.freeze``.

    Returns:
        The peft model around the same module.

    Raises:
        ConfigError: A target names no layer, or an asked-for part ends without a trainable parameter.
    """
    from peft import LoraConfig, PeftModel, get_peft_model

    if settings.adapter:
        wrapped = PeftModel.from_pretrained(model, settings.adapter, is_trainable=True)
    else:
        config = LoraConfig(
            r=settings.r,
            lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft accepts fractions
            lora_dropout=settings.dropout,
            use_rslora=settings.rslora,
            target_modules=target_names(model, family, settings.targets),
            modules_to_save=list(settings.modules_to_save) or None,
            bias="none",
        )
        wrapped = get_peft_model(model, config)
    adapted = {c.part for c in count_parts(model, family) if c.trainable}
    asked = {part for part in ("vision", "projector", "audio") if not getattr(freeze, part)}
    for name, parameter in model.named_parameters():
        if part_of(family, bare_name(name)) in asked - adapted:
            parameter.requires_grad_(True)
    counts = {c.part: c for c in count_parts(model, family)}
    missing = [part for part in asked if part in counts and not counts[part].trainable]
    if missing:
        raise ConfigError(
            explain(
                "These parts were asked for but have nothing to train", where="model.freeze", got=", ".join(missing)
            )
        )
    return wrapped


def is_fresh(model: Any) -> bool:
    """Whether every adapter still changes nothing: all its B matrices are zero."""
    return all(not bool(p.any()) for n, p in model.named_parameters() if ".lora_B." in n or ".lora_embedding_B." in n)
