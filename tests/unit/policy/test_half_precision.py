"""bfloat16 on the CPU: close to float32, and engine, packed rows and plain rows stay close to each other."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.model import Freeze
from mmgrpo.policy.model.plain import plain_logprobs
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Batch, Sampling, Segment

MEAN_BOUND = 0.02
"""Nats, of the mean absolute difference of log-probs."""


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3"])
def test_bfloat16_stays_within_the_bound_of_the_run_checks(family, tiny_policy, make_prompt, make_picture):
    policy = tiny_policy(family, dtype="bfloat16", sharp=False)
    exact = tiny_policy(family, sharp=False)
    assert policy.dtype is torch.bfloat16
    images = [make_picture()] if policy.family.kinds else []
    prompts = [make_prompt(policy, "How many?", images=images), make_prompt(policy, "Hi", draw_index=1)]
    groups = LocalEngine(policy).generate(prompts, [4, 4], Sampling(max_completion_length=16))
    segments = [Segment(prompt=g.prompt, completions=g.completions, advantages=(0.0,) * 4) for g in groups]
    batch = Batch(segments=tuple(segments))
    with torch.no_grad():
        packed = policy.logprobs(batch, temperature=1.0, entropy=True)
        plain = torch.cat(
            [
                plain_logprobs(policy.model, policy.family, s.prompt, c, temperature=1.0)
                for s in segments
                for c in s.completions
            ]
        )
        wide = exact.logprobs(batch, temperature=1.0)
    engine = torch.cat([c.rollout_logprobs for c in batch.completions])
    assert packed.logprobs.dtype == packed.entropy.dtype == engine.dtype == torch.float32
    for other in (plain, engine, wide.logprobs):
        assert (packed.logprobs - other).abs().mean() < MEAN_BOUND
        assert (packed.logprobs - other).abs().max() < 0.2


def test_adapters_on_a_bfloat16_base_are_float32_and_learn(tiny_policy, make_prompt, make_picture, make_batch):
    policy = tiny_policy(dtype="bfloat16", tune="lora", sharp=False, freeze=Freeze())
    assert {p.dtype for _, p in policy.trainable()} == {torch.float32}
    batch = make_batch([make_prompt(policy, images=[make_picture()])], [[4, 2]])
    policy.logprobs(batch, temperature=1.0).logprobs.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for _, p in policy.trainable())


def test_adapter_dropout_is_warned_about_and_acts_only_where_gradients_are_on(tiny_policy, make_prompt, make_batch):
    from mmgrpo.config.model import Lora

    with pytest.warns(UserWarning, match=r"model\.lora\.dropout"):
        policy = tiny_policy("qwen3", tune="lora", lora=Lora(r=8, dropout=0.5))
    batch = make_batch([make_prompt(policy)], [[6]])
    with torch.no_grad():
        fixed = [policy.logprobs(batch, temperature=1.0).logprobs for _ in range(2)]
    learning = [policy.logprobs(batch, temperature=1.0).logprobs for _ in range(2)]
    assert torch.equal(*fixed)
    assert not torch.equal(*learning)
    assert not torch.equal(fixed[0], learning[0])
