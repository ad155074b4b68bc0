"""Qwen3-Omni: clips at their own times, and sounds counted as the encoder gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmgrpo.config.data import Data, VideoLimits
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.frames import set_video_limits
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.model.plain import plain_logprobs
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Batch, Media, Sample, Sampling, Segment


@pytest.fixture
def encode():
    """Encode a clip of three frames a second through the run's own builder."""

    def build(policy):
        data = Data(video=VideoLimits(fps=3.0, min_pixels=1024, max_pixels=4096))
        set_video_limits(policy.processor, data.video)
        adapters = Adapters(built_in(data, processor=policy.processor))
        builder = PromptBuilder(policy.processor, family=policy.family_info, adapters=adapters)
        noise = np.random.default_rng(0).integers(0, 255, (12, 4, 4, 3), dtype=np.uint8)
        clip = Media(kind="video", source=noise.repeat(16, 1).repeat(16, 2), rate=3.0, name="a clip")
        blocks = [{"type": "text", "text": "Look:"}, {"type": "video"}, {"type": "text", "text": "How often?"}]
        return builder.build_prompt(Sample(id="a", messages=({"role": "user", "content": blocks},), media=(clip,)))

    return build


def test_times_between_whole_positions_are_kept_in_training_and_rollout(tiny_policy, encode):
    policy = tiny_policy("qwen3_omni_moe")
    prompt = encode(policy)
    (encoded,) = policy.module.encode_media([prompt])
    assert (encoded.positions % 1).any()
    for layout in ("packed", "rows"):
        policy = tiny_policy("qwen3_omni_moe", layout=layout)
        (group,) = LocalEngine(policy).generate([prompt], [3], Sampling(max_completion_length=8))
        segment = Segment(prompt=prompt, completions=group.completions, advantages=(0.0,) * 3)
        with torch.no_grad():
            trainer = policy.logprobs(Batch(segments=(segment,)), temperature=1.0).logprobs
            rows = [plain_logprobs(policy.model, policy.family, prompt, c, temperature=1.0) for c in group.completions]
        assert (trainer - torch.cat(rows)).abs().max() < 1e-5
        assert (trainer - torch.cat([c.rollout_logprobs for c in group.completions])).abs().max() < 1e-4


@pytest.mark.parametrize("seconds", [[0.05], [0.99], [1.0], [1.01], [1.63, 0.4]])
def test_counted_sounds_are_those_of_the_encoder(seconds, tiny_policy, make_prompt, make_beep):
    policy = tiny_policy("qwen3_omni_moe")
    prompt = make_prompt(policy, audios=[make_beep(s, seed=i) for i, s in enumerate(seconds)])
    inputs = prompt.model_inputs
    base = getattr(policy.model, "model", policy.model)
    base = base if hasattr(base, "get_audio_features") else policy.model
    with torch.no_grad():
        found = base.get_audio_features(inputs["input_features"], inputs["feature_attention_mask"], return_dict=True)
    counted = policy.family.count_features(prompt, policy.model.config)["audio"]
    assert counted == len(found.last_hidden_state)
    assert counted == policy.family_info.count_media_tokens(prompt.token_ids)["audio"]
