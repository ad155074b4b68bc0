"""Patch embeddings as matrix products: the convolution's values and gradients, its weights and names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mmgrpo.policy.patches import PatchProjection, project_patches

KERNEL = (2, 4, 4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [KERNEL, (4, 8, 4)], ids=["one patch each", "a whole film"])
def test_values_and_gradients_are_the_convolutions(bias, size):
    torch.manual_seed(0)
    plain = nn.Conv3d(3, 5, kernel_size=KERNEL, stride=KERNEL, bias=bias, dtype=torch.float64)
    changed = copy.deepcopy(plain)
    project_patches(changed)
    assert type(changed) is PatchProjection
    assert changed.state_dict().keys() == plain.state_dict().keys()
    pixels = torch.randn(7, 3, *size, dtype=torch.float64)
    found, expected = changed(pixels), plain(pixels)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-12)
    for conv, out in ((changed, found), (plain, expected)):
        (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        assert conv.weight.grad is not None
    pairs = zip(changed.parameters(), plain.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-12) for a, b in pairs)


@pytest.mark.parametrize(
    "other", [{"stride": 1}, {"padding": 1}, {"padding": "valid"}, {"dilation": 2}, {"groups": 3}], ids=str
)
def test_other_convolutions_stay_what_they_are(other):
    conv = nn.Conv3d(3, 6, **{"kernel_size": KERNEL, "stride": 1 if "padding" in other else KERNEL, **other})
    project_patches(conv)
    assert type(conv) is nn.Conv3d


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni"])
def test_the_patches_of_these_families_are_projected(family, tiny_policy):
    kinds = [type(m) for m in tiny_policy(family).model.modules() if isinstance(m, nn.Conv3d)]
    assert kinds == [PatchProjection]
