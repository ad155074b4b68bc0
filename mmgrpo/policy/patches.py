"""What is changed in transformers' modules, and what differs between its versions (5.16 to 5.x). No family is known.

- Patch embeddings as one linear map of each patch: Qwen's encoders get their pixels cut into patches, and pass each
  through a convolution whose kernel is the whole patch. Convolution kernels are made for sliding, and are several
  times slower at this.
- Root-mean-square norms whose backward is one piece: transformers writes the norm as half a dozen operations, each of
  which autograd records; in half precision they hold copies in float32, too. Values are the same to the last bit.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import MethodType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_REENTRANT_OFF = {"use_reentrant": False}


class PatchProjection(nn.Conv3d):
    """A convolution that is a matrix product where its kernel covers the whole input, and itself elsewhere."""

    def forward(self, input: Float[Tensor, "n I t h w"]) -> Float[Tensor, "n O T H W"]:
        """Project each patch."""
        if input.shape[2:] != self.kernel_size:
            return super().forward(input)
        return F.linear(input.flatten(1), self.weight.flatten(1), self.bias)[:, :, None, None, None]


def project_patches(model: nn.Module) -> None:
    """Let every convolution over ready-cut patches compute as a matrix product; weights and names stay.

    Args:
        model: Changed in place.
    """
    for module in model.modules():
        if type(module) is nn.Conv3d and _covers_patches(module):
            module.__class__ = PatchProjection


def _covers_patches(conv: nn.Conv3d) -> bool:
    unpadded = not isinstance(conv.padding, str) and not any(conv.padding)
    return conv.stride == conv.kernel_size and unpadded and set(conv.dilation) == {1} and conv.groups == 1


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


def fuse_norms(model: nn.Module) -> int:
    """Give every plain root-mean-square norm a backward of one piece; weights and names stay.

    A norm counts as plain if its class is named so and it computes the formula above on a sample; one that does more
    (a weight counted from 1, a gate) is left alone.

    Args:
        model: Changed in place.

    Returns:
        How many norms were changed.
    """
    is_plain: dict[type, bool] = {}
    changed = 0
    for module in model.modules():
        kind = type(module)
        if not kind.__name__.endswith("RMSNorm"):
            continue
        if kind not in is_plain:
            is_plain[kind] = _is_plain(module)
        if is_plain[kind]:
            module.forward = MethodType(_forward, module)
            changed += 1
    return changed


def _epsilon(module: Any) -> float | None:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return epsilon if isinstance(epsilon, float) else None


@torch.no_grad()
def _is_plain(module: nn.Module) -> bool:
    weight, eps = getattr(module, "weight", None), _epsilon(module)
    alone = [name for name, _ in module.named_parameters()] == ["weight"]
    if not alone or not isinstance(weight, Tensor) or weight.ndim != 1 or eps is None or weight.is_meta:
        return False
    steps = torch.arange(2 * len(weight), device=weight.device, dtype=torch.float32)
    sample = (steps.sin() * 3).view(2, -1).to(weight.dtype)
    return torch.equal(module(sample), _RootMeanSquare.apply(sample, weight, eps))


def enable_gradient_checkpointing(model: Any) -> None:
    """Recompute layers in backward. Renamed in 5.24; non-reentrant, so that adapters and keywords survive."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=_REENTRANT_OFF)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_REENTRANT_OFF)


def cache_keyword(decoder: Any) -> str:
    """Name of the cache argument of a language model: ``cache`` from 5.20 on, ``past_key_values`` before."""
    return "cache" if "cache" in inspect.signature(type(decoder).forward).parameters else "past_key_values"


@contextmanager
def suppress_peft_warnings() -> Iterator[None]:
    """Keep back two warnings of peft that a user can do nothing about.

    One is of a name that transformers 5.24 renamed and peft still reads; the other says that adapters on tied
    embeddings are lost in merging, while merging here unties them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")
        yield


def decoder_of(model: Any, path: str) -> Any:
    """The language model inside a model: at ``path``, or where older versions of the family keep it."""
    try:
        return attrgetter(path)(model)
    except AttributeError:
        return model.get_decoder()


def media_base(model: Any) -> Any:
    """What has the encoders: ``model.model``, or in older versions of the omni Thinker the model itself."""
    inner = getattr(model, "model", model)
    return inner if hasattr(inner, "visual") or hasattr(inner, "audio_tower") else model


def concatenate(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Encoder features of all media in one tensor: newer versions return a list, one tensor per media item."""
    return features if isinstance(features, Tensor) else torch.cat(list(features))
