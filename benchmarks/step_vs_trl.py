"""One GRPO step of mmgrpo and of TRL's GRPOTrainer, side by side.

Both arms load the same tiny Qwen2.5-VL from the same folder, see the same picture and question, write G completions
of exactly C tokens for each prompt (no end token may be drawn), score them with the same reward, and take one AdamW
step on all weights in float32 on the CPU. Each arm runs in a process of its own; the arms alternate; the first step of
each process warms it up and is not counted. ``step_cpu`` is CPU time: unlike the others it does not feel what else the
machine does, and with one thread it is what the others would be on an idle one. Memory counts from where the libraries
are loaded and the model is not.

    pip install -r benchmarks/requirements-trl.txt
    python benchmarks/step_vs_trl.py [--pairs 5] [--threads 1] [--out benchmarks/results/step_vs_trl.json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine

G, C, PROMPTS, WIDTH, HEIGHT = 8, 32, 2, 476, 308
STEPS = 4
"""Of which the first is not counted."""
NAMES = ("step", "step_cpu", "update", "rollout", "peak")
QUESTION = "How many objects are there in the image?"


def reward(completions: list[Any], **columns: Any) -> list[float]:
    """Any reward that spreads inside a group: a hash of the text."""
    return [random.Random(str(c)).random() for c in completions]


def picture(seed: int) -> Any:
    from PIL import Image

    random.seed(seed)
    return Image.effect_noise((WIDTH, HEIGHT), 60 + seed).convert("RGB")


def write_model(folder: Path) -> None:
    from prefix_update import load

    policy = load()
    policy.model.generation_config.eos_token_id = None  # nothing ends a completion: both arms write C tokens
    policy.model.save_pretrained(folder)
    policy.processor.save_pretrained(folder)


def mmgrpo_arm(folder: str) -> dict[str, Any]:
    """Steps of mmgrpo, without checks, evaluation or files beyond the metrics."""
    import torch
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration  # noqa: F401 (load the libraries)

    from mmgrpo import train
    from mmgrpo.rollout import local

    local.end_tokens = lambda policy: frozenset()  # as above: the tokenizer's end token must not end one either
    seconds: list[dict[str, float]] = []
    ends: list[float] = []

    def note(step: int, metrics: Any) -> None:
        ends.append(time.process_time())
        seconds.append(dict(metrics))

    rows = [{"image": picture(i), "problem": QUESTION, "solution": "1"} for i in range(PROMPTS)]
    checks = {"engine_logprobs": False, "packed_equals_plain": False, "picture_swap": False, "truncated_share": 1.0}
    _start_memory()
    run = train(
        None,
        rewards=[reward],
        train_rows=rows,
        on_step=note,
        model={"name": folder, "device": "cpu", "freeze": {"vision": False, "projector": False}},
        rollout={"num_generations": G, "max_completion_length": C},
        train={"num_steps": STEPS, "prompts_per_step": PROMPTS, "learning_rate": 1e-6, "output_dir": f"{folder}-run"},
        checks=checks,
        observe={"progress": False, "log_completions": 0},
    )
    assert run.metrics()[-1]["completions/mean_length"] == C
    counted = seconds[1:]
    return {
        "threads": torch.get_num_threads(),
        "step": statistics.median(s["step_time"] for s in counted),
        "step_cpu": statistics.median(b - a for a, b in pairwise(ends)),
        "update": statistics.median(s["seconds/update"] for s in counted),
        "rollout": statistics.median(s["seconds/rollout"] for s in counted),
        "peak": machine.peak_rss_bytes() - _BASE[0],
    }


def trl_arm(folder: str) -> dict[str, Any]:
    """Steps of TRL's trainer with the settings that mean the same."""
    import torch
    from datasets import Dataset, Image
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        """Times whole steps, and the training passes inside them."""

        def __init__(self) -> None:
            self.steps: list[float] = []
            self.ends: list[float] = []

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps.append(time.perf_counter() - self.start)
            self.ends.append(time.process_time())

    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    rows = [{"prompt": [{"role": "user", "content": content}], "image": picture(i)} for i in range(PROMPTS)]
    dataset = Dataset.from_list(rows * STEPS).cast_column("image", Image())
    _start_memory()
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(folder)
    settings = GRPOConfig(
        output_dir=f"{folder}-trl",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=G * PROMPTS,
        num_generations=G,
        max_completion_length=C,
        max_steps=STEPS,
        learning_rate=1e-6,
        beta=0.0,
        temperature=1.0,
        generation_kwargs={"min_new_tokens": C, "eos_token_id": None},
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    clock = Clock()
    generation: list[float] = []
    trainer = GRPOTrainer(
        model=model, reward_funcs=reward, args=settings, train_dataset=dataset, processing_class=processor,
        callbacks=[clock],
    )  # fmt: skip
    prepare = trainer._generate_and_score_completions

    def timed(inputs: Any) -> Any:
        start = time.perf_counter()
        found = prepare(inputs)
        generation.append(time.perf_counter() - start)
        assert int(found["completion_mask"].sum()) == G * PROMPTS * C
        return found

    trainer._generate_and_score_completions = timed
    trainer.train()
    steps, rollouts = clock.steps[1:], generation[1:]
    return {
        "threads": torch.get_num_threads(),
        "step": statistics.median(steps),
        "step_cpu": statistics.median(b - a for a, b in pairwise(clock.ends)),
        "update": statistics.median(s - r for s, r in zip(steps, rollouts, strict=True)),
        "rollout": statistics.median(rollouts),
        "peak": machine.peak_rss_bytes() - _BASE[0],
    }


_BASE = [0]


def _start_memory() -> None:
    """Count memory from here: libraries are loaded."""
    machine.reset_peak()
    _BASE[0] = machine.peak_rss_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each arm")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--arm", nargs=2)
    options = parser.parse_args()
    if options.arm:
        warnings.simplefilter("ignore")
        arm = {"mmgrpo": mmgrpo_arm, "trl": trl_arm}[options.arm[0]]
        print("RESULT " + json.dumps(arm(options.arm[1])))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model(folder)
        pairs = []
        for i in range(options.pairs):
            found = {
                arm: _run(arm, folder, options.threads) for arm in (("mmgrpo", "trl") if i % 2 else ("trl", "mmgrpo"))
            }
            pairs.append(found)
            ratios = {k: found["trl"][k] / found["mmgrpo"][k] for k in NAMES}
            print(f"pair {i}: " + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()), flush=True)
    median = {n: statistics.median(p["trl"][n] / p["mmgrpo"][n] for p in pairs) for n in NAMES}
    print("median of the ratios TRL / mmgrpo: " + ", ".join(f"{k} {v:.2f}" for k, v in median.items()))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        shapes = {"G": G, "C": C, "prompts": PROMPTS, "picture": [WIDTH, HEIGHT]}
        result = {**machine.describe(), "shapes": shapes, "median_ratio": median, "pairs": pairs}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _run(arm: str, folder: Path, threads: int) -> dict[str, Any]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, __file__, "--arm", arm, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{arm} failed:\n{done.stderr[-3000:]}")
    line = next(x for x in reversed(done.stdout.splitlines()) if x.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


if __name__ == "__main__":
    main()
