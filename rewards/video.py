"""Video and mixed tasks: moments in time, regression, the rule by problem type, and a bonus for frame order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmgrpo import call_reward, last_answer, load_plugin, load_reward, read_truth, reward_facts, to_number

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(?:s|sec|seconds)?\s*(?:to|and|,|-|–)\s*(\d+(?:\.\d+)?)")  # noqa: RUF001


def _spans(value: Any) -> list[tuple[float, float]]:
    """Moments as start and end in seconds: text (``2.5 to 7``), a pair, or a list of pairs."""
    if isinstance(value, str):
        pairs = [(float(a), float(b)) for a, b in _SPAN.findall(value)]
    elif len(value) == 2 and not isinstance(value[0], Sequence):
        pairs = [(float(value[0]), float(value[1]))]
    else:
        pairs = [(float(a), float(b)) for a, b in value]
    return [(a, b) for a, b in pairs if a < b]


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    done: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if done and start <= done[-1][1]:
            done[-1] = (done[-1][0], max(done[-1][1], end))
        else:
            done.append((start, end))
    return done


@reward_facts(low=0.0, high=1.0)
def temporal_iou(
    completions: list[str], answer: list[Any], duration_seconds: list[float | None] | None = None
) -> list[float | None]:
    """Overlap in time of the moments that the answer names with the true ones.

    r = seconds in both / seconds in either; with ``duration_seconds`` also times
    (1 - |start - true start| / duration) * (1 - |end - true end| / duration)

    Args:
        completions: What the policy wrote: ``2.5 to 7`` (or several such) in the last ``<answer>``.
        answer: The true moment: ``[2.5, 7]``, a list of moments, or text; None: does not apply.
        duration_seconds: Length of each video, for the stricter form.

    Returns:
        0 to 1.

    Source: Time-R1, arXiv:2503.13377, section 3.2; intervals are merged first, as in VideoChat-R1.

    Example:
        >>> temporal_iou(["<answer>2 to 6</answer>", "<answer>never</answer>"], [[4, 8], [4, 8]])
        [0.3333333333333333, 0.0]
    """
    lengths = duration_seconds if duration_seconds is not None else [None] * len(completions)
    scores: list[float | None] = []
    for text, truth, length in zip(completions, answer, lengths, strict=True):
        if truth is None:
            scores.append(None)
            continue
        gold, given = _merged(_spans(read_truth(truth))), _merged(_spans(last_answer(text) or ""))
        if not gold:
            raise ValueError(f"the truth {truth!r} is no moment: write [start, end] in seconds")
        scores.append(_overlap(given, gold) * _closeness(given, gold, length))
    return scores


def _overlap(given: list[tuple[float, float]], gold: list[tuple[float, float]]) -> float:
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in given for b in gold)
    either = sum(end - start for start, end in [*given, *gold]) - both
    return both / either


def _closeness(given: list[tuple[float, float]], gold: list[tuple[float, float]], length: float | None) -> float:
    if length is None or not given:
        return 1.0
    start, end = abs(given[0][0] - gold[0][0]), abs(given[-1][1] - gold[-1][1])
    return max(0.0, 1 - start / length) * max(0.0, 1 - end / length)


@reward_facts(low=0.0, high=1.0)
def regression(completions: list[str], answer: list[Any]) -> list[float | None]:
    """Closeness of a number to the truth, relative to it.

    r = 1 - min(1, |number - truth| / |truth|)

    Args:
        completions: What the policy wrote: a number in the last ``<answer>``.
        answer: The true number; None: does not apply.

    Returns:
        0 to 1; a truth of 0 must be hit exactly.

    Source: the regression rule of Video-R1 (arXiv:2503.21776).

    Example:
        >>> regression(["<answer>9</answer>", "<answer>0</answer>", "9"], [10, 0, 10])
        [0.9, 1.0, 0.0]
    """
    scores: list[float | None] = []
    for text, truth in zip(completions, answer, strict=True):
        if truth is None:
            scores.append(None)
            continue
        gold, given = to_number(read_truth(truth)), to_number(last_answer(text) or "")
        if gold is None:
            raise ValueError(f"the truth {truth!r} is not a number")
        if given is None:
            scores.append(0.0)
        else:
            scores.append(1.0 - min(1.0, abs(given - gold) / abs(gold)) if gold else float(given == 0))
    return scores


@reward_facts(low=0.0, high=1.0)
def video_r1(completions: list[str], answer: list[Any], problem_type: list[str]) -> list[float | None]:
    """Video-R1's mixed rule: each row is judged as its ``problem_type`` says.

    ``multiple choice``: the right letter; ``numerical``: equal after rounding to two places, and both or neither with
    a decimal point; ``OCR``: one minus the word error rate; ``free-form``: mean of ROUGE-1, -2 and -L;
    ``regression``: relative closeness. Answers are read strictly, from the last ``<answer>``.

    Args:
        completions: What the policy wrote.
        answer: The truth; None: does not apply.
        problem_type: One of these for each row.

    Returns:
        0 to 1.

    Source: Video-R1, arXiv:2503.21776, and its code (github.com/tulerfeng/Video-R1).

    Example:
        >>> texts = ["<answer>B</answer>", "<answer>3.0</answer>", "<answer>stop now</answer>"]
        >>> video_r1(texts, ["B", "3.00", "stop here"], ["multiple choice", "numerical", "OCR"])
        [1.0, 1.0, 0.5]
    """
    rules = {
        "multiple choice": load_plugin("choice.py", beside=__file__).choice_accuracy,
        "numerical": _numerical,
        "ocr": load_plugin("transcript.py", beside=__file__).word_error,
        "free-form": _free_form,
        "regression": regression,
    }
    scores: list[float | None] = [None] * len(completions)
    kinds = [str(kind).strip().lower() for kind in problem_type]
    for kind in dict.fromkeys(kinds):
        if kind not in rules:
            raise ValueError(f"problem_type {kind!r} is not one of {', '.join(rules)}")
        rows = [row for row, name in enumerate(kinds) if name == kind]
        values = rules[kind]([completions[r] for r in rows], [answer[r] for r in rows])
        for row, value in zip(rows, values, strict=True):
            text_is_empty = last_answer(completions[row]) is None and answer[row] is not None
            scores[row] = 0.0 if text_is_empty else value
    return scores


def _numerical(completions: list[str], answer: list[Any]) -> list[float | None]:
    scores: list[float | None] = []
    for text, truth in zip(completions, answer, strict=True):
        given, gold = last_answer(text) or "", str(read_truth(truth))
        a, b = to_number(given), to_number(gold)
        same_form = ("." in given) == ("." in gold)
        scores.append(None if truth is None else float(None not in (a, b) and same_form and _round(a) == _round(b)))
    return scores


def _round(number: float | None) -> float:
    return math.nan if number is None else round(number, 2)


def _free_form(completions: list[str], answer: list[Any]) -> list[float | None]:
    return load_plugin("similarity.py", beside=__file__).rouge(completions, answer, kind="mean")


@reward_facts(low=0.0, high=0.3)
class FrameOrderBonus:
    """T-GRPO: a bonus for right answers where frames in order help more than shuffled ones.

    The data holds each video twice, with frames in order and shuffled (column ``shuffled``), under one ``pair`` id:
    ``shuffled_twins: true`` beside the source makes such rows.
    Where both stand in one step and mean accuracy(in order) >= ``ratio`` * mean accuracy(shuffled), each completion
    in order whose accuracy is above ``above`` gets ``bonus``; all others 0. Put it beside the accuracy reward.

    Args:
        accuracy: The accuracy reward.
        accuracy_args: Its ``args``.
        bonus: What is added.
        ratio: How much better frames in order must do.
        above: Accuracy from which a completion gets the bonus.

    Source: Video-R1, arXiv:2503.21776, section 3.1.

    Example:
        >>> reward = FrameOrderBonus()
        >>> texts = ["<answer>3</answer>", "<answer>4</answer>", "<answer>1</answer>", "<answer>2</answer>"]
        >>> reward(texts, pair=["v"] * 4, shuffled=[False, False, True, True], answer=[3] * 4)
        [0.3, 0.0, 0.0, 0.0]
    """

    def __init__(
        self,
        accuracy: str = "clevr_counting.py:count_accuracy",
        accuracy_args: dict[str, Any] | None = None,
        bonus: float = 0.3,
        ratio: float = 0.8,
        above: float = 0.1,
    ) -> None:
        self.__name__ = "frame_order_bonus"
        self.accuracy = load_reward(accuracy, base=Path(__file__).parent, args=accuracy_args)
        self.bonus, self.ratio, self.above = bonus, ratio, above

    def __call__(
        self, completions: list[str], pair: list[Any], shuffled: list[Any], **columns: Any
    ) -> list[float | None]:
        """Give the bonus; None where a video has not both versions in this step."""
        right = call_reward(self.accuracy, completions=completions, **columns)
        scores: list[float | None] = [None] * len(completions)
        for key in dict.fromkeys(pair):
            rows = [row for row, name in enumerate(pair) if name == key and not math.isnan(right[row])]
            ordered = [row for row in rows if not shuffled[row]]
            mixed = [row for row in rows if shuffled[row]]
            if key is None or not ordered or not mixed:
                continue
            means = [sum(right[row] for row in part) / len(part) for part in (ordered, mixed)]
            for row in rows:
                earns = row in ordered and means[0] >= self.ratio * means[1] and right[row] > self.above
                scores[row] = self.bonus if earns else 0.0
        return scores
