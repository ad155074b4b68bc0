"""Norms with a backward of one piece: the same values, gradients and names, and less held."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from mmgrpo.policy.patches import fuse_norms


def random_norm(kind, width=48, dtype=torch.float32):
    torch.manual_seed(0)
    norm = kind(width, 1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(width) + 0.5)
    return norm


def run(norm, x, grad):
    x = x.clone().requires_grad_()
    norm.zero_grad()
    found = norm(x)
    found.backward(grad)
    return found.detach(), x.grad, norm.weight.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 30, 48), (1, 10, 3, 48), (5, 48)])
@pytest.mark.parametrize("kind", [Qwen2_5_VLRMSNorm, Qwen3RMSNorm])
def test_values_are_the_same_bits_and_gradients_the_same_numbers(kind, shape, dtype):
    norm = random_norm(kind, dtype=dtype)
    changed = copy.deepcopy(norm)
    assert fuse_norms(changed) == 1
    assert changed.state_dict().keys() == norm.state_dict().keys()
    x, grad = 3 * torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    (a, ax, aw), (b, bx, bw) = run(changed, x, grad), run(norm, x, grad)
    assert torch.equal(a, b)
    if dtype == torch.float64:  # summed over tokens in full, whatever the norm itself computes in
        assert (aw - bw).norm() < 1e-12 * bw.norm()
    bound = {torch.float64: 1e-6, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for found, expected in ((ax, bx), (aw, bw)):
        assert found.dtype == expected.dtype
        assert (found.float() - expected.float()).norm() < bound * expected.float().norm()


def test_only_the_input_and_one_number_a_row_are_held():
    norm = random_norm(Qwen2_5_VLRMSNorm, dtype=torch.bfloat16)
    fuse_norms(norm)
    held = {}
    x = torch.randn(30, 48, dtype=torch.bfloat16, requires_grad=True)
    with saved_tensors_hooks(lambda t: held.setdefault(t.data_ptr(), t.numel() * t.element_size()), lambda t: t):
        norm(x)
    assert sum(held.values()) == 2 * 30 * 48 + 2 * 48 + 4 * 30


def test_a_frozen_weight_gets_no_gradient_and_a_copy_its_own_weight():
    norm = random_norm(Qwen3RMSNorm)
    fuse_norms(norm)
    norm.weight.requires_grad_(False)
    x = torch.randn(4, 48, requires_grad=True)
    norm(x).sum().backward()
    assert norm.weight.grad is None and x.grad is not None
    other = copy.deepcopy(norm)
    with torch.no_grad():
        other.weight.mul_(2)
    assert torch.equal(other(x), 2 * norm(x))


class GatedRMSNorm(Qwen3RMSNorm):
    """Does more than its name says."""

    def forward(self, hidden_states):
        return super().forward(hidden_states).sigmoid()


@pytest.mark.parametrize("norm", [random_norm(Gemma3RMSNorm), random_norm(GatedRMSNorm), nn.LayerNorm(8)])
def test_norms_of_another_formula_are_left_alone(norm):
    assert fuse_norms(norm) == 0
    assert "forward" not in vars(norm)


@pytest.mark.parametrize(
    "family",
    [
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3",
        "glm4v",
        "idefics3",
        "internvl",
        "llava_onevision",
        "mistral3",
        "qwen2_5_omni",
        "qwen3_omni_moe",
    ],
)
def test_the_language_models_of_these_families_have_such_norms(family, tiny_policy):
    policy = tiny_policy(family)
    layers = policy.module.decoder.layers
    assert all("forward" in vars(layer.input_layernorm) for layer in layers)
