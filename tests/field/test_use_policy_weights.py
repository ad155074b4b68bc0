"""Faults found in use: weights that are missing, renamed, left over or lost on the way to and from a file."""

from __future__ import annotations

import json
import re
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.config.model import Freeze, Lora, Model
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.policy.model.merging import merge_adapter
from mmgrpo.policy.model.parts import bare_name
from mmgrpo.policy.model.policy import load_policy


def rewrite(file, change):
    """Change the tensors of a safetensors file."""
    save_file({k: v.contiguous() for k, v in change(load_file(file)).items()}, file, metadata={"format": "pt"})


def move(policy, std=0.02):
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.add_(torch.randn(parameter.shape, generator=random) * std)


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    load_policy(Model(name="tiny:qwen2_5_vl", device="cpu")).save(folder)
    return folder


@pytest.fixture
def checkpoint(vision_folder, tmp_path):
    return shutil.copytree(vision_folder, tmp_path / "checkpoint")


@pytest.fixture
def adapter(tiny_policy, tmp_path):
    policy = tiny_policy(sharp=False, tune="lora", lora=Lora(r=4), freeze=Freeze())
    move(policy)
    policy.save(tmp_path / "adapter")
    return tmp_path / "adapter"


def untie(folder):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for part in (config, config["text_config"]):
        part["tie_word_embeddings"] = False
    file.write_text(json.dumps(config))


MISSING = {
    "a block": (lambda w: {k: v for k, v in w.items() if ".blocks.1." not in k}, r"12 of vision missing"),
    "merger renamed": (
        lambda w: {k.replace("merger", "mlp1"): v for k, v in w.items()},
        r"5 of projector missing.*The checkpoint has 5 unknown ones",
    ),
    "untied head": (lambda w: w, r"1 of language missing, such as lm_head"),
}


@pytest.mark.parametrize("fault", MISSING)
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_r201_a_checkpoint_with_missing_weights_is_refused_and_the_parts_named(fault, tune, checkpoint):
    change, message = MISSING[fault]
    rewrite(checkpoint / "model.safetensors", change)
    if fault == "untied head":
        untie(checkpoint)
    with pytest.raises(ConfigError, match=rf"Weights are missing(.|\n)*{re.escape(str(checkpoint))}(.|\n)*{message}"):
        load_policy(Model(name=str(checkpoint), tune=tune, device="cpu"))


def test_r201_a_whole_checkpoint_with_a_tied_head_loads_and_what_is_left_over_is_told(checkpoint):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_policy(Model(name=str(checkpoint), device="cpu"))
    rewrite(checkpoint / "model.safetensors", lambda w: w | {"value_head.weight": torch.zeros(2, 2)})
    with pytest.warns(UserWarning, match=r"does not use(.|\n)*value_head"):
        load_policy(Model(name=str(checkpoint), device="cpu"))


def test_r201_a_merge_beside_missing_weights_is_refused(checkpoint, tmp_path):
    policy = load_policy(Model(name=str(checkpoint), tune="lora", device="cpu"))
    policy.save(tmp_path / "adapter")
    rewrite(checkpoint / "model.safetensors", MISSING["a block"][0])
    with pytest.raises(ConfigError, match="Weights are missing"):
        merge_adapter(tmp_path / "adapter", tmp_path / "merged")


def test_r201_weights_of_a_checkpoint_to_resume_from_are_whole_or_refused(checkpoint, tiny_policy):
    policy = tiny_policy(sharp=False)
    policy.load_weights_from(checkpoint)
    rewrite(checkpoint / "model.safetensors", MISSING["a block"][0])
    with pytest.raises(CheckpointError, match="Weights are missing"):
        policy.load_weights_from(checkpoint)


def test_r202_an_adapter_whose_targets_are_a_pattern_of_other_names_is_found_by_its_keys(adapter, tiny_policy):
    before = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["target_modules"] = r"^(model)(?!.*(lm_head|output|emb|wte|shared)).*"  # of an old ms-swift
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    policy = tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(adapter)), freeze=Freeze())
    learned = dict(policy.trainable())
    assert len(learned) == len(before)
    for name, parameter in learned.items():
        assert torch.equal(parameter, before["base_model.model." + name.replace(".default", "")])


def test_r203_an_adapter_with_the_names_of_older_transformers_is_mapped(adapter, tiny_policy):
    first = tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(adapter)), freeze=Freeze())
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        path = adapter / file
        if file.endswith("json"):
            path.write_text(path.read_text().replace("model.language_model.layers", "model.layers"))
        else:
            rewrite(
                path, lambda w: {k.replace("model.language_model.layers", "model.layers"): v for k, v in w.items()}
            )
    second = tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(adapter)), freeze=Freeze())
    assert len(first.trainable()) == len(second.trainable()) > 0
    for (a, x), (b, y) in zip(first.trainable(), second.trainable(), strict=True):
        assert a == b and torch.equal(x, y) and x.any()
    second.load_weights_from(adapter)


