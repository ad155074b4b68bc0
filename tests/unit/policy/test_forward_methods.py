"""Every use of weights goes through the forward methods of the module, so that a sharding wrapper can gather them."""

from __future__ import annotations

from functools import wraps

import pytest
import torch

from mmgrpo.config.model import Freeze, Lora
from mmgrpo.policy.model.forward import PackedForward
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Sampling


@pytest.fixture
def guarded():
    """Count how deep inside a forward method we are, and refuse the call of any submodule outside."""

    def guard(policy):
        depth, calls = [0], []

        def inside(name):
            method = getattr(policy.module, name)

            @wraps(method)
            def counted(*args, **kwargs):
                depth[0] += 1
                calls.append(name)
                try:
                    return method(*args, **kwargs)
                finally:
                    depth[0] -= 1

            return counted

        for name in PackedForward.FORWARD_METHODS:
            setattr(policy.module, name, inside(name))

        def refuse(module, args):
            assert depth[0], f"{type(module).__name__} was called outside of a forward method"

        for module in policy.model.modules():
            module.register_forward_pre_hook(refuse)
        return calls

    return guard


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen2_5_vl", {"tune": "full"}),
        ("qwen2_5_vl", {"tune": "lora", "lora": Lora(r=4), "freeze": Freeze()}),
        ("qwen2_5_vl", {"layout": "rows"}),
        ("gemma3", {}),
    ],
    ids=["full", "lora", "rows", "gemma3"],
)
def test_rollout_update_and_reference_use_weights_inside_forward_methods_alone(
    family, settings, tiny_policy, make_prompt, make_picture, make_batch, guarded
):
    policy = tiny_policy(family, sharp=False, **settings)
    prompt = make_prompt(policy, images=[make_picture()])
    policy.fix_reference()
    calls = guarded(policy)
    LocalEngine(policy).generate([prompt], [2], Sampling(max_completion_length=3))
    assert set(calls) == {"encode_media", "embed", "language", "head"}
    batch = make_batch([prompt], [[3, 2]])
    policy.module.forward(batch, temperature=1.0).logprobs.sum().backward()
    with policy.reference(), torch.no_grad():
        policy.logprobs(batch, temperature=1.0)


def test_the_reference_is_read_without_writing_a_weight(tiny_policy, make_prompt, make_batch):
    policy = tiny_policy("qwen3", sharp=False)
    batch = make_batch([make_prompt(policy)], [[3]])
    policy.fix_reference()
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.mul_(1.1)
    places = {n: (p.data_ptr(), p._version) for n, p in policy.model.named_parameters()}
    with policy.reference(), torch.no_grad():
        reference = policy.logprobs(batch, temperature=1.0).logprobs
        assert {n: (p.data_ptr(), p._version) for n, p in policy.model.named_parameters()} == places
    assert not torch.equal(policy.logprobs(batch, temperature=1.0).logprobs, reference)
