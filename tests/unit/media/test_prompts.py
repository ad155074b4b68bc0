"""Prompts hold what the processor made, whole and unchanged, or are refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.config.data import Data, ImageLimits
from mmgrpo.errors import MediaError, ProcessorError, PromptTooLong
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.prompts import PromptBuilder, prefill_of
from mmgrpo.policy.families.registry import family_of
from mmgrpo.policy.families.spec import LoadedFamily
from mmgrpo.types import Media, Sample


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, LoadedFamily]:
    family = family_of("qwen2_5_vl")
    assert family.tiny is not None
    model, processor = family.tiny({}, 0)
    return processor, LoadedFamily(spec=family, config=model.config)


@pytest.fixture
def builder(tiny):
    processor, facts = tiny

    def build(**options: Any) -> PromptBuilder:
        return PromptBuilder(processor, family=facts, **options)

    return build


def picture(width: int = 56, height: int = 56, color: str = "red") -> Media:
    return Media(kind="image", source=Image.new("RGB", (width, height), color), name=f"a {color} picture")


def ask(text: str = "How many?", *media: Media, id: str = "7") -> Sample:
    blocks = [*({"type": m.kind} for m in media), {"type": "text", "text": text}]
    return Sample(id=id, messages=({"role": "user", "content": blocks if media else text},), media=media)


def test_a_prompt_holds_template_ids_inputs_and_media(builder, tiny):
    sample = ask("How many?", picture())
    prompt = builder().build_prompt(sample, draw_index=5)
    assert prompt.text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>How many?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.sample is sample
    assert prompt.draw_index == 5
    assert prompt.token_ids.ndim == 1
    assert prompt.token_ids.dtype == torch.int64
    assert tiny[1].count_media_tokens(prompt.token_ids) == {"image": 4, "video": 0}
    assert prompt.media[0].data.size == (56, 56)
    assert prompt.media[0].name == "a red picture"


def test_everything_the_processor_returns_is_kept_unchanged(builder, tiny):
    processor, _ = tiny
    prompt = builder().build_prompt(ask("How many?", picture()))
    direct = processor(text=[prompt.text], images=[prompt.media[0].data], return_tensors="pt")
    assert set(prompt.model_inputs) == set(direct) - {"input_ids", "attention_mask"}
    assert {"pixel_values", "image_grid_thw"} <= set(prompt.model_inputs)
    assert torch.equal(prompt.token_ids, direct["input_ids"][0])
    for key, value in prompt.model_inputs.items():
        assert torch.equal(value, direct[key])


def test_unknown_keys_pass_and_attention_masks_do_not(tiny):
    processor, facts = tiny

    class Extended:
        tokenizer = processor.tokenizer
        chat_template = processor.chat_template
        apply_chat_template = staticmethod(processor.apply_chat_template)

        def __call__(self, **kwargs: Any) -> dict[str, Any]:
            return {**processor(**kwargs), "tile_sizes": "kept", "spatial": [1, 2]}

    prompt = PromptBuilder(Extended(), family=facts).build_prompt(ask("?", picture()))
    assert prompt.model_inputs["tile_sizes"] == "kept"
    assert prompt.model_inputs["spatial"] == [1, 2]
    assert "attention_mask" not in prompt.model_inputs


def test_several_pictures_keep_their_order(builder):
    colors = ["red", "green", "blue"]
    prompt = builder().build_prompt(ask("Which?", *(picture(color=c) for c in colors)))
    assert [m.data.getpixel((0, 0)) for m in prompt.media] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    assert prompt.model_inputs["image_grid_thw"].shape[0] == 3
    patches = prompt.model_inputs["pixel_values"].reshape(3, 16, 3, -1).mean(dim=(1, 3))
    assert patches.argmax(dim=1).tolist() == [0, 1, 2]


def test_text_alone_needs_no_picture(builder):
    prompt = builder().build_prompt(ask("How many?"))
    assert prompt.media == ()
    assert "pixel_values" not in prompt.model_inputs


def test_text_families_bring_a_tokenizer(tiny):
    tokenizer = tiny[0].tokenizer
    tokenizer.chat_template = tiny[0].chat_template
    facts = _TextFacts()
    prompt = PromptBuilder(tokenizer, family=facts).build_prompt(ask("How many?"))
    assert prompt.text.startswith("<|im_start|>user\nHow many?")
    assert tokenizer.decode(prompt.token_ids) == prompt.text
    with pytest.raises(ProcessorError, match="does not read images"):
        PromptBuilder(tokenizer, family=facts).build_prompt(ask("?", picture()))


class _TextFacts:
    name = "a text model"
    kinds: frozenset[str] = frozenset()
    separable_kinds: frozenset[str] = frozenset()
    counts_images = False

    def count_media_tokens(self, token_ids: torch.Tensor) -> dict[str, int]:
        return {}


def test_a_template_that_writes_the_first_token_gets_no_second(tiny):
    tokenizer = tiny[0].tokenizer
    written = tokenizer.bos_token
    tokenizer.bos_token = "<|endoftext|>"
    try:
        template = "<|endoftext|>{% for m in messages %}{{ m.content }}{% endfor %}"
        tokenizer.chat_template = template
        prompt = PromptBuilder(tokenizer, family=_TextFacts()).build_prompt(ask("How many?"))
        assert (prompt.token_ids == tokenizer.bos_token_id).sum() == 1
    finally:
        tokenizer.bos_token = written
        tokenizer.chat_template = tiny[0].chat_template


def test_too_long_prompts_are_refused_with_their_sizes_and_never_cut(builder):
    sample = ask("How many?", picture(560, 560), id="row-3")
    whole = builder().build_prompt(sample)
    needs = len(whole.token_ids)
    with pytest.raises(PromptTooLong) as caught:
        builder(max_prompt_tokens=64).build_prompt(sample)
    message = str(caught.value)
    assert f"prompt needs {needs} tokens, limit is 64, of which 400 are for the image" in message
    assert "row-3" in message
    exact = builder(max_prompt_tokens=needs).build_prompt(sample)
    assert torch.equal(exact.token_ids, whole.token_ids)


def test_several_pictures_are_counted_together_in_the_refusal(builder):
    with pytest.raises(ProcessorError, match="of which 8 are for the 2 images"):
        builder(max_prompt_tokens=10).build_prompt(ask("?", picture(), picture()))


def test_a_missing_template_names_the_place_and_the_key(tiny):
    processor, facts = tiny
    kept, processor.chat_template = processor.chat_template, None
    kept_inner, processor.tokenizer.chat_template = processor.tokenizer.chat_template, None
    processor.tokenizer.name_or_path = "/models/base"
    try:
        with pytest.raises(ProcessorError, match=r"model\.chat_template") as caught:
            PromptBuilder(processor, family=facts).build_prompt(ask())
        assert "/models/base" in str(caught.value)
        processor.tokenizer.chat_template = kept  # a template that only the tokenizer has is used
        assert PromptBuilder(processor, family=facts).build_prompt(ask()).text.startswith("<|im_start|>user")
    finally:
        processor.chat_template, processor.tokenizer.chat_template = kept, kept_inner


def test_a_template_that_raises_is_a_processor_error(tiny):
    processor, facts = tiny
    kept, processor.chat_template = processor.chat_template, "{{ raise_exception('roles must alternate') }}"
    try:
        with pytest.raises(ProcessorError, match="roles must alternate"):
            PromptBuilder(processor, family=facts).build_prompt(ask(id="9"))
    finally:
        processor.chat_template = kept


def test_a_template_that_drops_pictures_is_caught(tiny):
    processor, facts = tiny
    kept = processor.chat_template
    processor.chat_template = "{% for m in messages %}{{ m.content[-1].text }}{% endfor %}"
    try:
        with pytest.raises(ProcessorError, match="sample 7"):
            PromptBuilder(processor, family=facts).build_prompt(ask("?", picture()))
    finally:
        processor.chat_template = kept


def test_a_processor_that_drops_pictures_silently_is_caught(tiny):
    processor, facts = tiny

    class Blind:
        tokenizer = processor.tokenizer
        chat_template = processor.chat_template
        apply_chat_template = staticmethod(processor.apply_chat_template)

        def __call__(self, text: list[str], images: list[Any], **kwargs: Any) -> Any:
            return processor(text=[text[0].replace("<|image_pad|>", "")], **kwargs)

    with pytest.raises(ProcessorError, match="holds no token for its image"):
        PromptBuilder(Blind(), family=facts).build_prompt(ask("?", picture()))


def test_placeholders_written_in_the_rows_text_are_refused(builder):
    for media in ((), (picture(),)):
        with pytest.raises(ProcessorError, match="more image placeholders"):
            builder().build_prompt(ask("What is <|image_pad|>?", *media))


def test_pictures_that_the_processor_refuses_name_sample_and_size(builder):
    adapters = Adapters(built_in(Data(image=ImageLimits(max_aspect_ratio=300))))
    with pytest.raises(ProcessorError, match="2276 x 10") as caught:
        builder(adapters=adapters).build_prompt(ask("?", picture(2276, 10), id="tall"))
    assert "tall" in str(caught.value)


def test_broken_media_are_media_errors(builder):
    with pytest.raises(MediaError, match="row 3"):
        builder().build_prompt(ask("?", Media(kind="image", source=b"junk", name="row 3")))


def test_template_arguments_reach_the_template(tiny):
    processor, facts = tiny
    kept, processor.chat_template = processor.chat_template, "{{ 'thinking' if enable_thinking else 'plain' }}"
    try:
        on = PromptBuilder(processor, family=facts, chat_template_kwargs={"enable_thinking": True})
        assert on.build_prompt(ask()).text == "thinking"
        assert PromptBuilder(processor, family=facts).build_prompt(ask()).text == "plain"
    finally:
        processor.chat_template = kept


def test_transparent_pictures_stand_on_the_background(builder):
    clear = Media(kind="image", source=Image.new("RGBA", (56, 56), (0, 0, 0, 0)), name="clear")
    prompt = builder(adapters=Adapters(built_in(background=(10, 20, 30)))).build_prompt(ask("?", clear))
    assert np.asarray(prompt.media[0].data)[5, 5].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("tail", "prefill"),
    [
        ("<|im_start|>assistant\n", ""),
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<|Assistant|><think>\n", "<think>\n"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("assistant\n<think>\n\n</think>\n\n<answer>", "<think>\n\n</think>\n\n<answer>"),
        ("use <answer> </answer> tags.\nassistant\n", ""),
        ("<assistant>", ""),
        ("[/INST]", ""),
        ("<start_of_turn>model\n", ""),
    ],
)
def test_what_the_template_wrote_of_the_answer_is_known(tail: str, prefill: str):
    assert prefill_of("user: How many?\n" + tail) == prefill


def test_a_prefilled_tag_reaches_the_prompt(tiny):
    processor, facts = tiny
    kept = processor.chat_template
    processor.chat_template = kept + "{% if add_generation_prompt %}<think>\n{% endif %}"
    try:
        assert PromptBuilder(processor, family=facts).build_prompt(ask()).prefill == "<think>\n"
    finally:
        processor.chat_template = kept
