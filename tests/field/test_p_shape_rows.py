"""Field cases of picture sizes and shapes, and every odd picture by the book."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.config.data import Columns, Data, ImageLimits, Template
from mmgrpo.config.model import Model
from mmgrpo.data.opening import check_media
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import rows_from_python
from mmgrpo.errors import MediaError
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.common import set_pixel_limits
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily
from mmgrpo.types import Media, Sample

DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")).absolute()
needs_files = pytest.mark.skipif(
    not (DATA / "odd_images").is_dir(), reason="MMGRPO_FIELD_DATA names no folder of real files"
)
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def noise(width: int, height: int) -> Image.Image:
    return Image.effect_noise((width, height), 60).convert("RGB")


def encoded(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def sample_of(source: Any) -> Sample:
    blocks = [{"type": "image"}, {"type": "text", "text": "How many?"}]
    media = (Media(kind="image", source=source, name="the picture"),)
    return Sample(id="0", messages=({"role": "user", "content": blocks},), media=media)


def build(family: str, data: Data | None = None, **limits: int) -> tuple[PromptBuilder, Any, LoadedFamily]:
    record = family_of(family)
    assert record.tiny is not None
    model, processor = record.tiny({}, 0)
    set_pixel_limits(processor, limits.get("min_pixels"), limits.get("max_pixels"))
    facts = LoadedFamily(spec=record, config=model.config)
    return (
        PromptBuilder(processor, family=facts, adapters=Adapters(built_in(data, processor=processor))),
        processor,
        facts,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", [(40, 2000), (2000, 40)])
def test_p04_a_thin_picture_keeps_a_side_of_at_least_one_patch(family: str, side: tuple[int, int]):
    builder, _, facts = build(family, max_pixels=4 * 28 * 28)
    prompt = builder.build_prompt(sample_of(noise(*side)))
    _, high, wide = prompt.model_inputs["image_grid_thw"][0].tolist()
    assert min(high, wide) >= 2
    assert facts.count_media_tokens(prompt.token_ids)["image"] == high * wide // 4


@pytest.mark.parametrize("by", ["bytes", "pillow", "array"])
def test_p05_an_extreme_shape_is_found_before_the_run(by: str):
    bad = noise(2276, 10)
    source = {"bytes": encoded(bad), "pillow": bad, "array": np.asarray(bad)}[by]
    good = [{"image": {"bytes": encoded(noise(30, 30))}, "problem": "?", "solution": str(i)} for i in range(5)]
    rows = [*good[:3], {"image": source if by != "bytes" else {"bytes": source}, "problem": "?", "solution": "x"}]
    samples = Samples(rows_from_python([*rows, *good[3:]], base=Path()), columns=Columns(), template=Template())
    verify = Adapters(built_in(Data())).verify
    with pytest.raises(MediaError, match=r"1 of 6 rows[\s\S]*too narrow[\s\S]*2276 x 10"):
        check_media(samples, verify)
    with pytest.warns(UserWarning, match="left out"):
        assert set(check_media(samples, verify, on_bad_media="skip").left_out) == {3}
    padded = Data(image=ImageLimits(on_bad_shape="pad"), background=(0, 0, 255))
    check_media(samples, Adapters(built_in(padded)).verify)
    builder, _, _ = build("qwen2_5_vl", padded)
    image = builder.build_prompt(samples[3]).media[0].data
    assert image.size == (2276, 12)
    assert image.getpixel((0, 0)) == (0, 0, 255)
    assert np.array_equal(np.asarray(image)[1:11], np.asarray(bad))


def test_a_side_below_the_smallest_is_refused_or_padded():
    limits = ImageLimits(min_side=28)
    with pytest.raises(MediaError, match=r"too small[\s\S]*at least 28 pixels[\s\S]*20 x 40"):
        Adapters(built_in(Data(image=limits))).verify(
            Media(kind="image", source=encoded(noise(20, 40)), name="the picture")
        )
    data = Data(image=ImageLimits(min_side=28, on_bad_shape="pad"))
    padded = Adapters(built_in(data)).decode(Media(kind="image", source=encoded(noise(20, 10)), name="x"))
    assert padded.data.size == (28, 28)


@pytest.mark.parametrize("family", FAMILIES)
def test_p10_the_pixel_limit_holds_and_tokens_follow_from_it(family: str):
    builder, processor, facts = build(family, max_pixels=200_704)
    prompt = builder.build_prompt(sample_of(noise(1548, 884)))
    patch = processor.image_processor.patch_size
    _, high, wide = prompt.model_inputs["image_grid_thw"][0].tolist()
    assert high * patch * wide * patch <= 200_704
    assert facts.count_media_tokens(prompt.token_ids)["image"] == (high // 2) * (wide // 2)
    small = build(family, min_pixels=100_000, max_pixels=200_704)[0].build_prompt(sample_of(noise(40, 40)))
    _, high, wide = small.model_inputs["image_grid_thw"][0].tolist()
    assert 100_000 <= high * patch * wide * patch <= 200_704


@pytest.mark.parametrize("size", [(1548, 884), (40, 2000), (30, 30), (640, 480)])
def test_p10_fast_and_slow_processors_agree(size: tuple[int, int]):
    from transformers import Qwen2VLImageProcessor, Qwen2VLImageProcessorPil

    image = noise(*size)
    limits = {"shortest_edge": 3136, "longest_edge": 200_704}
    fast, slow = (kind(size=limits) for kind in (Qwen2VLImageProcessor, Qwen2VLImageProcessorPil))
    one, other = (kind(images=[image], return_tensors="pt") for kind in (fast, slow))
    assert torch.equal(one["image_grid_thw"], other["image_grid_thw"])
    assert (one["pixel_values"] - other["pixel_values"]).abs().mean() < 0.02


def test_p10_limits_are_saved_with_the_processor(tmp_path: Path):
    from transformers import AutoProcessor

    from mmgrpo.policy.model.policy import load_policy

    policy = load_policy(Model(name="tiny:qwen2_5_vl", device="cpu", max_pixels=50_176, min_pixels=3136))
    policy.processor.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = AutoProcessor.from_pretrained(tmp_path)
    image = noise(1548, 884)
    grids = [
        p.image_processor(images=[image], return_tensors="pt")["image_grid_thw"] for p in (policy.processor, again)
    ]
    assert torch.equal(*grids)
    assert int(grids[1].prod()) * 14 * 14 <= 50_176


REFUSED = {
    "broken.png": "not an image that can be read",
    "broken_data_stream.png": "An image is damaged",
    "truncated_end_chunk.png": "An image is damaged",
    "truncated_jpeg.jpg": "An image is damaged",
}
"""Odd pictures that cannot be read, and the sentence that says so."""
FRAMES = {"iss634.webp": 42, "multipage.tiff": 3, "apng_delay.png": 5, "apng_mode_16bit.png": 3, "dispose_bgnd.gif": 5}
"""Odd pictures of several frames: the first is used, with a warning."""


def odd_rows() -> list[dict[str, Any]]:
    if not (DATA / "manifest.jsonl").is_file():
        return []
    rows = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "odd_images"]


@needs_files
def test_the_list_of_odd_pictures_is_whole():
    listed = {Path(row["file"]).name for row in odd_rows()}
    assert listed == {path.name for path in (DATA / "odd_images").iterdir()}
    assert set(REFUSED) | set(FRAMES) <= listed


@needs_files
@pytest.mark.parametrize("row", odd_rows(), ids=lambda row: Path(row["file"]).name)
def test_odd_pictures_load_at_their_size_or_are_refused_with_the_right_sentence(row: dict[str, Any]):
    path = DATA / row["file"]
    adapters = Adapters(built_in(Data()))
    media = Media(kind="image", source=path, name=path.name)
    if path.name in REFUSED:
        for read in (adapters.decode, adapters.verify):
            with pytest.raises(MediaError, match=REFUSED[path.name]) as caught:
                read(media)
            assert path.name in str(caught.value)
        return
    adapters.verify(media)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        image = adapters.decode(media).data
    assert image.mode == "RGB"
    assert any(f"{FRAMES.get(path.name)} frames" in str(w.message) for w in told) == (path.name in FRAMES)
    facts = dict(part.split("=", 1) for part in (row["media"] or "").replace(", ", ",").split() if "=" in part)
    if "size" in facts:
        stored = tuple(int(side) for side in facts["size"].strip("()").split(","))
        assert image.size in (stored, stored[::-1])
        if facts["exif_orient"] in ("5", "6", "7", "8"):
            assert image.size == stored[::-1]
