"""Field cases of processors, templates and prompts that need no audio or video."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmgrpo.errors import ProcessorError
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily
from mmgrpo.types import Media, Sample

DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")).absolute()
CLEVR = DATA / "clevr/train/CLEVR_train_000000.png"
needs_files = pytest.mark.skipif(not CLEVR.is_file(), reason="MMGRPO_FIELD_DATA names no folder of real files")


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, LoadedFamily]:
    family = family_of("qwen2_5_vl")
    assert family.tiny is not None
    model, processor = family.tiny({}, 0)
    return processor, LoadedFamily(spec=family, config=model.config)


def counting(source: Any) -> Sample:
    blocks = [{"type": "image"}, {"type": "text", "text": "How many items are there in the image?"}]
    return Sample(
        id="row-0",
        messages=({"role": "user", "content": blocks},),
        media=(Media(kind="image", source=source, name=str(source)),),
    )


@needs_files
def test_p01_a_prompt_is_never_cut_inside_a_picture(tiny):
    processor, facts = tiny
    whole = PromptBuilder(processor, family=facts).build_prompt(counting(CLEVR))
    pictured = facts.count_media_tokens(whole.token_ids)["image"]
    assert pictured > 150
    with pytest.raises(ProcessorError) as caught:
        PromptBuilder(processor, family=facts, max_prompt_tokens=64).build_prompt(counting(CLEVR))
    assert f"prompt needs {len(whole.token_ids)} tokens, limit is 64, of which {pictured} are for the image" in str(
        caught.value
    )
    assert "row-0" in str(caught.value)


@pytest.mark.parametrize("side", [(480, 320), (1548, 884)])
def test_p02_the_same_sample_gives_the_same_inputs_each_time(tiny, side: tuple[int, int]):
    processor, facts = tiny
    builder = PromptBuilder(processor, family=facts)
    sample = counting(Image.effect_noise(side, 50).convert("RGB"))
    first, second = builder.build_prompt(sample), builder.build_prompt(sample, draw_index=9)
    assert torch.equal(first.token_ids, second.token_ids)
    assert set(first.model_inputs) == set(second.model_inputs)
    for key, value in first.model_inputs.items():
        assert torch.equal(value, second.model_inputs[key])
    grid = first.model_inputs["image_grid_thw"]
    assert facts.count_media_tokens(first.token_ids)["image"] == int(grid.prod()) // 4


def test_p14_a_limit_that_is_not_reached_changes_nothing(tiny):
    processor, facts = tiny
    sample = counting(Image.new("RGB", (112, 112)))
    free = PromptBuilder(processor, family=facts).build_prompt(sample)
    limited = PromptBuilder(processor, family=facts, max_prompt_tokens=4096).build_prompt(sample)
    assert torch.equal(free.token_ids, limited.token_ids)
    assert free.text == limited.text
    ends = {"<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>"}
    assert ends <= set(processor.tokenizer.convert_ids_to_tokens(limited.token_ids.tolist()))
