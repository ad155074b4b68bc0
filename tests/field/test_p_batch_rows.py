"""Field cases of prompts that are joined: pictures stay with their prompts, whatever stands beside them."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmgrpo.config.data import Columns, Template
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import rows_from_python
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily, join_inputs
from mmgrpo.types import Decoded, Prompt, Sample
from tests.conftest import loader_of

CPU = torch.device("cpu")
MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "YCbCr"]


@pytest.fixture(scope="module")
def tiny() -> SimpleNamespace:
    family = family_of("qwen2_5_vl")
    assert family.tiny is not None
    model, processor = family.tiny({}, 0)
    facts = LoadedFamily(spec=family, config=model.config)
    return SimpleNamespace(
        model=model, processor=processor, family=family, facts=facts, builder=PromptBuilder(processor, family=facts)
    )


def flat(grey: int, mode: str, size: tuple[int, int]) -> Image.Image:
    """Make a picture of one grey in any mode."""
    if mode == "1":
        return Image.new("1", size, 1 if grey > 127 else 0)
    if mode == "I;16":
        return Image.fromarray(np.full(size[::-1], grey * 257, np.uint16))
    if mode == "F":
        return Image.fromarray(np.full(size[::-1], grey / 255, np.float32))
    picture = Image.new("RGB", size, (grey, grey, grey))
    if mode == "P":
        return picture.quantize(2)
    return picture.convert(mode)


def greys(patches: torch.Tensor, processor: Any) -> list[float]:
    """Undo the processor's scaling: the grey of each patch, 0 to 255."""
    mean, std = processor.image_processor.image_mean, processor.image_processor.image_std
    colours = patches.reshape(len(patches), 3, -1).mean(dim=2)
    back = (colours * torch.tensor(std) + torch.tensor(mean)) * 255
    return back.mean(dim=1).tolist()


def samples_of(pictures: list[list[Image.Image]]) -> Samples:
    rows = [{"image": group, "problem": f"question {i}", "solution": i} for i, group in enumerate(pictures)]
    return Samples(rows_from_python(rows), columns=Columns(), template=Template())


PICTURE = st.tuples(st.integers(0, 255), st.sampled_from(MODES), st.integers(28, 90), st.integers(28, 90))


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.lists(PICTURE, max_size=3), min_size=1, max_size=5), threads=st.integers(0, 1))
def test_any_order_of_modes_and_sizes_keeps_each_picture_with_its_prompt(
    rows: list[list[tuple[int, str, int, int]]], threads: int, tiny: SimpleNamespace
):
    pictures = [[flat(grey, mode, (width, height)) for grey, mode, width, height in row] for row in rows]

    def encode(sample: Sample, draw_index: int) -> Prompt:
        return tiny.builder.build_prompt(sample, draw_index=draw_index)

    feed = loader_of(samples_of(pictures), encode, shuffle=False, threads=threads)
    prompts = feed.take(len(rows))
    feed.close()
    joined = join_inputs(tiny.family, prompts, CPU)
    found = greys(joined["pixel_values"], tiny.processor) if "pixel_values" in joined else []
    at = picture = 0
    for prompt, row in zip(prompts, rows, strict=True):
        assert prompt.sample.answer == rows.index(row) or rows.count(row) > 1
        grids = joined["image_grid_thw"][picture : picture + len(row)] if row else []
        for (grey, mode, _, _), grid in zip(row, grids, strict=True):
            expected = (255 if grey > 127 else 0) if mode == "1" else grey
            patches = int(grid.prod())
            assert max(abs(value - expected) for value in found[at : at + patches]) < 4, mode
            at += patches
        picture += len(row)
    assert at == len(found)


