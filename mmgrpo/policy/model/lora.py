"""LoRA: which layers get adapters, how they are put in, and how they are folded into the weights of their base.

Only this file knows peft's configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from mmgrpo.config.model import Freeze, Lora
from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.spec import FamilySpec
from mmgrpo.policy.model.parts import PartCount, bare_name, count_parts, linear_layers, whole_modules
from mmgrpo.policy.patches import suppress_peft_warnings

_PARTS = ("language", "vision", "projector", "audio")


def target_names(model: Any, family: FamilySpec, targets: tuple[str, ...]) -> list[str]:
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
    chosen: dict[str, None] = {}
    everything = linear_layers(model, family, _PARTS)
    for target in targets:
        if target == "all-linear":
            names = everything
        elif target in _PARTS:
            names = linear_layers(model, family, [target])
        else:
            names = _layers_called(model, target)
        if not names:
            ends = sorted({n.rsplit(".", 1)[-1] for n in everything})
            raise ConfigError(
                explain(
                    f"LoRA target {target!r} names no linear layer of this model",
                    where="model.lora.targets",
                    expected=f"a part ({', '.join(_PARTS)}), all-linear, or one of {', '.join(ends)}",
                )
            )
        chosen.update(dict.fromkeys(names))
    return list(chosen)


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

    config = _read_config(settings.adapter) if settings.adapter else _fresh_config(model, family, settings)
    requested = {part for part in ("vision", "projector", "audio") if not getattr(freeze, part)}
    reached = {family.part_of(f"{name}.weight") for name in _targeted(model, config)}
    whole = whole_modules(model, family, requested - reached)
    config.modules_to_save = sorted({*(config.modules_to_save or ()), *whole}) or None
    with suppress_peft_warnings():
        wrapped = get_peft_model(model, config)
    if settings.adapter:
        _load_adapter(wrapped, settings.adapter)
    _drop_only_in_training(model)
    _require_trained(count_parts(model, family), requested)
    return wrapped


def _fresh_config(model: Any, family: FamilySpec, settings: Lora) -> Any:
    from peft import LoraConfig

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
    return LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft accepts fractions
        lora_dropout=settings.dropout,
        use_rslora=settings.rslora,
        target_modules=target_names(model, family, settings.targets),
        modules_to_save=list(settings.modules_to_save) or None,
        bias="none",
    )


def _read_config(adapter: str) -> Any:
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(adapter)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            explain(
                "The adapter cannot be loaded",
                where=f"model.lora.adapter: {adapter}",
                expected="a folder with adapter_config.json and adapter_model.safetensors, or a hub id",
                got=str(error).strip().splitlines()[0],
            )
        ) from error
    config.inference_mode = False
    config.base_model_name_or_path = None  # the YAML names the base; a folder may have moved
    return config


def _load_adapter(wrapped: Any, adapter: str) -> None:
    from peft import load_peft_weights, set_peft_model_state_dict

    try:
        unexpected = set_peft_model_state_dict(wrapped, load_peft_weights(adapter, device="cpu")).unexpected_keys
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        unexpected = [str(error).strip().splitlines()[0]]
    if unexpected:
        raise ConfigError(
            explain(
                "The adapter does not fit this model",
                where=f"model.lora.adapter: {adapter}",
                got=", ".join(unexpected[:3]),
                fix="Name the base model that the adapter was trained on.",
            )
        )


def _targeted(model: Any, config: Any) -> list[str]:
    """Names of the layers that get an adapter."""
    from peft.tuners.tuners_utils import check_target_module_exists

    return [name for name, _ in model.named_modules() if check_target_module_exists(config, name)]


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


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All weights of a model by bare name, with what adapters add.

    W = W_base + scale * B A, added in float32 and rounded once to the type of the base.

    Args:
        model: The bare model, with or without adapters injected.

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
                weight = _merged(layers[owner.removesuffix(".base_layer")], weight)
            yield bare_name(name), weight


def _plain(owner: Any, name: str, tensor: Tensor) -> Tensor:
    """Undo the packing of a 4-bit weight; any other is returned as it is."""
    quantised = getattr(getattr(owner, "weight", None), "quant_state", None)
    if quantised is None or not name.endswith(".weight"):
        return tensor
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(owner.weight.data, quantised)


def _merged(layer: Any, base: Tensor) -> Tensor:
    total = base.float()
    for adapter in layer.active_adapters:
        if adapter in layer.scaling:
            total = total + layer.get_delta_weight(adapter).float()
    return total.to(base.dtype)
