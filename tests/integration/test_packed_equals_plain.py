"""The packed forward against each prompt and completion alone through transformers' own forward, in float32."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.config.model import Freeze, Lora
from mmgrpo.policy.attention import blocks
from mmgrpo.policy.model import forward
from mmgrpo.policy.model.plain import plain_inputs, plain_logprobs
from mmgrpo.policy.patches import media_base
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.types import Sampling

QWEN = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
VISION = [
    *QWEN,
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "glm4v",
    "idefics3",
    "smolvlm",
    "gemma3",
    "internvl",
    "llava_onevision",
    "mistral3",
    "lfm2_vl",
]
TOWERS = ["gemma3", "internvl", "llava_onevision", "mistral3", "lfm2_vl"]
ENCODERS = dict.fromkeys(TOWERS, "model.vision_tower") | dict.fromkeys(["idefics3", "smolvlm"], "model.vision_model")
FAMILIES = [*VISION, "qwen2_5_omni", "qwen3_omni_moe", "qwen2_audio", "qwen3"]
SHARED = [family for family in FAMILIES if family not in ("gemma3", "qwen3_5", "qwen3_5_moe", "lfm2_vl")]
"""Families whose attention can be shared over a group."""
LOGPROB_BOUND = 1e-5
GRADIENT_BOUND = 1e-4
SHAPES = {
    "one group": [(("How many?", 1), [5, 3, 7, 1])],
    "several groups": [(("How many items?", 1), [2, 9]), (("Is there a red cube in it?", 1), [40, 1, 3])],
    "several pictures": [(("Which of them is larger?", 3), [4, 6])],
    "no picture": [(("Say yes.", 0), [3, 3]), (("Say no, and tell me why you do not like it.", 0), [1, 8, 2])],
    "mixed": [(("How many?", 1), [5, 1]), (("Hi", 0), [3]), (("Which?", 2), [30, 2, 11])],
}
SIZES = [(56, 56), (84, 140), (112, 56)]


@pytest.fixture
def media_of(make_picture, make_beep):
    """So many pictures, or sounds where the family sees none, as arguments of ``make_prompt``."""

    def build(policy, count, seed=0):
        if "image" in policy.family.kinds:
            return {"images": [make_picture(*SIZES[(seed + k) % 3], seed=10 * seed + k) for k in range(count)]}
        if "audio" in policy.family.kinds:
            return {"audios": [make_beep(0.3 + 0.1 * ((seed + k) % 3), seed=10 * seed + k) for k in range(count)]}
        return {}

    return build


@pytest.fixture
def batch_of(make_prompt, media_of, make_batch):
    def build(policy, shape):
        prompts, lengths = [], []
        for i, ((text, pictures), sizes) in enumerate(SHAPES[shape]):
            prompts.append(make_prompt(policy, text, sample_id=str(i), **media_of(policy, pictures, seed=i)))
            lengths.append(sizes)
        return make_batch(prompts, lengths)

    return build


def plain(policy, batch, temperature):
    """Log-probs and entropy of every completion by the model's own forward, one row at a time."""
    logprobs, entropies = [], []
    for segment in batch.segments:
        for completion in segment.completions:
            if hasattr(policy.model.model, "rope_deltas"):
                policy.model.model.rope_deltas = None
            inputs = plain_inputs(policy.family, segment.prompt, completion, policy.device)
            length = len(completion.token_ids)
            rows = (policy.model(**inputs, use_cache=False).logits[0, -length - 1 : -1] / temperature).log_softmax(-1)
            logprobs.append(rows.gather(1, completion.token_ids[:, None])[:, 0])
            entropies.append(-(rows.exp() * rows).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(policy, loss):
    policy.model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in policy.trainable() if p.grad is not None}