@settings(max_examples=15, deadline=None)
@given(others=st.lists(st.lists(PICTURE, max_size=2), max_size=3))
def test_a_rows_prompt_does_not_depend_on_its_neighbours(
    others: list[list[tuple[int, str, int, int]]], tiny: SimpleNamespace
):
    own = [flat(90, "RGB", (56, 84))]
    groups = [[flat(g, m, (w, h)) for g, m, w, h in row] for row in others]
    alone = tiny.builder.build_prompt(samples_of([own])[0])
    for place in range(len(groups) + 1):
        among = [*groups[:place], own, *groups[place:]]
        rows = [{"image": group, "problem": "question 0", "solution": 0} for group in among]
        samples = Samples(rows_from_python(rows), columns=Columns(), template=Template())
        prompt = [tiny.builder.build_prompt(sample) for sample in samples][place]
        assert torch.equal(prompt.token_ids, alone.token_ids)
        assert torch.equal(prompt.model_inputs["pixel_values"], alone.model_inputs["pixel_values"])


def test_p08_tiles_of_each_micro_batch_are_those_of_its_rows(tiny: SimpleNamespace):
    def tiled(number: int, size: tuple[int, int]) -> Prompt:
        """Stand in for a processor that cuts a large picture into five tiles."""
        count = 5 if max(size) > 500 else 1
        tiles = torch.full((count, 3, 4, 4), float(number))
        sample = Sample(id=str(number), messages=({"role": "user", "content": "?"},))
        return Prompt(
            sample=sample,
            text="",
            token_ids=torch.tensor([1]),
            model_inputs={"tiles": tiles, "tile_counts": torch.tensor([count])},
            media=(Decoded(kind="image", data=Image.new("RGB", size)),),
        )

    keys = {"tiles": "concat", "tile_counts": "concat"}
    family = dataclasses.replace(tiny.family, keys=keys)
    prompts = [tiled(0, (100, 100)), tiled(1, (800, 200)), tiled(2, (100, 100)), tiled(3, (800, 200))]
    for order in itertools.permutations(prompts):
        for start, stop in ((0, 2), (2, 4), (1, 4), (0, 4)):
            batch = list(order[start:stop])
            joined = join_inputs(family, batch, CPU)
            counts = joined["tile_counts"].tolist()
            assert counts == [5 if int(p.sample.id) % 2 else 1 for p in batch]
            for prompt, tiles in zip(batch, joined["tiles"].split(counts), strict=True):
                assert tiles.unique().tolist() == [float(prompt.sample.id)]


def test_p09_rows_with_and_without_a_picture_stand_in_any_order(tiny: SimpleNamespace):
    pictures = [[flat(200, "RGB", (56, 56))], [], []]
    prompts = [tiny.builder.build_prompt(sample) for sample in samples_of(pictures)]
    alone = [tiny.family.encode(tiny.model, [prompt])[0].embeddings for prompt in prompts]
    for order in itertools.permutations(range(3)):
        together = tiny.family.encode(tiny.model, [prompts[i] for i in order])
        for place, i in enumerate(order):
            assert torch.allclose(together[place].embeddings, alone[i], atol=1e-6)


@pytest.mark.parametrize("ending", [".PNG", ".png", ".jpg"])
@pytest.mark.parametrize("name", ["图 1", "🎲 dice", "a%20b", "with space", "ünï"])
def test_odd_file_names_and_wrong_endings_load_by_their_content(name: str, ending: str, tmp_path: Path, tiny: Any):
    buffer = io.BytesIO()
    Image.new("RGB", (56, 56), (9, 9, 9)).save(buffer, format="JPEG")
    (tmp_path / f"{name}{ending}").write_bytes(buffer.getvalue())
    row = {"image": f"{name}{ending}", "problem": "?", "solution": "0"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row), encoding="utf-8")
    rows = rows_from_python([row], base=tmp_path)
    sample = Samples(rows, columns=Columns(), template=Template())[0]
    assert tiny.builder.build_prompt(sample).media[0].data.getpixel((3, 3)) == (9, 9, 9)


@pytest.mark.parametrize("truth", ["0", "-3", "<answer> 0 </answer>"])
def test_zero_and_negative_counts_are_answers(truth: str):
    rows = rows_from_python([{"problem": "How many?", "solution": truth}])
    assert Samples(rows, columns=Columns(), template=Template())[0].answer == truth
