"""Prompts with pictures and clips in any order: true token counts, true seconds, the same tensors every time."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from mmgrpo.config.data import Data, VideoLimits
from mmgrpo.errors import MediaError, ProcessorError
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.frames import counts_all_frames, set_video_limits, video_metadata
from mmgrpo.media.prompts import PromptBuilder, processor_inputs
from mmgrpo.media.video_files import with_audio_tracks
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily
from mmgrpo.types import Decoded, Media, Sample

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]

TIMES_ARE_FLOATS = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 20)
"""Older versions of get_rope_index cut the time of a grid step to a whole number of positions: 0 for 0.4 seconds."""


@pytest.fixture
def build():
    def make(family: str, **limits: Any) -> tuple[PromptBuilder, Any, LoadedFamily]:
        record = family_of(family)
        assert record.tiny is not None
        model, processor = record.tiny({}, 0)
        facts = LoadedFamily(spec=record, config=model.config)
        data = Data(video=VideoLimits(**{"min_pixels": 784, "max_pixels": 12544, **limits}))
        set_video_limits(processor, data.video)
        builder = PromptBuilder(processor, family=facts, adapters=Adapters(built_in(data, processor=processor)))
        return builder, processor, facts

    return make


def ask(*media: Media, text: str = "What happens?") -> Sample:
    blocks = [*({"type": m.kind} for m in media), {"type": "text", "text": text}]
    return Sample(id="7", messages=({"role": "user", "content": blocks},), media=media)


def clip(source: Any, rate: float | None = None) -> Media:
    return Media(kind="video", source=source, rate=rate, name="a clip")


def picture(side: int = 56) -> Media:
    return Media(kind="image", source=Image.new("RGB", (side, side), "red"), name="a picture")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clip_has_one_token_per_feature(family: str, build: Any, make_clip: Any):
    builder, _, facts = build(family)
    prompt = builder.build_prompt(ask(clip(make_clip())))
    grid = prompt.model_inputs["video_grid_thw"]
    assert facts.count_media_tokens(prompt.token_ids)["video"] == int(grid.prod()) // 4
    assert int(grid[0, 0]) == 2, "two seconds at two frames a second, two frames at once"
    assert prompt.media[0].data.shape == (4, 48, 64, 3)
    assert prompt.media[0].rate == pytest.approx(2.0)


@pytest.mark.parametrize("fps", [2.0, 3.0, 5.0, 0.7])
def test_seconds_per_grid_step_reach_the_model_as_floats(fps: float, build: Any, make_clip: Any):
    builder, _, _ = build("qwen2_5_vl", fps=fps)
    prompt = builder.build_prompt(ask(clip(make_clip(count=35, fps=10))))
    seconds = prompt.model_inputs["second_per_grid_ts"]
    count = len(prompt.media[0].data)
    assert torch.is_tensor(seconds)
    assert seconds.is_floating_point()
    assert seconds.tolist() == pytest.approx([2 * 3.5 / count], rel=1e-4)


def test_positions_follow_the_seconds_of_the_clip(build: Any, make_clip: Any):
    record = family_of("qwen2_5_vl")
    assert record.tiny is not None
    model, _ = record.tiny({}, 0)
    for fps in (2.0, 5.0):
        builder, _, _ = build("qwen2_5_vl", fps=fps)
        prompt = builder.build_prompt(ask(clip(make_clip(count=40, fps=10))))
        inputs = prompt.model_inputs
        positions, _ = model.model.get_rope_index(
            prompt.token_ids[None],
            mm_token_type_ids=inputs["mm_token_type_ids"],
            video_grid_thw=inputs["video_grid_thw"],
            second_per_grid_ts=inputs["second_per_grid_ts"],
        )
        (encoded,) = record.encode(model, [prompt])
        film = inputs["mm_token_type_ids"][0] == 2
        times = encoded.positions[0, film].unique()
        per_second = model.config.vision_config.tokens_per_second
        steps = torch.arange(len(times)) * (2 / fps) * per_second
        assert (times - times[0]).tolist() == [int(step + 1e-4) for step in steps.tolist()]
        assert torch.equal(encoded.positions[1:, film], positions[1:, 0, film])
        if TIMES_ARE_FLOATS:
            assert torch.equal(encoded.positions[0, film], positions[0, 0, film])
        last = int(film.nonzero().max())
        assert int(encoded.positions[0, last + 1]) == int(encoded.positions[:, film].max()) + 1


def test_qwen3_writes_the_true_times_of_frames(build: Any, make_clip: Any):
    builder, processor, _ = build("qwen3_vl", fps=None)
    data = make_clip(count=6, times=[0.0, 0.2, 1.0, 3.0, 3.2, 7.4], form="matroska")
    prompt = builder.build_prompt(ask(clip(data)))
    told = processor.tokenizer.decode(prompt.token_ids)
    for seconds in ("<0.1 seconds>", "<2.0 seconds>", "<5.3 seconds>"):
        assert seconds in told


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", ["iv", "vi", "viv", "ivi"])
def test_pictures_and_clips_stand_in_the_order_of_their_placeholders(
    family: str, order: str, build: Any, make_clip: Any
):
    builder, _, facts = build(family)
    media = [clip(make_clip(count=10 + 10 * i)) if k == "v" else picture(56 + 56 * i) for i, k in enumerate(order)]
    prompt = builder.build_prompt(ask(*media))
    assert [m.kind for m in prompt.media] == [m.kind for m in media]
    kinds = {facts.config.image_token_id: "i", facts.config.video_token_id: "v"}
    found = [kinds[i] for i in prompt.token_ids.tolist() if i in kinds]
    runs = "".join(k for n, k in enumerate(found) if n == 0 or found[n - 1] != k)
    assert runs == order
    assert (
        facts.count_media_tokens(prompt.token_ids)["image"]
        == int(prompt.model_inputs["image_grid_thw"].prod(1).sum()) // 4
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_limits_hold_after_the_processor_and_are_saved_with_it(
    family: str, build: Any, tmp_path: Path, make_clip: Any
):
    from transformers import AutoProcessor

    data = make_clip(size=(240, 320), count=20)
    for limits in ({"max_pixels": 20_000}, {"max_total_pixels": 60_000}, {"min_pixels": 20_000, "max_pixels": 40_000}):
        builder, processor, _ = build(family, **limits)
        prompt = builder.build_prompt(ask(clip(data)))
        patch = processor.video_processor.patch_size
        steps, high, wide = prompt.model_inputs["video_grid_thw"][0].tolist()
        area = high * wide * patch * patch
        assert area <= limits.get("max_pixels", 12544)
        assert 2 * steps * area <= limits.get("max_total_pixels", 10**9)
        assert area >= min(limits.get("min_pixels", 0), 20_000 if family != "qwen3_vl" else 0)
        assert prompt.media[0].data.shape[1:3] == (high * patch, wide * patch), "rewards see what the model sees"
        processor.save_pretrained(tmp_path / "p")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = AutoProcessor.from_pretrained(tmp_path / "p")
        other = again(text=[prompt.text], return_tensors="pt", **processor_inputs(prompt.media, again))
        assert torch.equal(other["video_grid_thw"], prompt.model_inputs["video_grid_thw"])
        assert torch.equal(other["input_ids"][0], prompt.token_ids)


def test_which_limits_count_all_frames():
    found = {name: counts_all_frames(family_of(name).tiny({}, 0)[1].video_processor) for name in FAMILIES}
    assert found == {"qwen2_vl": False, "qwen2_5_vl": False, "qwen3_vl": True}


def test_a_family_without_clips_says_so(make_clip: Any):
    family = family_of("qwen3")
    assert family.tiny is not None
    model, tokenizer = family.tiny({}, 0)
    with pytest.raises(ProcessorError, match="qwen3 does not read videos"):
        PromptBuilder(tokenizer, family=LoadedFamily(spec=family, config=model.config)).build_prompt(
            ask(clip(make_clip()))
        )
    sound = Media(kind="audio", source=np.zeros(16000, np.float32), rate=16000, name="a sound")
    family = family_of("qwen2_5_vl")
    assert family.tiny is not None
    model, processor = family.tiny({}, 0)
    with pytest.raises(ProcessorError, match="qwen2_5_vl does not read audio clips"):
        PromptBuilder(processor, family=LoadedFamily(spec=family, config=model.config)).build_prompt(ask(sound))


def test_a_template_that_forgets_a_medium_is_found(build: Any):
    builder, processor, _ = build("qwen2_5_vl")
    processor.chat_template = "{% for m in messages %}<|vision_start|><|image_pad|><|vision_end|>{% endfor %}"
    with pytest.raises(ProcessorError, match=r"fewer image placeholders[\s\S]*a placeholder for every media item"):
        builder.build_prompt(ask(picture(), picture()))


def test_metadata_tells_length_rate_and_times():
    film = Decoded(kind="video", data=np.zeros((4, 6, 8, 3), np.uint8), rate=4 / 13.06, times=(0.0, 3.1, 6.5, 9.9))
    told = video_metadata(film)
    assert len(told["frames_indices"]) / told["total_num_frames"] * told["fps"] == pytest.approx(4 / 13.06, rel=1e-6)
    assert [i / told["fps"] for i in told["frames_indices"]] == pytest.approx(film.times)


def test_clips_of_two_rates_need_a_processor_that_takes_them():
    films = [Decoded(kind="video", data=np.zeros((4, 6, 8, 3), np.uint8), rate=rate) for rate in (1.0, 2.0)]

    class OneRate:
        videos_kwargs = {}

    with pytest.raises(ProcessorError, match="one frame rate"):
        processor_inputs(films, OneRate())
    assert processor_inputs(films[:1], OneRate())["videos_kwargs"]["fps"] == 1.0


def test_the_sound_follows_its_clip(make_clip: Any):
    loud = clip(make_clip(sound=np.sin(np.arange(16000) / 5).astype(np.float32)))
    quiet = clip(make_clip())
    assert with_audio_tracks(ask(quiet, picture())).media == ask(quiet, picture()).media
    heard = with_audio_tracks(ask(quiet, loud, picture()))
    assert [m.kind for m in heard.media] == ["video", "video", "audio", "image"]
    assert [b["type"] for b in heard.messages[0]["content"]] == ["video", "video", "audio", "image", "text"]
    assert heard.media[2].source is loud.source


def test_an_omni_family_reads_all_kinds_in_one_prompt(build: Any, make_clip: Any):
    builder, _, facts = build("qwen2_5_omni", fps=4.0)
    sound = Media(kind="audio", source=np.sin(np.arange(8000) / 9).astype(np.float32), rate=8000, name="a sound")
    prompt = builder.build_prompt(ask(sound, clip(make_clip(count=10, fps=10)), picture(), sound))
    assert [m.kind for m in prompt.media] == ["audio", "video", "image", "audio"]
    assert prompt.media[0].rate == 16000
    counts = facts.count_media_tokens(prompt.token_ids)
    assert counts["audio"] == 2 * 25, "a second has a hundred mel frames, and four of them make a token"
    assert counts["video"] == int(prompt.model_inputs["video_grid_thw"].prod()) // 4
    assert counts["image"] == 4
    assert prompt.model_inputs["video_second_per_grid"].tolist() == pytest.approx([0.5])
    assert prompt.media[1].data.shape[1:3] == (48, 64)
    assert int(prompt.model_inputs["video_grid_thw"].prod()) * 14 * 14 <= 2 * 12544, "the limit beats the class's own"


def test_sounds_longer_than_the_processors_window_are_refused(build: Any):
    builder, _, _ = build("qwen2_audio")
    long = Media(kind="audio", source=np.zeros(31 * 16000, np.float32), rate=16000, name="a long silence")
    with pytest.raises(MediaError, match=r"a long silence[\s\S]*at most 30 seconds"):
        builder.build_prompt(ask(long))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in transformers
def test_the_sound_of_a_clip_is_heard_on_request(make_clip: Any):
    record = family_of("qwen2_5_omni")
    assert record.tiny is not None
    model, processor = record.tiny({}, 0)
    facts = LoadedFamily(spec=record, config=model.config)
    data = Data(video=VideoLimits(min_pixels=784, max_pixels=784))
    set_video_limits(processor, data.video)
    adapters = Adapters(built_in(data, processor=processor))
    film = clip(make_clip(sound=np.sin(np.arange(32000) / 5).astype(np.float32)))
    builder = PromptBuilder(processor, family=facts, adapters=adapters, audio_tracks=True)
    heard = builder.build_prompt(ask(film))
    assert [m.kind for m in heard.media] == ["video", "audio"]
    assert torch.equal(builder.build_prompt(heard.sample).token_ids, heard.token_ids), "no sound is added twice"
    assert [m.kind for m in heard.sample.media] == ["video", "audio"]
    assert facts.count_media_tokens(heard.token_ids)["audio"] >= 50
    assert [
        m.kind for m in PromptBuilder(processor, family=facts, adapters=adapters).build_prompt(ask(film)).media
    ] == ["video"]
