"""What tests of several rooms share: a tiny policy that is not flat, prompts through its processor, completions."""

from __future__ import annotations

import os

import pytest

# Tiny models: a second thread costs more in waiting than it brings, and sums depend on how they are split. Set before
# torch is imported, which no conftest does at the top.
os.environ.setdefault("OMP_NUM_THREADS", "1")


SMALL = {
    "idefics3": {"image_size": 32, "patch_size": 8, "scale_factor": 2, "longest_edge": 64},
    "smolvlm": {"image_size": 32, "patch_size": 8, "scale_factor": 2, "longest_edge": 64},
    "gemma3": {"image_size": 56, "mm_tokens_per_image": 4, "sliding_window": 24},
    "internvl": {"image_size": 56, "max_patches": 4},
    "llava_onevision": {"image_size": 28, "tiles_per_side": 4},
    "lfm2_vl": {"tile_size": 64, "min_image_tokens": 2, "max_image_tokens": 4},
    "mistral3": {"first_positions": 16},
    "qwen2_audio": {"chunk_seconds": 2},
    "qwen2_5_omni": {"chunk_seconds": 2},
    "qwen3_omni_moe": {"chunk_seconds": 2},
}
"""Sizes of twins whose media cost too much for a test at their true size."""


@pytest.fixture
def tiny_policy():
    """Build a policy by family; its weights are scaled up, so that pictures and tokens move its log-probs."""
    from mmgrpo.config.model import Freeze, Model
    from mmgrpo.policy.model.policy import load_policy

    def build(family="qwen2_5_vl", *, sharp=True, **settings):
        defaults = {"freeze": Freeze(vision=False, projector=False, audio=False), "sizes": SMALL.get(family)}
        settings = {"device": "cpu"} | defaults | settings
        policy = load_policy(Model(name=f"tiny:{family}", **settings))
        return sharpen(policy) if sharp else policy

    return build


def sharpen(policy):
    """Scale matrices up and give adapters a B that is not zero."""
    import torch

    from mmgrpo.policy.model.parts import bare_name

    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B" in name or ".lora_embedding_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.02)
            elif ".lora_" in name:
                continue
            elif "embed_tokens" in name or "lm_head" in name:
                # Gemma multiplies embeddings by the root of their width: more would make it repeat itself
                parameter.mul_((0.1 if policy.family.name == "gemma3" else 0.12) / parameter.std())
            elif parameter.ndim > 1:
                parameter.mul_(4 / 3 if policy.family.part_of(bare_name(name)) == "language" else 2 / 3)
    return policy


@pytest.fixture
def make_prompt():
    """Make a prompt through the policy's own processor, from text and decoded media."""
    from mmgrpo.types import Media, Sample

    def build(policy, text="How many items?", *, images=(), audios=(), videos=(), draw_index=0, sample_id="a"):
        kinds = [("image", images), ("audio", audios), ("video", videos)]
        media = tuple(Media(kind=kind, source=item) for kind, items in kinds for item in items)
        content = [*({"type": medium.kind} for medium in media), {"type": "text", "text": text}]
        sample = Sample(id=sample_id, messages=({"role": "user", "content": content},), media=media)
        return from_processor(policy.processor, sample, draw_index)

    return build


def from_processor(processor, sample, draw_index):
    """Call the processor as its own documentation does, with media that are decoded already."""
    from mmgrpo.types import Decoded, Prompt

    text = processor.apply_chat_template(list(sample.messages), tokenize=False, add_generation_prompt=True)
    names = {"image": "images", "audio": "audio", "video": "videos"}
    arguments: dict = {}
    for medium in sample.media:
        arguments.setdefault(names[medium.kind], []).append(medium.source)
    if "audio" in arguments:
        arguments["sampling_rate"] = 16000
    inputs = dict(processor(text=[text], return_tensors="pt", **arguments))
    token_ids = inputs.pop("input_ids")[0]
    inputs.pop("attention_mask")
    media = tuple(Decoded(kind=medium.kind, data=medium.source) for medium in sample.media)
    return Prompt(
        sample=sample, text=text, token_ids=token_ids, model_inputs=inputs, media=media, draw_index=draw_index
    )


@pytest.fixture
def make_picture():
    """Make a picture of sixteen random colours, the same one for the same seed."""
    import numpy as np
    from PIL import Image

    def build(width=56, height=56, seed=0):
        patches = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), dtype=np.uint8)
        return Image.fromarray(patches).resize((width, height), Image.Resampling.NEAREST)

    return build


@pytest.fixture
def make_beep():
    """Make a tone of a random pitch at 16 kHz, with a little noise, the same one for the same seed."""
    import numpy as np

    def build(seconds=0.4, seed=0):
        random = np.random.default_rng(seed)
        time = np.arange(int(seconds * 16000)) / 16000
        tone = np.sin(2 * np.pi * random.uniform(200, 3000) * time) + 0.05 * random.standard_normal(len(time))
        return (0.5 * tone).astype(np.float32)

    return build


@pytest.fixture
def make_completion():
    """Make a completion of random text tokens."""
    import torch

    from mmgrpo.types import Completion

    def build(length, seed=0):
        token_ids = torch.randint(20, 500, (length,), generator=torch.Generator().manual_seed(seed))
        return Completion(
            token_ids=token_ids,
            rollout_logprobs=torch.zeros(length),
            loss_mask=torch.ones(length, dtype=torch.bool),
            text="",
            status="stop",
            policy_version=0,
        )

    return build


@pytest.fixture
def make_batch(make_completion):
    """Make a micro-batch of prompts, each with random completions of the given lengths."""
    from mmgrpo.types import Batch, Segment

    def build(prompts, lengths):
        seeds = iter(range(10_000))
        segments = []
        for prompt, sizes in zip(prompts, lengths, strict=True):
            completions = tuple(make_completion(n, next(seeds)) for n in sizes)
            segments.append(Segment(prompt=prompt, completions=completions, advantages=(0.0,) * len(sizes)))
        return Batch(segments=tuple(segments))

    return build


def loader_of(samples, build_prompt, *, seed=0, shuffle=True, **options):
    """A loader that takes each row once an epoch."""
    from mmgrpo.data.prompt_loader import PromptLoader
    from mmgrpo.data.sampler import InOrder, RowOrder

    sampler = InOrder(RowOrder(len(samples), seed=seed, shuffle=shuffle))
    return PromptLoader(samples, build_prompt, sampler=sampler, **options)