def assert_equal(policy, batch, temperature):
    stats = policy.logprobs(batch, temperature=temperature, entropy=True)
    weights = torch.randn(stats.logprobs.shape, generator=torch.Generator().manual_seed(1))
    packed = gradients(policy, (stats.logprobs * weights).sum())
    logprobs, entropies = plain(policy, batch, temperature)
    alone = gradients(policy, (logprobs * weights).sum())
    assert (stats.logprobs - logprobs).abs().max() < LOGPROB_BOUND
    assert (stats.entropy - entropies).abs().max() < 2 * LOGPROB_BOUND
    assert packed.keys() == alone.keys()
    # softmax does not see a bias that all keys share: without rotary positions its gradient is rounding alone
    total = max(g.norm() for g in alone.values())
    blind = {n for n, g in alone.items() if n.endswith("k_proj.bias") and g.norm() < 1e-5 * total}
    worst = {n: ((packed[n] - g).norm() / g.norm()).item() for n, g in alone.items() if g.any() and n not in blind}
    assert max(worst.values()) < GRADIENT_BOUND, max(worst, key=worst.get)
    assert all(packed[n].norm() < 1e-5 * total for n in blind)
    assert all(not packed[n].any() for n in alone.keys() - worst.keys() - blind)
    return packed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tiny_policy_is_neither_flat_nor_blind(family, tiny_policy, make_prompt, media_of, make_batch):
    policy = tiny_policy(family)
    # seeds 0 and 3 give media of one size
    batches = [make_batch([make_prompt(policy, **media_of(policy, 1, seed=s))], [[8, 8]]) for s in (0, 3)]
    with torch.no_grad():
        one, other = (policy.logprobs(b, temperature=1.0, entropy=True) for b in batches)
    assert one.entropy.mean() < 0.9 * math.log(len(policy.tokenizer))
    if policy.family.kinds:
        assert (one.logprobs - other.logprobs).abs().max() > 100 * LOGPROB_BOUND


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", SHARED)
def test_packed_logprobs_entropy_and_gradients_are_those_of_the_plain_rows(family, shape, tiny_policy, batch_of):
    policy = tiny_policy(family, layout="packed")
    assert assert_equal(policy, batch_of(policy, shape), temperature=1.0)


@pytest.mark.parametrize("shape", [pytest.param(s, marks=() if s == "mixed" else pytest.mark.slow) for s in SHAPES])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_logprobs_entropy_and_gradients_are_those_of_the_plain_rows(family, shape, tiny_policy, batch_of):
    policy = tiny_policy(family, layout="rows")
    assert assert_equal(policy, batch_of(policy, shape), temperature=1.0)


@pytest.mark.parametrize("temperature", [0.6, 1.3])
@pytest.mark.parametrize("family", FAMILIES)
def test_temperature_scales_both_sides_alike(family, temperature, tiny_policy, batch_of):
    policy = tiny_policy(family)
    assert_equal(policy, batch_of(policy, "mixed"), temperature=temperature)


