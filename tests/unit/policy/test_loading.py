"""Loading: the automatic classes find each family again, and a wrong checkpoint gives one clear sentence."""

from __future__ import annotations

import json
import socket

import pytest
import torch

from mmgrpo.config.model import Freeze, Lora, Model
from mmgrpo.errors import CheckpointError, ConfigError, ProcessorError
from mmgrpo.policy.families.registry import family_of, tiny_names
from mmgrpo.policy.model.checkpoint import find_policy_folder, settings_of
from mmgrpo.policy.model.loading import choose_device, choose_dtype
from mmgrpo.policy.model.policy import load_policy

FAMILIES = [name.removeprefix("tiny:") for name in tiny_names()]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.parametrize("size", [{"num_hidden_layers": -1}, {"num_hidden_layers": 0}, {"num_attention_heads": 0}])
def test_a_size_below_one_is_refused_by_its_key(size):
    with pytest.raises(ConfigError, match=rf"too small(.|\n)*model.sizes.{next(iter(size))}"):
        load_policy(Model(name="tiny:qwen3", sizes=size))


@pytest.fixture
def saved(tmp_path, tiny_policy):
    """A folder with a tiny Qwen3 of two layers."""
    tiny_policy("qwen3", sharp=False, sizes={"num_hidden_layers": 2}).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_twin_loads_from_its_folder_with_the_same_class_weights_and_processor(family, tmp_path, tiny_policy):
    twin = tiny_policy(family)
    twin.save(tmp_path)
    again = load_policy(Model(name=str(tmp_path), device="cpu"))
    assert type(again.model) is type(twin.model)
    assert type(again.processor) is type(twin.processor)
    assert again.family.name == family
    ours, theirs = twin.model.state_dict(), again.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert again.model.generation_config.eos_token_id == twin.model.generation_config.eos_token_id


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_were_saved_can_be_taken_back(family, tmp_path, tiny_policy):
    policy = tiny_policy(family)
    before = {name: t.clone() for name, t in policy.model.state_dict().items()}
    policy.save(tmp_path)
    pointers = [p.data_ptr() for p in policy.model.parameters()]
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
    policy.load_weights_from(tmp_path)
    assert all(torch.equal(t, before[name]) for name, t in policy.model.state_dict().items())
    assert [p.data_ptr() for p in policy.model.parameters()] == pointers


@pytest.mark.parametrize("family", FAMILIES)
def test_a_twins_weights_depend_on_its_seed_alone(family):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = load_policy(Model(name=f"tiny:{family}", seed=1)).model.state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    second = load_policy(Model(name=f"tiny:{family}", seed=1)).model.state_dict()
    other = load_policy(Model(name=f"tiny:{family}", seed=2)).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_twin_is_about_a_million_parameters_and_has_no_dropout(family):
    model = load_policy(Model(name=f"tiny:{family}")).model
    assert 0.5e6 < sum(p.numel() for p in model.parameters()) < 3e6
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p]


def test_sizes_of_a_twin_can_be_set_and_unknown_or_impossible_ones_are_refused():
    policy = load_policy(Model(name="tiny:qwen2_5_vl", sizes={"hidden_size": 96, "num_hidden_layers": 2}))
    text = policy.model.config.text_config
    assert (text.hidden_size, text.num_hidden_layers) == (96, 2)
    with pytest.raises(ConfigError, match=r"model.sizes.hidden"):
        load_policy(Model(name="tiny:qwen3", sizes={"hidden": 96}))
    with pytest.raises(ConfigError, match=r"hidden_size.*num_attention_heads"):
        load_policy(Model(name="tiny:qwen3", sizes={"hidden_size": 97}))


@pytest.mark.parametrize("heads", [2, 3, 4, 6])
def test_every_head_width_gives_position_sections_that_fill_it(heads):
    sizes = {"hidden_size": 24 * heads, "num_attention_heads": heads, "num_key_value_heads": heads}
    text = load_policy(Model(name="tiny:qwen2_5_vl", sizes=sizes)).model.config.text_config
    assert sum(text.rope_parameters["mrope_section"]) == 12


