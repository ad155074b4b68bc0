"""The equalities of the CPU again in bfloat16 on CUDA; skipped, and said so, without a device."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.checks.first_step import check_engine, check_packed
from mmgrpo.types import Group, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def rolled_out(tiny_policy, make_prompt, make_picture):
    from mmgrpo.rollout.local import LocalEngine

    def build(dtype: str, **settings):
        policy = tiny_policy("qwen2_5_vl", device="cuda", dtype=dtype, **settings)
        prompts = [make_prompt(policy, images=[make_picture(seed=i)], draw_index=i) for i in range(3)]
        sampling = Sampling(max_completion_length=24, temperature=1.0, seed=1)
        return policy, LocalEngine(policy).generate(prompts, [4] * len(prompts), sampling)

    return build


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_equals_the_trainer_on_cuda(rolled_out, dtype):
    policy, groups = rolled_out(dtype)
    check_engine(policy, groups, temperature=1.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_equals_plain_on_cuda(rolled_out, dtype, checkpointing):
    policy, groups = rolled_out(dtype, gradient_checkpointing=checkpointing)
    for group in groups:
        assert isinstance(group, Group)
        check_packed(policy, group, temperature=1.0)


def test_a_run_learns_in_bfloat16_with_master_weights(tmp_path):
    import mmgrpo

    run = mmgrpo.train(
        "examples/quickstart.yaml",
        model={"device": "cuda", "dtype": "bfloat16"},
        warm_start={"num_steps": 5},
        train={"num_steps": 3, "output_dir": str(tmp_path / "run")},
        data={"eval": {"rows": 32}},
    )
    assert run.steps == 3
