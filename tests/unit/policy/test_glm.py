"""GLM-4.1V and GLM-4.6V: what stands where in a clip, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmgrpo.config.data import Data
from mmgrpo.errors import ProcessorError
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Media, Sample, Sampling


@pytest.fixture
def encode(make_picture):
    """Encode a prompt of pictures and clips through the run's own builder, by kind."""

    def build(policy, *kinds, sample_id="a"):
        picture = make_picture(112, 112)
        frames = np.stack([np.asarray(make_picture(112, 112, seed=s)) for s in range(4)])
        made = {
            "image": Media(kind="image", source=picture),
            "video": Media(kind="video", source=frames, rate=2.0),
        }
        adapters = Adapters(built_in(Data(), processor=policy.processor))
        builder = PromptBuilder(policy.processor, family=policy.family_info, adapters=adapters)
        blocks = [*({"type": kind} for kind in kinds), {"type": "text", "text": "What happens?"}]
        media = tuple(made[kind] for kind in kinds)
        return builder.build_prompt(Sample(id=sample_id, messages=({"role": "user", "content": blocks},), media=media))

    return build


@pytest.mark.parametrize("family", ["glm4v", "glm46v"])
def test_pictures_and_clips_in_one_prompt_are_refused_by_sample(family, tiny_policy, encode):
    policy = tiny_policy(family)
    with pytest.raises(ProcessorError, match=r"not both(.|\n)*sample row 3"):
        policy.module.encode_media([encode(policy, "image", "video", sample_id="row 3")])


def test_pictures_and_clips_of_two_prompts_each_find_their_place(tiny_policy, encode):
    policy = tiny_policy("glm4v")
    prompts = [encode(policy, "video"), encode(policy, "image")]
    with torch.no_grad():
        together = policy.module.encode_media(prompts)
        alone = [policy.module.encode_media([prompt])[0] for prompt in prompts]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one.embeddings, other.embeddings, atol=1e-6)
        assert torch.equal(one.positions, other.positions)


def test_the_token_of_clips_is_never_written(tiny_policy, encode):
    policy = tiny_policy("glm4v")
    head, token = policy.module.head, policy.model.config.video_token_id
    policy.module.head = lambda hidden: head(hidden).index_fill(1, torch.tensor([token]), 1e4)
    (group,) = LocalEngine(policy).generate([encode(policy, "video")], [3], Sampling(max_completion_length=5))
    assert not any((completion.token_ids == token).any() for completion in group.completions)
