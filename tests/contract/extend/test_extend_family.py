"""A family of a user's own: one file that the YAML names, that Python registers, or that a package offers; and a model
without any record, which a generic one trains if it fits and refuses with the fact that is missing."""

from __future__ import annotations

import importlib.metadata
import runpy
from pathlib import Path

import pytest
import torch

import mmgrpo
from mmgrpo.config.model import Freeze, Model
from mmgrpo.errors import ConfigError
from mmgrpo.policy.families import registry
from mmgrpo.policy.families.tiny.parts import (
    SIZES,
    build_tokenizer,
    chat_template,
    decoder_sizes,
    encoder_sizes,
    initialise,
)
from mmgrpo.policy.model.plain import plain_logprobs
from mmgrpo.policy.model.policy import load_policy

FILE = Path(__file__).with_name("toy_family.py")


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    return runpy.run_path(str(FILE))["RECORD"]


def equals_plain(policy, batch):
    with torch.no_grad():
        found = policy.logprobs(batch, temperature=1.0).logprobs
        expected = [
            plain_logprobs(policy.model, policy.family, s.prompt, c, temperature=1.0)
            for s in batch.segments
            for c in s.completions
        ]
    assert (found - torch.cat(expected)).abs().max() < 1e-5


def test_a_family_in_one_file_that_the_yaml_names_is_trained(train):
    run = train(
        model={"name": "tiny:llava", "family": f"{FILE}:RECORD", "sizes": None, "freeze": {"projector": False}}
    )
    assert run.policy.family.name == "llava" and run.policy.layout == "packed"
    assert run.steps >= 1
    again = mmgrpo.train(resume=run.path)
    assert again.steps == run.steps


def test_a_registered_family_equals_its_plain_rows(record, make_prompt, make_picture, make_batch):
    assert mmgrpo.register_family(record) is record
    policy = load_policy(Model(name="tiny:llava", device="cpu", freeze=Freeze(projector=False)))
    prompts = [make_prompt(policy, images=[make_picture(seed=i)]) for i in range(2)]
    equals_plain(policy, make_batch(prompts, [[3, 5], [4]]))


def test_a_name_that_comes_with_the_package_is_not_taken_and_what_is_no_record_is_told(record, tmp_path):
    from dataclasses import replace

    with pytest.raises(ConfigError, match="comes with mmgrpo"):
        mmgrpo.register_family(replace(record, name="qwen2_5_vl"))
    (tmp_path / "none.py").write_text("RECORD = 3\n")
    with pytest.raises(ConfigError, match=r"model\.family(.|\n)*FamilySpec(.|\n)*int"):
        load_policy(Model(name="tiny:llava", family="none.py:RECORD"), folder=tmp_path)


def test_an_installed_package_offers_a_family_by_its_model_type(record, monkeypatch):
    honest = importlib.metadata.entry_points
    point = importlib.metadata.EntryPoint("llava", "toy_family:RECORD", "mmgrpo.families")
    monkeypatch.syspath_prepend(str(FILE.parent))

    def offered(**chosen):
        if chosen.get("group") == "mmgrpo.families":
            return importlib.metadata.EntryPoints([point])
        return honest(**chosen)

    monkeypatch.setattr(importlib.metadata, "entry_points", offered)
    monkeypatch.setattr(registry, "entry_points", offered)
    assert load_policy(Model(name="tiny:llava", device="cpu")).family.name == "llava"


def llava_next(folder):
    """A tiny LLaVA-NeXT, of which mmgrpo has no record."""
    from transformers import (
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
        LlavaNextImageProcessor,
        LlavaNextProcessor,
    )

    size = SIZES | {"image_size": 56, "patch_size": 14}
    tokenizer = build_tokenizer("<image>", named={"image_token": "<image>"})
    grids = [[56, 112], [112, 56], [112, 112]]
    processor = LlavaNextProcessor(
        image_processor=LlavaNextImageProcessor(
            size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=grids
        ),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template(image="<image>\n"),
    )
    config = LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", **encoder_sizes(size)},
        text_config={"model_type": "llama", **decoder_sizes(size, tokenizer), "tie_word_embeddings": True},
        image_token_index=tokenizer.image_token_id,
        image_grid_pinpoints=grids,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    initialise(LlavaNextForConditionalGeneration, config, processor, 0).save_pretrained(folder)
    processor.save_pretrained(folder)


def paligemma(folder):
    """A tiny PaliGemma, whose prompts are read in both directions."""
    from transformers import (
        PaliGemmaConfig,
        PaliGemmaForConditionalGeneration,
        PaliGemmaProcessor,
        SiglipImageProcessor,
    )

    size = SIZES | {"image_size": 56, "patch_size": 14}
    tokenizer = build_tokenizer("<image>", named={"image_token": "<image>"})
    tokenizer.bos_token = "<|endoftext|>"
    images = SiglipImageProcessor(size={"height": 56, "width": 56})
    images.image_seq_length = 16
    processor = PaliGemmaProcessor(
        image_processor=images, tokenizer=tokenizer, chat_template=chat_template(image="<image>")
    )
    text = {"model_type": "gemma", **decoder_sizes(size, processor.tokenizer), "head_dim": 32}
    config = PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **encoder_sizes(size), "vision_use_head": False},
        text_config=text,
        image_token_index=processor.image_token_id,
        projection_dim=size["hidden_size"],
    )
    initialise(PaliGemmaForConditionalGeneration, config, processor, 0).save_pretrained(folder)
    processor.save_pretrained(folder)


def test_a_model_without_a_record_that_the_generic_one_fits_is_trained(tmp_path, train):
    llava_next(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"No family record for 'llava_next'(.|\n)*generic"):
        run = train(
            model={"name": str(tmp_path / "model"), "sizes": None, "freeze": {"vision": True, "projector": True}}
        )
    assert run.policy.layout == "rows" and run.policy.family.generic
    parts = {c.part: c.trainable for c in run.policy.parts()}
    assert parts["vision"] == parts["projector"] == 0 < parts["language"]


@pytest.mark.filterwarnings("ignore:No family record")
def test_the_generic_record_counts_placeholders_and_sees_pictures(tmp_path, make_prompt, make_picture, make_batch):
    from dataclasses import replace

    llava_next(tmp_path)
    policy = load_policy(Model(name=str(tmp_path), device="cpu"))
    prompts = [
        make_prompt(policy, images=[make_picture(84, 56)]),
        make_prompt(policy, images=[make_picture(seed=2)] * 2),
    ]
    equals_plain(policy, make_batch(prompts, [[3, 5], [4]]))
    cut = replace(prompts[0], token_ids=prompts[0].token_ids[20:])
    with pytest.raises(mmgrpo.ProcessorError, match="llava_next"):
        policy.module.encode_media([cut])
    with pytest.raises(mmgrpo.ProcessorError, match="do not match"):
        policy.module.encode_media([replace(prompts[0], model_inputs={})])


def test_a_model_whose_prompts_are_read_otherwise_is_refused_with_the_missing_fact(tmp_path):
    paligemma(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_policy(Model(name=str(tmp_path), device="cpu"))
    message = str(caught.value)
    assert "No family record for 'paligemma', and the generic one does not fit" in message
    assert "mask or positions" in message or "positions begin" in message
    assert "model.family" in message
