"""Root-mean-square norms whose backward is one piece: fewer passes over memory, and only the input is held.

transformers writes the norm as half a dozen operations, each of which autograd records; in half precision they hold
copies in float32, too. Values are the same to the last bit. Knows modules, not families.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _RootMeanSquare(torch.autograd.Function):
    """y = w * x / sqrt(mean(x^2) + eps), in float32 up to the product with w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse)
        return weight * (wide * inverse).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, inverse = ctx.saved_tensors
        whole = torch.promote_types(x.dtype, torch.float32)  # sums over tokens keep a float64 model's precision
        normed, wide, gain = (x.float() * inverse).to(whole), grad.to(whole), weight.to(whole)
        product = wide * normed
        to_weight = product.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        along = (product @ gain)[..., None] / x.shape[-1]
        to_x = (wide * gain).addcmul_(normed, along, value=-1).mul_(inverse)
        return to_x.to(x.dtype), to_weight, None


def _forward(self: Any, hidden_states: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
    if not torch.is_grad_enabled():
        return type(self).forward(self, hidden_states)
    return _RootMeanSquare.apply(hidden_states, self.weight, _epsilon(self))  # type: ignore[no-any-return]


def gather_norms(model: nn.Module) -> int:
    """Give every plain root-mean-square norm a backward of one piece; weights and names stay.

    A norm counts as plain if its class is named so and it computes the formula above on a sample; one that does more
    (a weight counted from 1, a gate) is left alone.

    Args:
        model: Changed in place.

    Returns:
        How many norms were changed.
    """
    plain: dict[type, bool] = {}
    changed = 0
    for module in model.modules():
        kind = type(module)
        if not kind.__name__.endswith("RMSNorm"):
            continue
        if kind not in plain:
            plain[kind] = _is_plain(module)
        if plain[kind]:
            module.forward = MethodType(_forward, module)
            changed += 1
    return changed


def _epsilon(module: Any) -> float | None:
    found = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found if isinstance(found, float) else None


@torch.no_grad()
def _is_plain(module: nn.Module) -> bool:
    weight, eps = getattr(module, "weight", None), _epsilon(module)
    alone = [name for name, _ in module.named_parameters()] == ["weight"]
    if not alone or not isinstance(weight, Tensor) or weight.ndim != 1 or eps is None or weight.is_meta:
        return False
    steps = torch.arange(2 * len(weight), device=weight.device, dtype=torch.float32)
    sample = (steps.sin() * 3).view(2, -1).to(weight.dtype)
    return torch.equal(module(sample), _RootMeanSquare.apply(sample, weight, eps))
