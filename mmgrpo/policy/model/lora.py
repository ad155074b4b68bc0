"""LoRA: which layers get adapters, how they are put in, and how they are folded into the weights of their base.

Only this file knows peft's configuration.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.config.model import Freeze, Lora
from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.spec import FamilySpec
from mmgrpo.policy.model.parts import PartCount, bare_name, count_parts, linear_layers, whole_modules
from mmgrpo.policy.model.saved_weights import (
    SavedAdapter,
    load_adapter_weights,
    read_adapter,
    refuse_contradictions,
    targeted_layers,
)
from mmgrpo.policy.patches import suppress_peft_warnings

_PARTS = ("language", "vision", "projector", "audio")


def target_names(model: Any, family: FamilySpec, targets: tuple[str, ...], freeze: Freeze) -> list[str]:
    """Turn ``lora.targets`` into names of layers.

    Args:
        model: The bare model.
        family: Its record.
        targets: Parts, "all-linear", or (ends of) layer names. The last two reach the language model, the parts that
            are named beside, and those that ``freeze`` sets free: encoders have layers of the same names.
        freeze: ``model.freeze``.

    Returns:
        Full names of layers.

    Raises:
        ConfigError: A target that names no layer, or layers of frozen parts alone.
    """
    chosen: dict[str, None] = {}
    free = {"language", *targets, *(part for part in _PARTS if not getattr(freeze, part))} & set(_PARTS)
    left: Counter[str] = Counter()
    for target in targets:
        if target == "all-linear" or target in _PARTS:
            names = linear_layers(model, family, free if target == "all-linear" else [target])
        else:
            matching = _layers_called(model, target)
            names = [n for n in matching if n == target or family.part_of(f"{n}.weight") in free]
            left.update(family.part_of(f"{n}.weight") for n in set(matching) - set(names))
        if not names:
            raise _no_layer(model, family, target, left)
        chosen.update(dict.fromkeys(names))
    if left:
        parts = ", ".join(f"{count} layers of {part}" for part, count in left.items())
        warnings.warn(
            explain(
                "LoRA targets name layers of frozen parts, too; these get no adapter",
                where="model.lora.targets",
                got=parts,
                fix=f"Nothing, if they shall stay frozen; else set model.freeze.{next(iter(left))}: false.",
            ),
            stacklevel=2,
        )
    return list(chosen)


def _no_layer(model: Any, family: FamilySpec, target: str, frozen: Counter[str]) -> ConfigError:
    if frozen:
        part = next(iter(frozen))
        return ConfigError(
            explain(
                f"LoRA target {target!r} names layers of a frozen part alone",
                where="model.lora.targets",
                got=f"{frozen[part]} layers of {part}",
                fix=f"Set model.freeze.{part}: false, or name the part among the targets.",
            )
        )
    ends = sorted({n.rsplit(".", 1)[-1] for n in linear_layers(model, family, _PARTS)})
    return ConfigError(
        explain(
            f"LoRA target {target!r} names no linear layer of this model",
            where="model.lora.targets",
            expected=f"a part ({', '.join(_PARTS)}), all-linear, or one of {', '.join(ends)}",
        )
    )


def _layers_called(model: Any, target: str) -> list[str]:
    """Layers by (the end of) their name; only so do the embeddings and the LM head get adapters."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding) and (name == target or name.endswith(f".{target}"))
    ]


def add_adapters(model: Any, family: FamilySpec, settings: Lora, freeze: Freeze) -> Any:
    """Wrap a model with adapters, fresh or from ``settings.adapter``.

    Adapters go into the language model unless ``targets`` names other parts; a part that ``model.freeze`` sets free
    but no adapter reaches is trained whole, so that "train the projector" does something. Such parts are saved with
    the adapter, as peft's ``modules_to_save``.

    Args:
        model: The bare model; all its own weights are frozen here.
        family: Its record.
        settings: ``model.lora``.
        freeze: ``model.freeze``.

    Returns:
        The peft model around the same module.

    Raises:
        ConfigError: A target or module names no layer, the adapter cannot be read, or a requested part ends without
            a trainable parameter.
    """
    from peft import get_peft_model

    saved = _continued(model, family, settings, freeze) if settings.adapter else None
    config = saved.config if saved else _fresh_config(model, family, settings, freeze)
    requested = {part for part in ("vision", "projector", "audio") if not getattr(freeze, part)}
    reached = {family.part_of(f"{name}.weight") for name in targeted_layers(model, config)}
    whole = [*whole_modules(model, family, requested - reached), *settings.modules_to_save]
    before = set(config.modules_to_save or ()) if saved else set()
    config.modules_to_save = sorted({*(config.modules_to_save or ()), *whole}) or None
    try:
        with suppress_peft_warnings():
            wrapped = get_peft_model(model, config)
        if saved:
            load_adapter_weights(wrapped, saved.weights, also=set(whole) - before)
    except (ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(
            explain(
                "The adapter does not fit this model",
                where=f"model.lora.adapter: {settings.adapter}" if saved else "model.lora",
                got=str(error).strip().splitlines()[0],
                fix="Name the base model that the adapter was trained on." if saved else "",
            )
        ) from error
    _drop_only_in_training(model)
    _require_trained(count_parts(model, family), requested)
    return wrapped


def _continued(model: Any, family: FamilySpec, settings: Lora, freeze: Freeze) -> SavedAdapter:
    saved = read_adapter(str(settings.adapter), model, family)
    named = "targets" in settings.model_fields_set and settings.targets != Lora().targets
    targets = target_names(model, family, settings.targets, freeze) if named else None
    refuse_contradictions(settings, saved, targets)
    _require_modules(model, settings)
    if "dropout" in settings.model_fields_set:  # of this run's passes, not of the adapter
        saved.config.lora_dropout = settings.dropout
    return saved


def _require_modules(model: Any, settings: Lora) -> None:
    names = [name for name, _ in model.named_modules()]
    for wanted in settings.modules_to_save:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in names):
            raise ConfigError(
                explain(
                    f"No module of this model is called {wanted!r}",
                    where="model.lora.modules_to_save",
                    expected="the name of a module, for example lm_head",
                )
            )


