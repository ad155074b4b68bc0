"""A film with its own sound: woven into its frames as the checkpoint was taught, at the positions of transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.config.data import Data, VideoLimits
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.frames import set_video_limits
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.media.video_files import audio_in_video_slots, with_audio_tracks
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily
from mmgrpo.policy.model.plain import plain_logprobs
from mmgrpo.policy.model.policy import Policy
from mmgrpo.types import Media, Sample

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in transformers
FILM, SOUND = "a film", "a sound of its own"


def processor_weaves() -> bool:
    from transformers import Qwen2_5OmniProcessor

    return hasattr(Qwen2_5OmniProcessor, "load_audio_from_video")


weaves = pytest.mark.skipif(not processor_weaves(), reason="this transformers cannot be asked to weave")


@pytest.fixture
def policy(tiny_policy: Any, request: Any) -> Policy:
    return tiny_policy(getattr(request, "param", "qwen2_5_omni"), sizes={"chunk_seconds": 8})


@pytest.fixture
def builder(policy: Policy) -> PromptBuilder:
    data = Data(video=VideoLimits(fps=2.0, min_pixels=784, max_pixels=784))
    set_video_limits(policy.processor, data.video)
    adapters = Adapters(built_in(data, processor=policy.processor))
    return PromptBuilder(policy.processor, family=policy.family_info, adapters=adapters, audio_tracks=True)


@pytest.fixture
def film(make_clip: Any) -> Any:
    def make(seconds: float, *, heard: float | None = None) -> Media:
        wave = None if heard is None else np.sin(np.arange(int(16000 * heard)) / 5).astype(np.float32)
        return Media(kind="video", source=make_clip(count=int(seconds * 4), fps=4, sound=wave), name=FILM)

    return make


def ask(*media: Media) -> Sample:
    blocks = [{"type": "text", "text": "Look:"}, *({"type": m.kind} for m in media), {"type": "text", "text": "?"}]
    return Sample(id="7", messages=({"role": "user", "content": blocks},), media=media)


def runs(policy: Policy, ids: torch.Tensor) -> list[tuple[str, int]]:
    """Placeholders of a prompt in their order, as kind and length of each run."""
    kinds = {
        token: kind for kind, tokens in policy.family.media_tokens(policy.model.config).items() for token in tokens
    }
    found: list[tuple[str, int]] = []
    for token in ids.tolist():
        kind = kinds.get(token, "")
        found = [*found[:-1], (kind, found[-1][1] + 1)] if found and found[-1][0] == kind else [*found, (kind, 1)]
    return [run for run in found if run[0]]


SHAPES = {
    "one film": [("film", 5.0, 5.0)],
    "a sound that ends early": [("film", 5.0, 2.5)],
    "a sound that lasts longer": [("film", 2.0, 5.0)],
    "two films": [("film", 3.0, 3.0), ("film", 5.0, 5.0)],
    "a film between sounds": [("sound", 1.0, 0.0), ("film", 5.0, 5.0), ("sound", 0.5, 0.0)],
}


def media_of(shape: str, film: Any) -> list[Media]:
    wave = np.sin(np.arange(32000) / 9).astype(np.float32)
    return [
        film(seconds, heard=heard)
        if kind == "film"
        else Media(kind="audio", source=wave[: int(seconds * 16000)], rate=16000.0, name=SOUND)
        for kind, seconds, heard in SHAPES[shape]
    ]


@weaves
def test_two_seconds_of_frames_and_two_seconds_of_sound_stand_by_turns(policy: Policy, builder: Any, film: Any):
    prompt = builder.build_prompt(ask(film(5.0, heard=5.0)))
    frames = int(prompt.model_inputs["video_grid_thw"][0, 1:].prod()) // 4
    steps = int(prompt.model_inputs["video_grid_thw"][0, 0])
    assert steps == 5, "one step of two frames a second"
    *whole, (last, rest) = runs(policy, prompt.token_ids)
    assert whole == [("video", 2 * frames), ("audio", 50), ("video", 2 * frames), ("audio", 50), ("video", frames)]
    assert (last, rest) == ("audio", pytest.approx(25, abs=2)), "an encoder pads the sound a little"
    assert [m.kind for m in prompt.media] == ["video", "audio"]


@weaves
@pytest.mark.parametrize("policy", ["qwen2_5_omni", "qwen3_omni_moe"], indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_positions_and_logprobs_are_those_of_transformers(
    shape: str, policy: Policy, builder: Any, film: Any, make_batch: Any
):
    prompt = builder.build_prompt(ask(*media_of(shape, film)))
    batch = make_batch([prompt], [[5, 3]])
    packed = policy.logprobs(batch, temperature=1.0).logprobs
    base, completions = policy.model, batch.segments[0].completions
    theirs = []
    for completion in completions:
        ids = torch.cat([prompt.token_ids, completion.token_ids])[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **prompt.model_inputs}
        base.rope_deltas = None
        logits = base(**inputs, use_audio_in_video=True, use_cache=False).logits[0].float()
        count = len(completion.token_ids)
        logprobs = torch.log_softmax(logits[-count - 1 : -1], dim=-1)
        theirs.append(logprobs.gather(-1, completion.token_ids[:, None]).squeeze(-1))
    assert (packed - torch.cat(theirs)).abs().max() < 1e-5
    plain = [plain_logprobs(base, policy.family, prompt, c, temperature=1.0) for c in completions]
    assert (packed - torch.cat(plain)).abs().max() < 1e-5


@weaves
def test_where_the_sound_stands_matters(policy: Policy, builder: Any, film: Any, make_batch: Any):
    sample = ask(film(5.0, heard=5.0))
    behind = builder.build_prompt(with_audio_tracks(sample))
    interleaved = builder.build_prompt(sample)
    assert [kind for kind, _ in runs(policy, behind.token_ids)] == ["video", "audio"]
    assert sorted(interleaved.token_ids.tolist()) == sorted(behind.token_ids.tolist())
    found = [policy.logprobs(make_batch([p], [[5]]), temperature=1.0).logprobs for p in (interleaved, behind)]
    assert (found[0] - found[1]).abs().max() > 1e-4


def test_beside_a_silent_film_sounds_stand_behind_their_films(policy: Policy, builder: Any, film: Any):
    prompt = builder.build_prompt(ask(film(2.0, heard=2.0), film(2.0)))
    assert [kind for kind, _ in runs(policy, prompt.token_ids)] == ["video", "audio", "video"]


@weaves
def test_a_prompt_whose_media_were_swapped_keeps_its_layout(builder: Any, film: Any):
    prompt = builder.build_prompt(ask(film(3.0, heard=3.0)))
    assert audio_in_video_slots(prompt.sample) == [0]
    swapped = [Media(kind=m.kind, source=m.data[::-1].copy(), rate=m.rate, name=m.name) for m in prompt.media]
    other = builder.build_prompt(replace(prompt.sample, media=tuple(swapped)))
    assert torch.equal(other.token_ids, prompt.token_ids)


def test_other_families_hear_the_sound_behind_the_clip():
    assert not LoadedFamily(spec=family_of("qwen2_audio"), config=None).audio_in_video
