"""Rollout rows of the field cases, with the local engine."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Batch, Sampling, Segment


@pytest.fixture
def ratios(tiny_policy, make_prompt, make_picture):
    """log p_trainer - log p_engine of every token of eight rows, without any update in between."""

    def measure(**sampling):
        policy = tiny_policy()
        prompts = [
            make_prompt(policy, "How many?", images=[make_picture(56 + 28 * (i % 3), seed=i)], draw_index=i)
            for i in range(8)
        ]
        settings = Sampling(max_completion_length=16, seed=1, **sampling)
        groups = LocalEngine(policy).generate(prompts, [4] * 8, settings)
        segments = [
            Segment(prompt=g.prompt, completions=g.completions, advantages=(0.0,) * len(g.completions)) for g in groups
        ]
        batch = Batch(segments=tuple(segments))
        with torch.no_grad():
            trainer = policy.logprobs(batch, temperature=settings.temperature).logprobs
        return trainer - torch.cat([c.rollout_logprobs for c in batch.completions])

    return measure


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_r04_the_ratio_is_one_at_every_temperature(temperature, ratios):
    ratio = ratios(temperature=temperature).exp()
    assert 0.999 < ratio.mean() < 1.001
    assert ratio.min() > 0.98
    assert ratio.max() < 1.02


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"repetition_penalty": 1.2}])
def test_r05_cutting_the_distribution_does_not_bias_the_ratio(cut, ratios):
    assert abs(ratios(**cut).mean()) < 1e-4


def test_r11_importing_the_package_and_its_engine_leaves_cuda_untouched():
    code = (
        "import torch, mmgrpo, mmgrpo.rollout.local, mmgrpo.policy.model.policy;"
        "assert not torch.cuda.is_initialized(), 'CUDA was initialised';"
        "torch.cuda.is_available(); print(torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_r13_a_completion_at_the_limit_says_so(tiny_policy, make_prompt, make_picture):
    policy = tiny_policy()
    prompt = make_prompt(policy, images=[make_picture()])
    head, text = policy.module.head, iter(policy.tokenizer.encode("5. 6+2=8. 7+1=8. 8+0=8. 9"))

    def rambling(hidden):
        logits = head(hidden).clone()
        logits[:, next(text)] = 1e4
        return logits

    policy.module.head = rambling
    (group,) = LocalEngine(policy).generate([prompt], [2], Sampling(max_completion_length=12))
    assert {(c.status, len(c.token_ids)) for c in group.completions} == {("length", 12)}
    assert group.completions[0].text.startswith("5. 6+2=8")
