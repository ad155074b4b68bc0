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
