"""Field cases of batches: tiles and pictures stay with their prompts, whatever stands beside them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.record import Family, Key, join_inputs
from mmgrpo.policy.families.registry import Facts, family_of
from mmgrpo.types import Media, Sample

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250), (200, 200, 30), (30, 200, 200)]


def record() -> Family:
    return family_of("qwen2_5_vl")


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    build = record().tiny
    assert build is not None
    return build({}, 0)


def sample_of(*pictures: Image.Image, text: str = "How many?", id: str = "0") -> Sample:
    blocks = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
    media = tuple(Media(kind="image", source=picture, name=f"picture {i}") for i, picture in enumerate(pictures))
    return Sample(id=id, messages=({"role": "user", "content": blocks},), media=media)


def flat(width: int, height: int, colour: tuple[int, int, int], mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", (width, height), colour).convert(mode)


def test_p08_tiles_stay_with_the_pictures_of_their_prompt(tiny):
    _, processor = tiny

    class Tiling:
        """Cuts wide pictures into five tiles of one mean colour, and small ones into one."""

        tokenizer, chat_template = processor.tokenizer, processor.chat_template
        apply_chat_template = staticmethod(processor.apply_chat_template)

        def __call__(self, *, text: list[str], images: Any = (), **_: Any) -> dict[str, Any]:
            counts = [5 if image.width > 400 else 1 for image in images]
            tiles = [
                torch.tensor(image.getpixel((0, 0))) for image, n in zip(images, counts, strict=True) for _ in range(n)
            ]
            ids = processor.tokenizer(text, return_tensors="pt")["input_ids"]
            return {"input_ids": ids, "tiles": torch.stack(tiles).float(), "tile_counts": torch.tensor(counts)}

    model, _ = tiny
    builder = PromptBuilder(Tiling(), facts=Facts(family=record(), config=model.config))
    rows = [
        [flat(100, 100, COLOURS[0])],
        [flat(800, 200, COLOURS[1]), flat(100, 100, COLOURS[2])],
        [flat(800, 200, COLOURS[3])],
    ]
    prompts = [builder.encode(sample_of(*pictures, id=str(i))) for i, pictures in enumerate(rows)]
    assert [p.model_inputs["tile_counts"].tolist() for p in prompts] == [[1], [5, 1], [5]]
    tiled = replace(record(), keys={name: Key(feeds="encoder", join="concat") for name in ("tiles", "tile_counts")})
    for chosen in ([0, 1, 2], [2, 0], [1], [1, 2]):
        batch = [prompts[i] for i in chosen]
        joined = join_inputs(tiled, batch, torch.device("cpu"))
        split = joined["tiles"].split(joined["tile_counts"].tolist())
        pictures = [picture for i in chosen for picture in rows[i]]
        assert len(split) == len(pictures)
        for tiles, picture in zip(split, pictures, strict=True):
            assert (tiles == torch.tensor(picture.getpixel((0, 0)))).all()


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_p09_prompts_with_and_without_pictures_go_together_in_any_order(order: tuple[int, ...], tiny):
    model, processor = tiny
    builder = PromptBuilder(processor, facts=Facts(family=record(), config=model.config))
    samples = [sample_of(flat(56, 84, COLOURS[0])), sample_of(text="One?"), sample_of(text="And two more?")]
    prompts = [builder.encode(samples[i]) for i in order]
    with torch.no_grad():
        together = record().encode(model, prompts)
        alone = [record().encode(model, [prompt])[0] for prompt in prompts]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one.embeddings, other.embeddings, atol=1e-6)
        assert torch.equal(one.positions, other.positions)


MODES = ["RGB", "RGBA", "P", "CMYK"]
SIDES = st.integers(20, 120)
PICTURES = st.lists(st.tuples(SIDES, SIDES, st.sampled_from(COLOURS), st.sampled_from(MODES)), max_size=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(PICTURES, min_size=1, max_size=4))
def test_picture_k_stays_with_prompt_j_whatever_modes_and_sizes_stand_beside_it(rows: list[Any], tiny):
    model, processor = tiny
    builder = PromptBuilder(processor, facts=Facts(family=record(), config=model.config))
    prompts = [
        builder.encode(sample_of(*(flat(*picture) for picture in row), id=str(j))) for j, row in enumerate(rows)
    ]
    if not any(rows):
        return
    joined = join_inputs(record(), prompts, torch.device("cpu"))
    patches = joined["pixel_values"].split(joined["image_grid_thw"].prod(-1).tolist())
    wanted = [picture for row in rows for picture in row]
    mean, spread = (np.array(getattr(processor.image_processor, key)) for key in ("image_mean", "image_std"))
    assert len(patches) == len(wanted)
    for values, (_, _, colour, mode) in zip(patches, wanted, strict=True):
        channels = values.reshape(len(values), 3, -1).mean(dim=(0, 2)).numpy()
        seen = (channels * spread + mean) * 255
        assert np.abs(seen - colour).max() < (40 if mode == "P" else 4)
    for prompt, row in zip(prompts, rows, strict=True):
        assert [m.data.size for m in prompt.media] == [(width, height) for width, height, _, _ in row]
