"""The weights of an adapted model by the names of its base: every adapter added in, once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.policy.parts import bare_name


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
            if ".lora_" in name or ".original_module." in name:
                continue
            if name.endswith(".base_layer.weight"):
                layer: Any = layers[name.removesuffix(".base_layer.weight")]
                yield bare_name(name), _merged(layer, tensor)
            else:
                yield bare_name(name), tensor


def _merged(layer: Any, base: Tensor) -> Tensor:
    quantised = getattr(layer.base_layer.weight, "quant_state", None)
    if quantised is not None:
        from bitsandbytes.functional import dequantize_4bit

        base = dequantize_4bit(layer.base_layer.weight.data, quantised)
    total = base.float()
    for adapter in layer.active_adapters:
        if adapter in layer.scaling:
            total = total + layer.get_delta_weight(adapter).float()
    return total.to(base.dtype)
