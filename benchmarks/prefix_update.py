"""Packed against plain rows: seconds and peak memory of one update's forward and backward, over P, C and G.

Both arms compute the same loss on the same groups with the same weights. The plain arm is what trainers do who treat
a group as G rows: prompts and pixels repeated G times, rows padded, logits only where a completion is predicted.

    python benchmarks/prefix_update.py [--pairs 5] [--out benchmarks/results/prefix_update.json]

Each setting runs the arms alternately; the median of the paired ratios is reported. Memory is measured in a process
of its own per arm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import torch
from PIL import Image

from mmgrpo.config.model import Model
from mmgrpo.policy.model.plain import plain_inputs
from mmgrpo.policy.model.policy import Policy, load_policy
from mmgrpo.types import Batch, Completion, Prompt, Sample, Segment

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vision_hidden_size": 128,
    "vision_intermediate_size": 256,
    "vision_depth": 4,
    "vision_num_heads": 4,
}
SETTINGS = [
    # picture width, height, C, G
    (476, 308, 32, 8),
    (476, 308, 32, 4),
    (476, 308, 32, 16),
    (476, 308, 128, 8),
    (476, 308, 256, 8),
    (952, 616, 32, 8),
    (112, 112, 32, 8),
]
PROMPTS = 2


def load() -> Policy:
    settings = Model(name="tiny:qwen2_5_vl", sizes=SIZES, device="cpu", freeze={"vision": False, "projector": False})
    return load_policy(settings)


def make_batch(policy: Policy, width: int, height: int, length: int, count: int) -> Batch:
    torch.manual_seed(0)
    processor = policy.processor
    segments = []
    for i in range(PROMPTS):
        picture = Image.effect_noise((width, height), 80 + i).convert("RGB")
        content = [{"type": "image"}, {"type": "text", "text": "How many objects are there in the image?"}]
        messages = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = dict(processor(text=[text], images=[picture], return_tensors="pt"))
        ids = inputs.pop("input_ids")[0]
        inputs.pop("attention_mask")
        prompt = Prompt(
            sample=Sample(id=str(i), messages=tuple(messages)), text=text, token_ids=ids, model_inputs=inputs
        )
        segments.append(
            Segment(
                prompt=prompt, completions=tuple(completion(length) for _ in range(count)), advantages=(1.0,) * count
            )
        )
    return Batch(segments=tuple(segments))


def completion(length: int) -> Completion:
    return Completion(
        token_ids=torch.randint(10, 500, (length,)),
        rollout_logprobs=torch.zeros(length),
        loss_mask=torch.ones(length, dtype=torch.bool),
        text="",
        status="length",
        policy_version=0,
    )


def packed(policy: Policy, batch: Batch) -> torch.Tensor:
    return policy.logprobs(batch, temperature=1.0).logprobs


def plain(policy: Policy, batch: Batch) -> torch.Tensor:
    """All rows in one padded batch, pictures repeated: one call of transformers' own forward."""
    rows = [plain_inputs(policy.family, s.prompt, c, policy.device) for s in batch.segments for c in s.completions]
    joined: dict[str, Any] = {}
    for name in rows[0]:
        values = [r[name] for r in rows]
        joined[name] = torch.cat(values)  # prompts and completions are of one length here: nothing to pad
    policy.model.model.rope_deltas = None
    length = len(batch.completions[0].token_ids)
    logits = policy.model(**joined, use_cache=False, logits_to_keep=length + 1).logits[:, :-1].float()
    ids = torch.stack([c.token_ids for c in batch.completions])
    return torch.log_softmax(logits, -1).gather(-1, ids[..., None]).flatten()


ARMS = {"packed": packed, "plain": plain}


def run(policy: Policy, arm: str, batch: Batch) -> tuple[float, float]:
    policy.model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    loss = ARMS[arm](policy, batch).sum()
    loss.backward()
    return time.perf_counter() - start, float(loss.detach())


def flop_ratio(policy: Policy, batch: Batch) -> float:
    """G (P + C + v) / (P + v + G C), with v the picture's cost in tokens of the language model."""
    first = batch.segments[0]
    patches = first.prompt.model_inputs["pixel_values"].shape[0]
    vision = sum(p.numel() for p in policy.model.model.visual.parameters())
    language = sum(p.numel() for n, p in policy.model.named_parameters() if "language_model.layers" in n)
    p, c, g = len(first.prompt.token_ids), len(first.completions[0].token_ids), len(first.completions)
    v = patches * vision / language
    return g * (p + c + v) / (p + v + g * c)


def peak(arm: str, setting: tuple[int, int, int, int]) -> int:
    """Peak memory above model and batch, in bytes, in a process of its own."""
    command = [sys.executable, __file__, "--memory", arm, *map(str, setting)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def memory(arm: str, setting: list[str]) -> None:
    policy = load()
    batch = make_batch(policy, *map(int, setting))
    machine.reset_peak()
    before = machine.peak_rss_bytes()
    run(policy, arm, batch)
    print(machine.peak_rss_bytes() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", nargs=5)
    options = parser.parse_args()
    if options.memory:
        memory(options.memory[0], options.memory[1:])
        return
    policy = load()
    results = []
    print("   P    C   G |  packed s   plain s  ratio | FLOP ratio | packed MB  plain MB  ratio")
    for setting in SETTINGS:
        batch = make_batch(policy, *setting)
        losses = [run(policy, arm, batch)[1] for arm in ARMS]  # warm-up, and the two must agree
        assert abs(losses[0] - losses[1]) < 1e-3 * abs(losses[1]), losses
        times = [{arm: run(policy, arm, batch)[0] for arm in ARMS} for _ in range(options.pairs)]
        ratios = [t["plain"] / t["packed"] for t in times]
        peaks = {arm: peak(arm, setting) for arm in ARMS}
        row = {
            "P": len(batch.segments[0].prompt.token_ids),
            "C": setting[2],
            "G": setting[3],
            "prompts": PROMPTS,
            "packed_seconds": statistics.median(t["packed"] for t in times),
            "plain_seconds": statistics.median(t["plain"] for t in times),
            "time_ratio": statistics.median(ratios),
            "time_ratios": ratios,
            "flop_ratio": flop_ratio(policy, batch),
            "packed_peak_bytes": peaks["packed"],
            "plain_peak_bytes": peaks["plain"],
            "memory_ratio": peaks["plain"] / max(1, peaks["packed"]),
        }
        results.append(row)
        print(
            f"{row['P']:4d} {row['C']:4d} {row['G']:3d} | {row['packed_seconds']:9.3f} {row['plain_seconds']:9.3f} "
            f"{row['time_ratio']:6.2f} | {row['flop_ratio']:10.2f} | {peaks['packed'] / 1e6:9.0f} "
            f"{peaks['plain'] / 1e6:9.0f} {row['memory_ratio']:6.2f}"
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**machine.describe(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