@pytest.mark.parametrize(
    ("layout", "tune"),
    [
        ("packed", "full"),
        ("packed", "lora"),
        ("rows", "lora"),
        pytest.param("rows", "full", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputing_activations_changes_nothing(family, tune, layout, tiny_policy, batch_of):
    if family not in SHARED and layout == "packed":
        pytest.skip("its attention cannot be shared")
    lora = Lora(r=4, targets=("all-linear",)) if tune == "lora" else None
    frozen = {"freeze": Freeze()} if tune == "lora" else {}
    found = []
    for checkpointing in (False, True):
        policy = tiny_policy(
            family, tune=tune, lora=lora, gradient_checkpointing=checkpointing, layout=layout, **frozen
        )
        found.append(assert_equal(policy, batch_of(policy, "mixed"), temperature=1.0))
    assert found[0].keys() == found[1].keys()
    if tune == "lora":
        assert all(".lora_" in name for name in found[0])


@pytest.mark.parametrize("form", ["grouped", "per_completion"])
@pytest.mark.parametrize("family", SHARED)
def test_both_forms_of_attention_are_exact(family, form, tiny_policy, batch_of, monkeypatch):
    """Those of devices whose kernels do not tell their log-sum-exp."""
    used = set()
    monkeypatch.setattr(forward, "build_plan", blocks.block_plan)
    for name in ("grouped", "per_completion"):
        block = getattr(blocks, f"_{name}_block")
        monkeypatch.setattr(blocks, f"_{name}_block", lambda spans, b=block, n=name: used.add(n) or b(spans))
    monkeypatch.setattr(blocks, "_grouped_is_cheaper", lambda span: form == "grouped")
    policy = tiny_policy(family)
    assert_equal(policy, batch_of(policy, "mixed"), temperature=1.0)
    assert used == {form}


@pytest.mark.filterwarnings("ignore:Frames of a video share a time position")  # four frames in a sixth of a second
def test_videos_and_pictures_in_one_batch_are_exact(tiny_policy, make_prompt, make_picture, make_batch):
    import numpy as np

    for family in (*QWEN, "qwen3_5"):
        policy = tiny_policy(family)
        clip = np.stack([np.asarray(make_picture(seed=s)) for s in range(4)])
        prompts = [
            make_prompt(policy, videos=[clip]),
            make_prompt(policy, images=[make_picture(seed=9)], videos=[clip[:2], clip]),
            make_prompt(policy, images=[make_picture(84, 56)]),
        ]
        assert_equal(policy, make_batch(prompts, [[3, 5], [9], [2, 2]]), temperature=1.0)


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_pictures_videos_and_sounds_in_one_batch_are_exact(
    family, tiny_policy, make_prompt, make_picture, make_beep, make_batch
):
    import numpy as np

    policy = tiny_policy(family)
    clip = np.stack([np.asarray(make_picture(seed=s)) for s in range(4)])
    prompts = [
        make_prompt(policy, images=[make_picture()], audios=[make_beep(0.5), make_beep(0.3)], videos=[clip]),
        make_prompt(policy, audios=[make_beep(0.7, seed=4)]),
        make_prompt(policy, "Hi"),
        make_prompt(policy, videos=[clip, clip[:2]]),
    ]
    assert_equal(policy, make_batch(prompts, [[3, 5], [9], [2], [2, 2]]), temperature=1.0)


@pytest.mark.parametrize("family", ["qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe"])
def test_each_sound_passes_the_encoder_once_per_phase(family, tiny_policy, make_prompt, make_beep, make_batch):
    policy = tiny_policy(family)
    calls = []
    media_base(policy.model).audio_tower.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(args[0].shape), with_kwargs=True
    )
    prompts = [make_prompt(policy, audios=[make_beep(0.3, seed=i)] * (i + 1)) for i in range(3)]
    frames = [int(p.model_inputs["feature_attention_mask"].sum()) for p in prompts]
    expected = {
        "qwen2_audio": [torch.Size([6, 128, 200])],
        "qwen2_5_omni": [torch.Size([128, sum(frames)])],
        "qwen3_omni_moe": [torch.Size([128, count]) for count in frames],  # prompt by prompt
    }[family]
    LocalEngine(policy).generate(prompts, [4, 4, 4], Sampling(max_completion_length=5))
    assert calls == expected
    calls.clear()
    policy.logprobs(make_batch(prompts, [[3] * 4] * 3), temperature=1.0).logprobs.sum().backward()
    assert calls == expected


def test_swapped_completions_give_other_logprobs(tiny_policy, batch_of):
    policy = tiny_policy()
    batch = batch_of(policy, "several groups")
    with torch.no_grad():
        stats = policy.logprobs(batch, temperature=1.0)
        wrong = plain_logprobs(
            policy.model, policy.family, batch.segments[1].prompt, batch.segments[0].completions[0], temperature=1.0
        )
    assert (stats.logprobs[: len(wrong)] - wrong).abs().max() > 100 * LOGPROB_BOUND


@pytest.mark.parametrize("family", VISION)
def test_each_picture_passes_the_encoder_once_per_phase(family, tiny_policy, make_prompt, make_picture, make_batch):
    policy = tiny_policy(family)
    calls = []
    encoder = policy.model.get_submodule(ENCODERS.get(family, "model.visual"))
    encoder.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((*args, *kwargs.values())[0].shape[0]), with_kwargs=True
    )
    prompts = [make_prompt(policy, images=[make_picture(*SIZES[i])] * (i + 1)) for i in range(3)]
    tiled = family in ("idefics3", "smolvlm", "llava_onevision")  # pictures, then tiles
    shapes = [p.model_inputs["pixel_values"].shape for p in prompts]
    patches = sum(shape[0] * shape[1] if tiled else shape[0] for shape in shapes)
    expected = [1] * patches if family == "mistral3" else [patches]  # one by one, or all together
    LocalEngine(policy).generate(prompts, [4, 4, 4], Sampling(max_completion_length=5))
    assert calls == expected
    batch = make_batch(prompts, [[3] * 4] * 3)
    for context in (torch.no_grad(), torch.enable_grad()):
        calls.clear()
        with context:
            logprobs = policy.logprobs(batch, temperature=1.0).logprobs
        assert calls == expected
    logprobs.sum().backward()
    assert calls == expected


def test_untrained_tokens_have_logprob_zero_and_no_gradient(tiny_policy, batch_of):
    from dataclasses import replace

    policy = tiny_policy("qwen3")
    batch = batch_of(policy, "one group")
    segment = batch.segments[0]
    masked = [replace(c, loss_mask=torch.zeros_like(c.loss_mask)) for c in segment.completions]
    batch = replace(batch, segments=(replace(segment, completions=tuple(masked)),))
    logprobs = policy.logprobs(batch, temperature=1.0).logprobs
    assert not logprobs.any()
    assert not any(g.any() for g in gradients(policy, logprobs.sum()).values())
