"""Patch embeddings as what they are: one linear map of each patch.

Qwen's encoders get their pixels cut into patches, and pass each through a convolution whose kernel is the whole patch.
Convolution kernels are made for sliding, and are several times slower at this. Knows modules, not families.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


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
