"""Rewards of one's own really teach: a function as a notebook has it, and a CLIP that is trained here."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mmgrpo
from mmgrpo.reward.loading import load_reward

pytestmark = pytest.mark.slow


class TwoTowers(nn.Module):
    """A small CLIP: a convolution net for pictures, a bag of words for texts."""

    words = ("red", "green", "blue", "black", "gray", "teal", "brown", "yellow", "circle", "rectangle", "triangle")

    def __init__(self):
        super().__init__()
        stack = [nn.Conv2d(3, 16, 5, 2, 2), nn.GELU(), nn.Conv2d(16, 32, 5, 2, 2), nn.GELU()]
        stack += [nn.Conv2d(32, 64, 5, 1, 2), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 32)]
        self.vision, self.text = nn.Sequential(*stack), nn.EmbeddingBag(len(self.words), 32, mode="sum")

    def pixels(self, pictures):
        arrays = [np.asarray(p.resize((40, 40)), dtype=np.float32) / 127.5 - 1 for p in pictures]
        return torch.tensor(np.stack(arrays)).permute(0, 3, 1, 2)

    def images(self, pictures):
        return nn.functional.normalize(self.vision(self.pixels(pictures)), dim=-1)

    def texts(self, texts):
        bags = [[self.words.index(w) for w in text.split() if w in self.words] or [0] for text in texts]
        flat = torch.tensor([i for bag in bags for i in bag])
        offsets = torch.tensor([sum(map(len, bags[:n])) for n in range(len(bags))])
        return nn.functional.normalize(self.text(flat, offsets), dim=-1)


def easy_vqa_captions(split, limit):
    """Pictures of easy-vqa with the caption that their questions spell out."""
    easy_vqa = pytest.importorskip("easy_vqa", reason="needs the package easy-vqa")
    questions, answers, ids = getattr(easy_vqa, f"get_{split}_questions")()
    paths = getattr(easy_vqa, f"get_{split}_image_paths")()
    captions = {}
    for question, answer, at in zip(questions, answers, ids, strict=True):
        if match := re.fullmatch(r"what color is the (circle|rectangle|triangle)\?", question):
            captions[at] = f"a {answer} {match.group(1)}"
        elif match := re.fullmatch(r"what is the (\w+) shape\?", question):
            captions[at] = f"a {match.group(1)} {answer}"
    return [(Image.open(paths[at]).convert("RGB"), text) for at, text in list(captions.items())[:limit]]


def cut(picture):
    """The shape alone, large: what differs from the corner of the picture."""
    pixels = np.asarray(picture).astype(int)
    rows, columns = np.nonzero(np.abs(pixels - pixels[0, 0]).sum(-1) > 30)
    box = (columns.min() - 2, rows.min() - 2, columns.max() + 3, rows.max() + 3)
    return picture.crop(box).resize((56, 56))


@pytest.fixture(scope="module")
def clip():
    """A small CLIP, trained on pictures and captions of easy-vqa, as a reward."""
    torch.manual_seed(0)
    rows = [
        pair for picture, text in easy_vqa_captions("train", 3000) for pair in ((picture, text), (cut(picture), text))
    ]
    model = TwoTowers()
    pixels, texts = model.pixels([picture for picture, _ in rows]), [text for _, text in rows]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    captions = sorted(set(texts))
    target = torch.tensor([captions.index(text) for text in texts])
    for _ in range(400):
        at = torch.randint(len(rows), (48,))
        vectors = nn.functional.normalize(model.vision(pixels[at]), dim=-1)
        loss = nn.functional.cross_entropy(20 * vectors @ model.texts(captions).T, target[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    encoder = model.eval().requires_grad_(False)
    args = {"encoder": encoder, "low": 0.0, "high": 1.0}
    return load_reward("rewards/clip.py:ClipScore", base=Path(), args=args).function


def test_a_small_clip_trained_here_ranks_the_right_caption_first(clip):
    held_out = easy_vqa_captions("test", 200)
    captions = sorted({caption for _, caption in held_out})
    first = 0
    for picture, caption in held_out:
        scores = clip(completions=captions, images=[[picture]] * len(captions))
        first += captions[int(np.argmax(scores))] == caption
    assert first / len(held_out) > 0.9


def run(tmp_path, reward, train_rows, eval_rows, **sections):
    """Train from Python alone; gives the run."""
    base = {
        "model": {"name": "tiny:qwen2_5_vl", "freeze": {"vision": False, "projector": False}},
        "data": {"columns": {"prompt": "problem", "image": "image", "answer": None}},
        "eval": {"at_start": False, "sampled": False, "limit": 1},
        "observe": {"progress": False, "log_completions": 0},
    }
    sections["train"] |= {"output_dir": str(tmp_path / "run"), "threads": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mmgrpo.train(rewards=[reward], train_rows=train_rows, eval_rows=eval_rows, **{**base, **sections})


def held_out_reward(run, reward, rows, **columns):
    """Mean reward of four sampled completions for each held-out row."""
    scores = []
    for row in rows:
        texts = run.generate(row, count=4)
        given = {name: [value(row)] * len(texts) for name, value in columns.items()}
        scores += reward(completions=texts, **given)
    return float(np.mean(scores))


def vowels(completions, trainer_state):
    """The share of vowels: a reward as somebody would type it into a cell."""
    assert trainer_state.global_step >= 0
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in completions]


def test_a_function_as_a_notebook_has_it_raises_its_held_out_reward(tmp_path):
    rows = [{"problem": f"Say something about {n}.", "image": None} for n in range(64)]
    settings = {
        "rollout": {"num_generations": 8, "max_completion_length": 12},
        "data": {"columns": {"prompt": "problem", "image": None, "answer": None}},
    }
    means = []
    for steps in (0, 25):
        done = run(
            tmp_path, vowels, rows[:48], rows[48:], **settings,
            train={"num_steps": steps, "prompts_per_step": 16, "learning_rate": 1e-3},
        )  # fmt: skip
        means.append(held_out_reward(done, lambda completions: vowels(completions, _Step()), rows[48:]))
    assert means[1] > means[0] + 0.15, means


class _Step:
    global_step = 0


def test_a_clip_as_the_only_reward_teaches_captions(tmp_path, clip):
    pictures = easy_vqa_captions("train", 2000), easy_vqa_captions("test", 40)
    rng = np.random.default_rng(0)
    colours, shapes = TwoTowers.words[:8], TwoTowers.words[8:]

    def row(picture, caption):
        lot = f"a {rng.choice(colours)} {rng.choice(shapes)}"  # a warm start that is right in four of ten
        return {"problem": "What is this?", "image": cut(picture), "said": caption if rng.random() < 0.4 else lot}

    train_rows, held_out = ([row(*pair) for pair in part] for part in pictures)
    folder = tmp_path / "warm"
    folder.mkdir()
    lines = []
    for at, given in enumerate(train_rows[:1500]):
        given["image"].save(folder / f"{at}.png")
        lines.append(f'{{"problem": "What is this?", "image": "{at}.png", "said": "{given["said"]}"}}')
    (folder / "rows.jsonl").write_text("\n".join(lines))
    means = []
    for steps in (0, 40):
        done = run(
            tmp_path, clip, train_rows, held_out,
            warm_start={
                "data": {"path": str(folder / "rows.jsonl")}, "target": "{{ said }}",
                "num_steps": 120, "batch_size": 64,
            },
            rollout={"num_generations": 8, "max_completion_length": 16},
            train={"num_steps": steps, "prompts_per_step": 32, "learning_rate": 5e-4},
        )  # fmt: skip
        means.append(held_out_reward(done, clip, held_out, images=lambda given: [given["image"]]))
    assert means[1] > means[0] + 0.15, means