@pytest.mark.parametrize("how", ["start", "resume"])
def test_r203_an_adapter_file_without_one_layer_is_told_with_counts(how, adapter, tiny_policy):
    whole = tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(adapter)), freeze=Freeze())
    rewrite(
        adapter / "adapter_model.safetensors", lambda w: {k: v for k, v in w.items() if "layers.1.mlp.up" not in k}
    )
    if how == "start":
        with pytest.raises(
            ConfigError, match=r"lacks layers(.|\n)*28 layers(.|\n)*27; 1 missing, such as .*layers.1.mlp"
        ):
            tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(adapter)), freeze=Freeze())
    else:
        with pytest.raises(CheckpointError, match=r"2 missing, such as .*layers.1.mlp.up_proj"):
            whole.load_weights_from(adapter)


@pytest.mark.parametrize(("key", "value"), [("r", 64), ("alpha", 7.0), ("rslora", True), ("targets", ("q_proj",))])
def test_r203_keys_of_the_yaml_that_a_continued_adapter_contradicts_are_refused(key, value, adapter, tiny_policy):
    with pytest.raises(ConfigError, match=rf"model\.lora\.{key}"):
        tiny_policy(tune="lora", lora=Lora(adapter=str(adapter), **{key: value}), freeze=Freeze())
    same = {"r": 4, "alpha": 32.0, "rslora": False, "targets": ("language",)}[key]
    tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(adapter), **{key: same}), freeze=Freeze())


def test_r213_a_merge_in_half_precision_tells_what_rounding_loses_and_float32_keeps_it(tiny_policy, tmp_path):
    policy = tiny_policy(sharp=False, tune="lora", dtype="bfloat16", lora=Lora(r=4), freeze=Freeze())
    move(policy, std=1e-4)
    with pytest.warns(UserWarning, match=r"Rounding loses(.|\n)*\d+% of the weights(.|\n)*float32"):
        merge_adapter(policy, tmp_path / "half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge_adapter(policy, tmp_path / "whole", dtype="float32")
    base = {bare_name(n): t for n, t in policy.model.state_dict().items() if ".lora_" not in n}
    changed = {}
    for name in ("half", "whole"):
        merged = load_policy(Model(name=str(tmp_path / name), device="cpu", dtype="float32")).model.state_dict()
        pairs = [(merged[n], t.float()) for n, t in base.items() if "q_proj.weight" in n]
        changed[name] = sum(int((a != b).sum()) for a, b in pairs) / sum(b.numel() for _, b in pairs)
    assert changed["half"] < 0.5 < 0.99 < changed["whole"]
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("step", ["merge", "continue"])
def test_r302_the_limits_of_images_and_videos_stay_with_an_adapter(step, tiny_policy, tmp_path, make_picture):
    policy = tiny_policy(sharp=False, tune="lora", lora=Lora(r=4), max_pixels=28 * 28 * 16)
    policy.processor.video_processor.size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 40}
    policy.save(tmp_path / "adapter")
    if step == "merge":
        again = load_policy(Model(name=str(merge_adapter(tmp_path / "adapter", tmp_path / "merged")), device="cpu"))
    else:
        again = tiny_policy(sharp=False, tune="lora", lora=Lora(adapter=str(tmp_path / "adapter")))
    inputs = again.processor(text=["<|image_pad|>"], images=[make_picture(1548, 884)], return_tensors="pt")
    assert int(inputs["image_grid_thw"].prod()) // 4 <= 16
    assert dict(again.processor.video_processor.size)["longest_edge"] == 28 * 28 * 40


@pytest.mark.parametrize("family", ["idefics3", "gemma3", "lfm2_vl", "llava_onevision", "internvl", "qwen2_audio"])
@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("all-linear",)], ids=["names", "all"])
def test_w28_targets_by_name_leave_frozen_encoders_alone(family, targets, tiny_policy):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        policy = tiny_policy(family, sharp=False, tune="lora", lora=Lora(r=2, targets=targets), freeze=Freeze())
    assert {c.part for c in policy.parts() if c.trainable} == {"language"}
    if targets[0] == "q_proj":
        part = "audio" if family == "qwen2_audio" else "vision"
        assert any(f"layers of {part}" in str(w.message) for w in told)
    part = "audio" if family == "qwen2_audio" else "vision"
    free = tiny_policy(
        family, sharp=False, tune="lora", lora=Lora(r=2, targets=targets), freeze=Freeze(**{part: False})
    )
    assert {part, "language"} <= {c.part for c in free.parts() if c.trainable}


def test_w28_a_name_that_only_a_frozen_part_has_is_refused_and_one_named_in_full_is_taken(tiny_policy):
    with pytest.raises(ConfigError, match=r"frozen part alone(.|\n)*model\.freeze\.vision: false"):
        tiny_policy(tune="lora", lora=Lora(targets=("qkv",)), freeze=Freeze())
    full = "model.visual.blocks.0.attn.qkv"
    policy = tiny_policy(sharp=False, tune="lora", lora=Lora(targets=(full,)), freeze=Freeze())
    assert all(name.startswith(full) for name, _ in policy.trainable())
