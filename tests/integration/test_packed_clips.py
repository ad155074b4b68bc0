"""Prompts with clips: packed against plain rows, engine against trainer, and a clip that is really seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.config.data import Data, VideoLimits
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.frames import set_video_limits
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.model.plain import plain_logprobs
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Batch, Media, Sample, Sampling, Segment

ANY_LENGTH = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"]
"""Families whose prompts may hold clips of several lengths and sizes."""
GLM = ["glm4v", "glm46v"]
FAMILIES = [*ANY_LENGTH, *GLM, "internvl", "llava_onevision"]


@pytest.fixture
def encode():
    """Encode a prompt of pictures and clips through the run's own builder."""

    def build(policy, *media, sample_id="a"):
        data = Data(video=VideoLimits(fps=2.0, min_pixels=784, max_pixels=6272))
        set_video_limits(policy.processor, data.video)
        adapters = Adapters(built_in(data, processor=policy.processor))
        builder = PromptBuilder(policy.processor, family=policy.family_info, adapters=adapters)
        blocks = [*({"type": m.kind} for m in media), {"type": "text", "text": "How often does it blink?"}]
        return builder.build_prompt(Sample(id=sample_id, messages=({"role": "user", "content": blocks},), media=media))

    return build


def clip(count=12, size=56, rate=3.0, seed=0):
    noise = np.random.default_rng(seed).integers(0, 255, (count, 4, 4, 3), dtype=np.uint8)
    return Media(kind="video", source=noise.repeat(size // 4, 1).repeat(size // 4, 2), rate=rate, name="a clip")


def picture(seed=1):
    noise = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), dtype=np.uint8)
    return Media(kind="image", source=Image.fromarray(noise).resize((56, 84), Image.Resampling.NEAREST), name="one")


MEDIA = {
    "one clip": lambda: [[clip()]],
    "two clips of two lengths": lambda: [[clip(), clip(16, 28, 4.0, 1)]],
    "clip and picture": lambda: [[clip()], [picture(), clip(9, seed=3), picture(4)]],
    "a clip that lasts longer than it is wide": lambda: [[clip(24, 56, 2.0, 6), picture(2)], [clip(20, 28, 0.5, 7)]],
    "beside text": lambda: [[clip(seed=5)], [], [picture()]],
    "two clips of one length": lambda: [[clip(), clip(seed=1)], [picture(), clip(9, seed=3), picture(4)]],
}
UNMIXED = ["one clip", "two clips of two lengths", "beside text"]
"""For families that take pictures or clips in a prompt, not both."""
ALIKE = ["one clip", "beside text", "two clips of one length"]
"""For families whose clips of a prompt stand in one tensor."""
SHAPES = dict.fromkeys(ANY_LENGTH, tuple(MEDIA)) | dict.fromkeys(GLM, UNMIXED) | dict.fromkeys(FAMILIES[-2:], ALIKE)
CASES = [(family, shape) for family in FAMILIES for shape in SHAPES[family]]


@pytest.mark.parametrize(("family", "shape"), CASES)
def test_packed_logprobs_and_gradients_are_those_of_the_plain_rows(family, shape, tiny_policy, make_batch, encode):
    policy = tiny_policy(family)
    prompts = [encode(policy, *media, sample_id=str(i)) for i, media in enumerate(MEDIA[shape]())]
    batch = make_batch(prompts, [[5, 3, 9]] * len(prompts))
    packed = policy.logprobs(batch, temperature=1.0).logprobs
    plain = torch.cat(
        [
            plain_logprobs(policy.model, policy.family, segment.prompt, completion, temperature=1.0)
            for segment in batch.segments
            for completion in segment.completions
        ]
    )
    assert (packed - plain).abs().max() < 1e-5
    weights = torch.randn(packed.shape, generator=torch.Generator().manual_seed(1))
    found = []
    for logprobs in (packed, plain):
        policy.model.zero_grad()
        (logprobs * weights).sum().backward()
        found.append({name: p.grad.clone() for name, p in policy.trainable() if p.grad is not None})
    total = max(gradient.norm() for gradient in found[1].values())
    for name, gradient in found[1].items():
        # softmax does not see a bias that all keys share: its gradient is rounding alone
        rounding = 1e-7 * total if name.endswith("k_proj.bias") else 1e-9
        assert (found[0][name] - gradient).norm() <= 1e-4 * gradient.norm() + rounding, name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_sees_the_clip_as_the_trainer_does(family, tiny_policy, encode):
    policy = tiny_policy(family)
    engine = LocalEngine(policy)
    groups = engine.generate([encode(policy, clip())], [3], Sampling(max_completion_length=6))
    segment = Segment(prompt=groups[0].prompt, completions=groups[0].completions, advantages=(0.0,) * 3)
    with torch.no_grad():
        trainer = policy.logprobs(Batch(segments=(segment,)), temperature=1.0).logprobs
    recorded = torch.cat([c.rollout_logprobs for c in groups[0].completions])
    assert (trainer - recorded).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_another_clip_or_another_order_of_frames_changes_the_logprobs(family, tiny_policy, make_batch, encode):
    policy = tiny_policy(family)
    source = clip(12, rate=2.0)
    backwards = replace(source, source=source.source[::-1].copy())
    found = []
    for media in (source, clip(12, rate=2.0, seed=7), backwards):
        with torch.no_grad():
            found.append(policy.logprobs(make_batch([encode(policy, media)], [[8]]), temperature=1.0).logprobs)
    assert (found[0] - found[1]).abs().max() > 1e-3
    assert (found[0] - found[2]).abs().max() > 1e-3


def test_the_seconds_of_a_clip_change_the_positions_of_qwen2_5(tiny_policy, make_batch, encode):
    policy = tiny_policy("qwen2_5_vl")
    frames = clip(8, rate=2.0)
    slow = replace(frames, rate=0.5)
    found = []
    for media in (frames, slow):
        prompt = encode(policy, media)
        with torch.no_grad():
            found.append((prompt, policy.logprobs(make_batch([prompt], [[8]]), temperature=1.0).logprobs))
    assert torch.equal(found[0][0].token_ids, found[1][0].token_ids), "the same frames and tokens"
    assert found[1][0].model_inputs["second_per_grid_ts"] == 4 * found[0][0].model_inputs["second_per_grid_ts"]
    assert (found[0][1] - found[1][1]).abs().max() > 1e-4
