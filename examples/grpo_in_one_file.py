"""GRPO in one file: a tiny vision-language model learns to name colours, from a reward alone.

    python examples/grpo_in_one_file.py

No network, no GPU, half a minute on one CPU core. Read it downwards: the task, the parts, the habit, the loop, the
test. Everything that mmgrpo does beyond this (files, evaluation, checkpoints, checks, screens) stands around the same
few lines; the loop below is that of ``mmgrpo/trainer.py``.
"""

from __future__ import annotations

import random
from itertools import count

import torch
from PIL import Image

from mmgrpo.config.loss import Loss
from mmgrpo.config.model import Freeze, Model
from mmgrpo.config.train import Train
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.model.policy import load_policy
from mmgrpo.rollout.local import LocalEngine
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.supervised import imitate
from mmgrpo.training.update import UpdateSettings, update
from mmgrpo.types import Group, Media, Prompt, Sample, Sampling, ScoredGroup

N, G = 16, 8  # prompts per step, completions per prompt
HABIT_STEPS, GRPO_STEPS = 40, 60
COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (40, 70, 200), "yellow": (225, 205, 50)}
dice, numbers = random.Random(0), count()

# ---- The task: one question, a picture of one colour, and the truth. ------------------------------------------------


def new_sample(number: int) -> Sample:
    """Draw a picture in some shade of one of the four colours."""
    name = dice.choice(list(COLOURS))
    shade = tuple(min(255, max(0, c + dice.randint(-30, 30))) for c in COLOURS[name])
    picture = Media(kind="image", source=Image.new("RGB", (56, 56), shade), name=f"picture {number}")
    content = [{"type": "image"}, {"type": "text", "text": "What color is the picture?"}]
    return Sample(id=str(number), messages=({"role": "user", "content": content},), media=(picture,), answer=name)


def reward(text: str, truth: str) -> float:
    """1 for the right word and nothing else. This is all that the model is ever told about colours."""
    return float(text.strip() == truth)


# ---- The parts: a policy, what turns samples into prompts, what writes, what changes the weights. -------------------

# The real Qwen2.5-VL classes and processor, built in code and smaller than small. A hub id would do as well.
policy = load_policy(
    Model(
        name="tiny:qwen2_5_vl",
        device="cpu",
        freeze=Freeze(vision=False, projector=False),
        sizes={"num_hidden_layers": 2, "vision_depth": 2},
    )
)
builder = PromptBuilder(policy.processor, family=policy.family_info)
engine = LocalEngine(policy)
sampling = Sampling(max_completion_length=4, temperature=1.0)
greedy = Sampling(max_completion_length=4, temperature=0.0)


def next_prompts(how_many: int) -> list[Prompt]:
    """Draw pictures and tokenise. A prompt's number in the run (``draw_index``) seeds its random streams."""
    return [builder.build_prompt(new_sample(n), draw_index=n) for _, n in zip(range(how_many), numbers, strict=False)]


def new_optimizer(learning_rate: float, steps: int) -> Optimizer:
    """AdamW over all weights, with a rise over five steps and a fall to zero."""
    schedule = Schedule(peak=learning_rate, kind="linear", warmup_steps=5, total_steps=steps)
    return Optimizer(policy.trainable(), settings=Train(), schedule=schedule)


# ---- The habit: random weights write noise, noise is never right, and groups in which nobody is right teach nothing.
# ---- A few supervised steps teach the form, *some* colour word. The word is drawn by lot: no picture is explained.


def learn_the_form() -> None:
    """Imitate a random colour word, whatever the picture shows."""
    optimizer, tokenizer = new_optimizer(3e-3, HABIT_STEPS), policy.tokenizer
    for _ in range(HABIT_STEPS):
        words = [tokenizer(dice.choice(list(COLOURS))).input_ids for _ in range(32)]
        targets = [torch.tensor([*ids, tokenizer.eos_token_id]) for ids in words]
        rows = list(zip(next_prompts(32), targets, strict=True))
        imitate(policy, rows, max_batch_tokens=8192, optimizer=optimizer)


# ---- GRPO. ----------------------------------------------------------------------------------------------------------


def score(group: Group) -> ScoredGroup:
    """Give each of the G completions of a prompt its reward."""
    totals = torch.tensor([reward(c.text, group.prompt.sample.answer) for c in group.completions]).double()
    return ScoredGroup(group=group, totals=totals, rewards={"colour": totals})


def compare(totals: torch.Tensor) -> torch.Tensor:
    """The G in GRPO: a completion is good if it beats the others of its group. No critic is needed.

    A = (r - mean(r)) / (std(r) + 1e-4), and zero for all where the rewards are equal. The package's own
    ``mmgrpo.grpo.advantages.group_advantages`` does it for all groups at once.
    """
    return (totals - totals.mean()) / (totals.std() + 1e-4)


def train() -> None:
    """Roll out, score, compare, learn."""
    optimizer = new_optimizer(1.5e-3, GRPO_STEPS)
    settings = UpdateSettings(
        loss=Loss(loss_type="dapo", epsilon=0.2, beta=0.0),  # -min(w A, clip(w) A), mean over all tokens
        temperature=sampling.temperature,  # log-probs must be of the distribution that was sampled from
        max_completion_length=sampling.max_completion_length,
    )
    for step in range(1, GRPO_STEPS + 1):
        # Each prompt and picture is computed once; all G completions read its keys and values. The log-prob of every
        # token is written down as the token is drawn.
        groups = engine.generate(next_prompts(N), [G] * N, sampling)
        scored = [score(group) for group in groups]
        # One row, [P1 | R1,1 ... R1,G | P2 | R2,1 ...]: each prompt stands once here too, and nothing is padding.
        batches = pack(scored, [compare(s.totals) for s in scored], optimizer_steps=1, max_batch_tokens=8192)
        stats = update(policy, batches, settings=settings, optimizer=optimizer)
        engine.load_weights((), version=step)  # nothing to copy: this engine writes with the trainer's own weights
        if step % 10 == 0:
            mean = float(torch.cat([s.totals for s in scored]).mean())
            print(f"step {step:3}  reward {mean:.2f}  entropy {stats.metrics.get('entropy', 0.0):.2f} nats per token")


# ---- The test: fresh pictures, no dice in the decoding. -------------------------------------------------------------


def accuracy(how_many: int = 64) -> float:
    """Share of fresh pictures whose colour is named."""
    groups = engine.generate(next_prompts(how_many), [1] * how_many, greedy)
    return sum(reward(g.completions[0].text, g.prompt.sample.answer) for g in groups) / how_many


def main() -> tuple[float, float]:
    """Tell the whole story.

    Returns:
        Accuracy before and after GRPO.
    """
    learn_the_form()
    before = accuracy()
    print(f"before GRPO: {before:.2f} of fresh pictures are named rightly (by chance: 0.25)")
    train()
    after = accuracy()
    print(f"after GRPO: {after:.2f}")
    return before, after


if __name__ == "__main__":
    main()
