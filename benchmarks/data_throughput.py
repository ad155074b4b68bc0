"""Decode-and-process throughput of mmgrpo beside the calls that TRL's GRPOTrainer makes for the same pictures.

Both arms start from the same picture files, the same question and the same Qwen2.5-VL processor. mmgrpo's feed
decodes and processes each picture once per group, with two threads. TRL repeats each row G times and hands every
repetition to the processor twice: once for generation and once for the log-probs; that arm makes these calls itself,
in batches of G, so TRL need not be installed. Decoding each picture once counts in both. The arms alternate in one
process, and the first pass of each warms up and is not counted. A third arm is mmgrpo's with the media cache on: its
first pass fills the cache, so it shows what every later epoch costs.

    python benchmarks/data_throughput.py [--pictures FOLDER] [--pairs 5] [--out FILE.json]

Without --pictures, 64 pictures of 480 x 320 pixels are made in code.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import machine
from PIL import Image

from mmgrpo.config.cache import Cache
from mmgrpo.config.data import Columns, Template
from mmgrpo.config.model import Model
from mmgrpo.config.schema import Config
from mmgrpo.data.prompt_loader import PromptLoader
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import rows_from_python
from mmgrpo.media.prompt_builders import PromptBuilders
from mmgrpo.policy.model.loading import ModelOutline, load_outline

PICTURES, G, THREADS = 64, 8, 2
CONFIG = Config(model=Model(name="tiny:qwen2_5_vl"), cache=Cache(media_bytes=2**32))
QUESTION = "How many items are there in the image?"


def picture_files(folder: Path | None, scratch: Path) -> list[Path]:
    """Give 64 picture files: those of a folder, or pictures of noise and shapes."""
    if folder is not None:
        found = sorted(
            path for path in folder.resolve().rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg")
        )
        if len(found) < PICTURES:
            raise SystemExit(f"{folder} holds {len(found)} pictures; {PICTURES} are needed")
        return found[:PICTURES]
    made = []
    for i in range(PICTURES):
        path = scratch / f"{i}.png"
        Image.effect_noise((480, 320), 20 + i).convert("RGB").save(path)
        made.append(path)
    return made


def mmgrpo_arm(files: list[Path], builders: PromptBuilders) -> float:
    """Take one prompt for each picture through the feed, as a step does; seconds."""
    rows = [{"image": str(path), "problem": QUESTION, "solution": "1"} for path in files]
    samples = Samples(rows_from_python(rows), columns=Columns(), template=Template())
    feed = PromptLoader(samples, builders.pool(THREADS), threads=THREADS)
    start = time.perf_counter()
    prompts = feed.take(PICTURES)
    seconds = time.perf_counter() - start
    feed.close()  # what was begun for a next step is no part of this one
    assert len(prompts) == PICTURES
    return seconds


def repeated_arm(files: list[Path], outline: ModelOutline) -> float:
    """Process each picture 2 G times, in batches of G, as TRL's generation and scoring do; seconds."""
    processor = outline.processor
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    text = processor.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    start = time.perf_counter()
    for path in files:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        for _ in ("generation", "log-probs"):
            processor(text=[text] * G, images=[[picture]] * G, return_tensors="pt", padding=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about = machine.describe()
    outline = load_outline(Model(name="tiny:qwen2_5_vl"))
    ours, theirs, kept = [], [], []
    plain, cached = (
        PromptBuilders(config, outline.processor, outline.family_info, base=Path.cwd())
        for config in (CONFIG.model_copy(update={"cache": Cache()}), CONFIG)
    )
    with tempfile.TemporaryDirectory() as scratch:
        files = picture_files(arguments.pictures, Path(scratch))
        for pair in range(arguments.pairs + 1):
            seconds = mmgrpo_arm(files, plain), repeated_arm(files, outline), mmgrpo_arm(files, cached)
            if pair:
                ours.append(seconds[0])
                theirs.append(seconds[1])
                kept.append(seconds[2])
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    result = {
        **about,
        "pictures": PICTURES,
        "group": G,
        "threads": THREADS,
        "mmgrpo_seconds": [round(s, 4) for s in ours],
        "repeated_seconds": [round(s, 4) for s in theirs],
        "cached_seconds": [round(s, 4) for s in kept],
        "pictures_per_second": round(PICTURES / statistics.median(ours), 1),
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "ratio_cached_median": round(statistics.median(b / a for a, b in zip(kept, theirs, strict=True)), 2),
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
