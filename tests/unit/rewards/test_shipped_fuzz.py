import json
import math
import random
import time
from pathlib import Path

import pytest

from mmgrpo.config.paths import shipped_rewards
from mmgrpo.reward.calling import call
from mmgrpo.reward.columns import table
from mmgrpo.reward.facts import RewardFacts
from mmgrpo.reward.loading import load_reward
from mmgrpo.reward.paste import pasted_group

BOX = [0, 0, 10, 10]
DETECTIONS = [{"bbox_2d": BOX, "label": "dog"}]
FRAMES = {"answer": 3, "pair": "v", "shuffled": False}
TEXT_REWARDS = {
    "boxes.py:box_iou": {"answer": BOX},
    "boxes.py:detection_map": {"answer": DETECTIONS},
    "boxes.py:point_in_box": {"answer": BOX},
    "boxes.py:vlm_r1_iou": {"answer": BOX},
    "choice.py:choice_accuracy": {"answer": "B"},
    "clevr_counting.py:count_accuracy": {"answer": 3, "args": {"numerals": ["words", "zh", "fullwidth"]}},
    "clevr_counting.py:r1v_accuracy": {"answer": "<answer> 3 </answer>", "args": {"verify": False}},
    "clevr_counting.py:soft_count": {"answer": 3, "args": {"mode": "last_number"}},
    "countdown.py:countdown": {"nums": [1, 2, 3], "target": 6},
    "exact.py:exact_answer": {"answer": "red"},
    "format.py:answer_only": {},
    "format.py:r1v_format": {},
    "format.py:swift_format": {},
    "format.py:think_answer": {},
    "format.py:trl_think_format": {},
    "language.py:language_consistency": {},
    "length.py:CosineLength": {"answer": 3, "args": {"max_length": 100}},
    "length.py:soft_overlong": {"args": {"max_length": 100, "cache_length": 20}},
    "maths.py:math12k_graded": {"answer": "3"},
    "maths.py:math_accuracy": {"answer": "3"},
    "repetition.py:repetition": {},
    "safety.py:text_safety": {},
    "similarity.py:bleu": {"answer": "three red cubes"},
    "similarity.py:rouge": {"answer": "three red cubes", "args": {"kind": "mean"}},
    "transcript.py:character_error": {"answer": "three red cubes"},
    "transcript.py:ocr_distance": {"answer": "three red cubes"},
    "transcript.py:word_error": {"answer": "three red cubes"},
    "video.py:FrameOrderBonus": FRAMES,
    "video.py:regression": {"answer": 3},
    "video.py:temporal_iou": {"answer": [2, 6]},
    "video.py:video_r1": {"answer": "B", "problem_type": "multiple choice"},
}
NEED_MORE_THAN_TEXT = {"AestheticScore", "ClapScore", "ClipScore", "EmbeddingCosine", "Judge", "PictureSafety"}
NEED_MORE_THAN_TEXT |= {"RewardModel", "VisionReward"}
"""Rewards that load a model or ask a server; each has tests of its own."""

PIECES = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>3</answer>", "<think>hm</think>", "\\boxed{", "}", "{",
    "\\frac{1}{2}", "\\sqrt{", "3", "1,800", "0.5", "-", "1e999", "B", "(B)", "2 to 6", "[0, 0, 10, 10]", "(5, 5)",
    "\u0663", "\uff13", "²", "\x00", "\ud7ff", "\u202e", "🟥", "\n", "\t", " ", "<|im_end|>", "\\", "\"", "`", "**",
    json.dumps(DETECTIONS), "three red cubes", "理解题意", "三", "=", "(1+2)*3", "^", "_", "%", "inf", "nan", "\u2028",
    "$", "/0",
]  # fmt: skip


def completions(count, seed):
    """Random completions: pieces of answers, any characters, some very long."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.random()
        if kind < 0.4:
            text = "".join(rng.choices(PIECES, k=rng.randint(0, 30)))
        elif kind < 0.55:
            text = "".join(
                chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xD7FF)])) for _ in range(rng.randint(0, 200))
            )
        elif kind < 0.99:
            text = f"<think>x</think><answer>{''.join(rng.choices(PIECES, k=rng.randint(1, 4)))}</answer>"
        else:
            text = rng.choice(PIECES) * rng.randint(1000, 4000)
        yield text


def check(spec, count, seconds_per_text):
    columns = dict(TEXT_REWARDS[spec])
    reward = load_reward(f"rewards/{spec}", base=Path(), args=columns.pop("args", {}))
    facts = reward.facts
    texts = list(completions(count, seed=spec))
    for start in range(0, count, 50):
        group = pasted_group(texts[start : start + 50], **columns)
        begin = time.process_time()
        values = call(reward, table([group]).columns).values
        assert time.process_time() - begin < 50 * seconds_per_text
        for text, value in zip(texts[start:], values, strict=False):
            assert math.isnan(value) or facts.low - 1e-9 <= value <= facts.high + 1e-9, (text, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", TEXT_REWARDS)
def test_no_completion_breaks_a_shipped_reward(spec):
    slow = spec.startswith("maths.py")
    if slow:
        pytest.importorskip("math_verify", reason="needs the extra math")
    check(spec, 200 if slow else 1000, seconds_per_text=0.1)


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", TEXT_REWARDS)
def test_no_completion_of_very_many_breaks_a_shipped_reward(spec):
    check(spec, 50_000, seconds_per_text=0.1)


def test_every_shipped_reward_is_fuzzed_or_has_tests_of_its_own():
    import inspect

    from mmgrpo.plugins import import_file
    from mmgrpo.reward.facts import facts_of

    marked = set()
    for path in shipped_rewards().glob("*.py"):
        for name, value in inspect.getmembers(import_file(path)):
            if facts_of(value) != RewardFacts() and value.__module__.startswith("mmgrpo_plugin"):
                marked.add(name)
    assert marked == {spec.partition(":")[2] for spec in TEXT_REWARDS} | NEED_MORE_THAN_TEXT