def test_a_missing_folder_is_named_with_its_full_path_and_asks_no_network(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_policy(Model(name=str(tmp_path / "nowhere")))
    assert "no such folder" in str(caught.value)
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_a_folder_without_a_model_and_one_with_an_adapter_say_so(tmp_path, tiny_policy):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_policy(Model(name=str(tmp_path)))
    tiny_policy("qwen3", tune="lora").save(tmp_path / "adapter")
    with pytest.raises(ConfigError, match=r"model\.lora\.adapter"):
        load_policy(Model(name=str(tmp_path / "adapter")))


def test_p13_a_checkpoint_without_a_template_is_refused_before_its_weights_load(saved, tmp_path):
    (saved / "chat_template.jinja").unlink()
    (saved / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ProcessorError) as caught:
        load_policy(Model(name=str(saved)))
    assert str(saved) in str(caught.value)
    assert "model.chat_template" in str(caught.value)


def test_p13_a_template_of_ones_own_is_used_and_saved(saved, tmp_path):
    (saved / "chat_template.jinja").unlink()
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    policy = load_policy(Model(name=str(saved), chat_template=str(tmp_path / "mine.jinja")))
    policy.save(tmp_path / "out")
    again = load_policy(Model(name=str(tmp_path / "out")))
    messages = [{"role": "user", "content": "hi"}]
    assert again.processor.apply_chat_template(messages, tokenize=False) == "<user>hi"
    with pytest.raises(ConfigError, match=r"nothing\.jinja"):
        load_policy(Model(name=str(saved), chat_template=str(tmp_path / "nothing.jinja")))


@pytest.mark.parametrize("broken", ["weights", "config", "shape"])
def test_a_broken_checkpoint_gives_one_sentence_with_its_folder(broken, saved):
    if broken == "weights":
        (saved / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes()[:1000])
    elif broken == "config":
        (saved / "config.json").write_text("{")
    else:
        config = json.loads((saved / "config.json").read_text())
        (saved / "config.json").write_text(json.dumps(config | {"intermediate_size": 100}))
    with pytest.raises(ConfigError) as caught:
        load_policy(Model(name=str(saved)))
    assert str(saved) in str(caught.value)
    assert "The checkpoint cannot be loaded" in str(caught.value)


def test_a_hub_id_that_cannot_be_reached_says_what_it_looked_for(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else it asks for minutes
    with pytest.raises(ConfigError, match="nobody/nothing"):
        load_policy(Model(name="nobody/nothing"))


@pytest.mark.parametrize(
    ("name", "close"), [("qwen2_5vl", "Did you mean 'qwen2_5_vl'?"), ("olmo", "docs/families.md")]
)
def test_an_unknown_family_names_the_known_ones(name, close):
    with pytest.raises(ConfigError) as caught:
        family_of(name)
    assert name in str(caught.value) and close in str(caught.value) and "qwen3_vl" in str(caught.value)


def test_weights_of_another_family_are_refused(saved):
    (saved / "config.json").write_text(json.dumps({"model_type": "olmo", "num_hidden_layers": 1, "hidden_size": 64}))
    with pytest.raises(ConfigError, match=r"cannot be loaded|Weights are missing"):
        load_policy(Model(name=str(saved)))


def test_an_unknown_tiny_model_names_the_known_ones():
    with pytest.raises(ConfigError, match="tiny:qwen2_5_vl"):
        load_policy(Model(name="tiny:gpt"))


def test_a_missing_or_foreign_adapter_is_refused(tmp_path, tiny_policy):
    with pytest.raises(ConfigError, match="adapter"):
        tiny_policy("qwen3", tune="lora", lora=Lora(adapter=str(tmp_path / "nowhere")))
    tiny_policy("qwen3", tune="lora").save(tmp_path / "qwen3")
    with pytest.raises(ConfigError, match="adapter"):
        tiny_policy(
            "qwen3",
            sharp=False,
            tune="lora",
            sizes={"num_hidden_layers": 2},
            lora=Lora(adapter=str(tmp_path / "qwen3")),
        )


def test_lora_targets_and_modules_that_do_not_exist_are_refused(tiny_policy):
    with pytest.raises(ConfigError, match=r"model\.lora\.targets"):
        tiny_policy("qwen3", tune="lora", lora=Lora(targets=("qproj",)))
    with pytest.raises(ConfigError, match=r"model\.lora\.modules_to_save"):
        tiny_policy("qwen3", tune="lora", lora=Lora(modules_to_save=("head",)))


def test_everything_frozen_is_refused(tiny_policy):
    with pytest.raises(ConfigError, match=r"model\.freeze"):
        tiny_policy(freeze=Freeze(language=True))


def test_a_4_bit_base_without_its_library_names_the_extra(saved, monkeypatch):
    monkeypatch.setattr("mmgrpo.policy.model.checkpoint.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"mmgrpo\[qlora\]"):
        load_policy(Model(name=str(saved), tune="qlora"))
    with pytest.raises(ConfigError, match=r"model\.tune: lora"):
        load_policy(Model(name="tiny:qwen3", tune="qlora"))


def test_a_4_bit_base_learns_through_adapters(saved, make_prompt, make_batch):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    policy = load_policy(Model(name=str(saved), tune="qlora"))
    batch = make_batch([make_prompt(policy)], [[3, 4]])
    policy.logprobs(batch, temperature=1.0).logprobs.sum().backward()
    assert all(p.grad is not None for _, p in policy.trainable())


def test_pixel_limits_reach_the_processor_and_its_saved_copy(tmp_path, tiny_policy, make_picture):
    limited = tiny_policy("qwen2_5_vl", max_pixels=28 * 28 * 16, min_pixels=28 * 28)
    limited.save(tmp_path)
    again = load_policy(Model(name=str(tmp_path)))
    for policy in (limited, again):
        inputs = policy.processor(text=["<|image_pad|>"], images=[make_picture(1548, 884)], return_tensors="pt")
        height, width = (inputs["image_grid_thw"][0, 1:] * 14).tolist()
        assert height * width <= 28 * 28 * 16
        assert int((inputs["input_ids"] == policy.model.config.image_token_id).sum()) == height * width // 28**2
    with pytest.raises(ConfigError, match=r"model\.max_pixels"):
        tiny_policy("qwen3", max_pixels=1000)


@pytest.mark.parametrize(
    ("family", "area", "most"),
    [("glm4v", 28 * 28, 16), ("glm46v", 28 * 28, 16), ("mistral3", 28 * 28 + 9, 16), ("internvl", 56 * 56 // 4, 20)],
)
def test_pixel_limits_count_each_pixel_of_a_picture_once(family, area, most, tiny_policy, make_prompt, make_picture):
    """GLM's processor takes a picture for two frames; InternVL's has tiles, and one of the whole picture."""
    sizes = {"image_size": 56} if family == "internvl" else None
    free, limited = (tiny_policy(family, sizes=sizes, max_pixels=limit) for limit in (None, 16 * area))
    counts = []
    for policy in (free, limited):
        prompt = make_prompt(policy, images=[make_picture(448, 448)])
        counts.append(policy.family_info.count_media_tokens(prompt.token_ids)["image"])
    assert counts[0] >= 2 * most
    assert counts[1] == most


def test_device_and_dtype_are_chosen_or_refused():
    assert choose_dtype("auto", torch.device("cpu")) is torch.float32
    assert choose_dtype("bfloat16", torch.device("cpu")) is torch.bfloat16
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"model\.device"):
            choose_device("cuda")
        assert choose_device("auto").type in ("cpu", "mps")


def test_weights_that_are_not_there_are_a_checkpoint_error(tmp_path, tiny_policy):
    for tune in ("full", "lora"):
        with pytest.raises(CheckpointError, match="nowhere"):
            tiny_policy("qwen3", tune=tune).load_weights_from(tmp_path / "nowhere")


def test_a_folder_tells_the_settings_that_load_it(tmp_path, tiny_policy):
    tiny_policy("qwen3", sizes={"num_hidden_layers": 2}).save(tmp_path / "full")
    assert settings_of(tmp_path / "full") == Model(name=str(tmp_path / "full"))
    tiny_policy("qwen3", tune="lora", seed=4, sizes={"num_hidden_layers": 2}).save(tmp_path / "adapter")
    found = settings_of(tmp_path / "adapter")
    assert (found.name, found.seed, found.sizes) == ("tiny:qwen3", 4, {"num_hidden_layers": 2})
    assert found.lora.adapter == str(tmp_path / "adapter")
    (tmp_path / "adapter/mmgrpo_model.json").unlink()
    assert settings_of(tmp_path / "adapter").name == "tiny:qwen3"
    with pytest.raises(CheckpointError, match="No policy"):
        settings_of(tmp_path)
    with pytest.raises(CheckpointError, match="No policy"):
        find_policy_folder(tmp_path)


def test_tables_of_sines_never_learn_whatever_is_set_free(tiny_policy):
    everything = Freeze(vision=False, projector=False, audio=False)
    for settings in ({"tune": "full"}, {"tune": "lora"}):
        policy = tiny_policy("qwen2_audio", freeze=everything, **settings)
        learns = [name for name, _ in policy.trainable()]
        assert any("audio_tower.conv1" in name for name in learns)
        assert not any("embed_positions" in name for name in learns)
        with policy.all_parameters_trainable():
            assert not any("embed_positions" in name for name, _ in policy.trainable())
        assert [name for name, _ in policy.trainable()] == learns
