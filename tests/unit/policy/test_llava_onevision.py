"""LLaVA-OneVision: one picture of a prompt in tiles, several whole, and features counted as the encoder gives them."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.data import Data
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.common import features_of
from mmgrpo.types import Media, Sample


@pytest.fixture
def encode(make_picture):
    """Encode a prompt of pictures of these sizes through the run's own builder."""

    def build(policy, *sizes):
        adapters = Adapters(built_in(Data(), processor=policy.processor))
        builder = PromptBuilder(policy.processor, family=policy.family_info, adapters=adapters)
        media = tuple(Media(kind="image", source=make_picture(*size, seed=i)) for i, size in enumerate(sizes))
        blocks = [*({"type": "image"} for _ in sizes), {"type": "text", "text": "Which?"}]
        return builder.build_prompt(Sample(id="a", messages=({"role": "user", "content": blocks},), media=media))

    return build


def test_one_picture_is_cut_into_tiles_and_several_of_a_prompt_are_seen_whole(tiny_policy, encode):
    """As the checkpoints were trained, and as the processor's own chat template call does it."""
    policy = tiny_policy("llava_onevision")
    alone, together = encode(policy, (84, 140)), encode(policy, (84, 140), (56, 56))
    assert alone.model_inputs["pixel_values"].shape[:2] == (1, 3 * 4 + 1)
    assert together.model_inputs["pixel_values"].shape[:2] == (2, 1)
    assert together.model_inputs["batch_num_images"].tolist() == [2]


@pytest.mark.parametrize(
    "sizes", [[(56, 56)], [(84, 140)], [(30, 97)], [(300, 28)], [(57, 113)], [(56, 84), (28, 28), (91, 33)]]
)
def test_counted_features_are_those_of_the_encoder_for_any_shape(sizes, tiny_policy, encode):
    policy = tiny_policy("llava_onevision", sizes={"image_size": 56, "tiles_per_side": 4})
    prompt = encode(policy, *sizes)
    inputs = {**prompt.model_inputs, "return_dict": True}
    with torch.no_grad():
        features = features_of(policy.model.model.get_image_features(**inputs))
    counted = policy.family.count_features(prompt, policy.model.config)
    assert counted == {"image": len(features), "video": 0}
    assert policy.family_info.count_media_tokens(prompt.token_ids) == counted