def _fresh_config(model: Any, family: FamilySpec, settings: Lora, freeze: Freeze) -> Any:
    from peft import LoraConfig

    _require_modules(model, settings)
    return LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft accepts fractions
        lora_dropout=settings.dropout,
        use_rslora=settings.rslora,
        target_modules=target_names(model, family, settings.targets, freeze),
        modules_to_save=list(settings.modules_to_save) or None,
        bias="none",
    )


def _require_trained(counts: Sequence[PartCount], requested: set[str]) -> None:
    missing = sorted(c.part for c in counts if c.part in requested and not c.trainable)
    if missing:
        raise ConfigError(
            explain(
                "These parts were requested but have nothing to train", where="model.freeze", got=", ".join(missing)
            )
        )


class GradientDropout(nn.Dropout):
    """Dropout of an adapter in passes that learn, and in no other: rollouts and fixed log-probs see none."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop where gradients are on."""
        return nn.functional.dropout(input, self.p, torch.is_grad_enabled(), self.inplace)


def _drop_only_in_training(model: nn.Module) -> None:
    for module in model.modules():
        for name, dropout in getattr(module, "lora_dropout", {}).items():
            if isinstance(dropout, nn.Dropout):
                module.lora_dropout[name] = GradientDropout(dropout.p)


@contextlib.contextmanager
def without_dropout(model: nn.Module) -> Generator[None]:
    """Switch the dropout of adapters off for a while, where two passes with gradients must be equal."""
    layers = [m for m in model.modules() if isinstance(m, GradientDropout)]
    rates = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate


def is_fresh(model: Any) -> bool:
    """Whether every adapter still changes nothing: all its B matrices are zero."""
    return all(not bool(p.any()) for n, p in model.named_parameters() if ".lora_B." in n or ".lora_embedding_B." in n)


def merged_weights(model: nn.Module, *, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """All weights of a model by bare name, with what adapters add.

    W = W_base + scale * B A, added in float32 and rounded once to the type of the base, or to ``dtype``.

    Args:
        model: The bare model, with or without adapters injected.
        dtype: Of the weights given; None keeps that of the base.

    Yields:
        Names and tensors, exactly those of the model's ``state_dict()`` before adapters.
    """
    layers = dict(model.named_modules())
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if ".lora_" in name or ".original_module." in name or ".weight." in name:  # the last: 4-bit statistics
                continue
            owner = name.rpartition(".")[0]
            weight = _plain(layers[owner], name, tensor)
            if name.endswith(".base_layer.weight"):
                weight = _merged(layers[owner.removesuffix(".base_layer")], weight).to(dtype or weight.dtype)
            yield bare_name(name), weight.to(dtype) if dtype and weight.is_floating_point() else weight


@torch.no_grad()
def fraction_kept(model: nn.Module, dtype: torch.dtype) -> float:
    """Tell which fraction of the weights that adapters move is still moved after rounding to ``dtype``; 1: all."""
    moved = kept = 0
    for layer in model.modules():
        if not hasattr(layer, "get_delta_weight") or not any(a in layer.scaling for a in layer.active_adapters):
            continue
        base: Any = layer.base_layer
        weight = _plain(base, "weight", base.weight.data)
        total = _merged(layer, weight)
        moved += int((total != weight.float()).sum())
        kept += int((total.to(dtype) != weight.to(dtype)).sum())
    return kept / moved if moved else 1.0


def _plain(owner: Any, name: str, tensor: Tensor) -> Tensor:
    """Undo the packing of a 4-bit weight; any other is returned as it is."""
    quantised = getattr(getattr(owner, "weight", None), "quant_state", None)
    if quantised is None or not name.endswith("weight"):
        return tensor
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(owner.weight.data, quantised)


def _merged(layer: Any, base: Tensor) -> Tensor:
    total = base.float()
    for adapter in layer.active_adapters:
        if adapter in layer.scaling:
            total = total + layer.get_delta_weight(adapter).float()
    return total
