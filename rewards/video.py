"""Video and mixed tasks: moments in time, regression, the rule by problem type, and a bonus for frame order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmgrpo import call_reward, last_answer, load_plugin, load_reward, read_ground_truth, reward_facts, to_number

_UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_TIME = r"(-?)(?:([0-9]{1,6}):)?(?:([0-9]{1,6}):)?([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_WORD = r"\s*(h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)?\b\.?"
_SPAN = re.compile(
    rf"(?<![\w.:]){_TIME}{_WORD}\s*(?:to|and|until|till|through|,|[-~\u2010-\u2015\u2212])\s*{_TIME}{_WORD}",
    re.IGNORECASE,
)


def _spans(value: Any) -> list[tuple[float, float]]:
    """Moments as start and end in seconds: text (``2.5 to 7``, ``0:05 - 1:30``), a pair, or a list of pairs."""
    if isinstance(value, str):
        pairs = [_pair(match.groups()) for match in _SPAN.finditer(value)]
    elif isinstance(value, dict):
        pairs = [(_seconds(value.get("start")), _seconds(value.get("end")))]
    elif (len(value) == 2 and not isinstance(value[0], Sequence | dict)) or (
        len(value) == 2 and all(isinstance(end, str) and not _SPAN.search(end) for end in value)
    ):
        pairs = [(_seconds(value[0]), _seconds(value[1]))]
    else:
        return [span for item in value for span in _spans(item)]
    return [(a, b) for a, b in pairs if a < b]


def _pair(fields: tuple[str | None, ...]) -> tuple[float, float]:
    """Start and end of one match; a start without a unit has that of the end (``2 to 3 minutes``)."""
    start, end = fields[:5], fields[5:]
    if start[4] is None and start[1] is None:
        start = (*start[:4], end[4])
    return _clock(start), _clock(end)


def _clock(fields: tuple[str | None, ...]) -> float:
    sign, first, second, last, unit = fields
    steps = [float(step) for step in (first, second) if step is not None]
    seconds = float(last or 0)
    for power, step in enumerate(reversed(steps), 1):
        seconds += step * 60**power
    if not steps and unit:
        seconds *= _UNIT_SECONDS[unit[0].lower()]
    return -seconds if sign else seconds


def _seconds(value: Any) -> float:
    """One point in time: a number, or text (``0:05``, ``2 s``)."""
    if isinstance(value, str):
        match = re.fullmatch(_TIME + _WORD, value.strip(), re.IGNORECASE)
        return _clock(match.groups()) if match else math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


@reward_facts(low=0.0, high=1.0)
def temporal_iou(
    completions: list[str], answer: list[Any], duration_seconds: list[float | None] | None = None
) -> list[float | None]:
    """Overlap in time of the moments that the answer names with the true ones.

    r = seconds in both / seconds in either; with ``duration_seconds`` also times
    (1 - |start - true start| / duration) * (1 - |end - true end| / duration)

    Args:
        completions: What the policy wrote: ``2.5 to 7``, ``0:05 - 1:30`` or ``2 s to 1 min`` (or several such) in the
            last ``<answer>``.
        answer: The true moment: ``[2.5, 7]``, ``{"start": 2.5, "end": 7}``, a list of moments, or text; None or an
            empty text: does not apply.
        duration_seconds: Length of each video, for the stricter form; None: unknown.

    Returns:
        0 to 1.

    Source: Time-R1, arXiv:2503.13377, section 3.2; intervals are merged first, as in VideoChat-R1.

    Example:
        >>> temporal_iou(["<answer>2 to 6</answer>", "<answer>never</answer>"], [[4, 8], [4, 8]])
        [0.3333333333333333, 0.0]
    """
    lengths = duration_seconds if duration_seconds is not None else [None] * len(completions)
    scores: list[float | None] = []
    for text, value, length in zip(completions, answer, lengths, strict=True):
        ground_truth, seconds = read_ground_truth(value), read_ground_truth(length)
        if ground_truth is None:
            scores.append(None)
            continue
        true, spans = _merged(_spans_or_none(ground_truth)), _merged(_spans(last_answer(text) or ""))
        if not true:
            raise ValueError(f"the ground truth {value!r:.80} is no moment: write [start, end] in seconds")
        if seconds is not None and not _seconds(seconds) > 0:
            raise ValueError(f"duration_seconds {length!r:.80} is not the length of a video; leave it empty")
        scores.append(_overlap(spans, true) * _closeness(spans, true, None if seconds is None else _seconds(seconds)))
    return scores


def _spans_or_none(ground_truth: Any) -> list[tuple[float, float]]:
    try:
        return _spans(ground_truth)
    except (TypeError, ValueError, OverflowError):
        return []


def _overlap(spans: list[tuple[float, float]], true: list[tuple[float, float]]) -> float:
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in spans for b in true)
    either = sum(end - start for start, end in [*spans, *true]) - both
    return both / either


def _closeness(spans: list[tuple[float, float]], true: list[tuple[float, float]], length: float | None) -> float:
    if length is None or not spans:
        return 1.0
    start, end = abs(spans[0][0] - true[0][0]), abs(spans[-1][1] - true[-1][1])
    return max(0.0, 1 - start / length) * max(0.0, 1 - end / length)


@reward_facts(low=0.0, high=1.0)
def regression(completions: list[str], answer: list[Any]) -> list[float | None]:
    """Closeness of a number to the true one, relative to it.

    r = 1 - min(1, |number - true number| / |true number|)

    Args:
        completions: What the policy wrote: a number in the last ``<answer>``.
        answer: The true number; None or an empty text: does not apply.

    Returns:
        0 to 1; a true number of 0 must be hit exactly.

    Source: the regression rule of Video-R1 (arXiv:2503.21776).

    Example:
        >>> regression(["<answer>9</answer>", "<answer>0</answer>", "9"], [10, 0, 10])
        [0.9, 1.0, 0.0]
    """
    scores: list[float | None] = []
    for text, value in zip(completions, answer, strict=True):
        ground_truth = read_ground_truth(value)
        true = None if ground_truth is None else to_number(ground_truth)
        if ground_truth is not None and true is None:
            raise ValueError(f"the ground truth {value!r:.80} is not a number")
        number = to_number(last_answer(text) or "")
        if true is None or number is None:
            scores.append(None if true is None else 0.0)
        else:
            scores.append(1.0 - min(1.0, abs(number - true) / abs(true)) if true else float(number == 0))
    return scores


@reward_facts(low=0.0, high=1.0)
def video_r1(completions: list[str], answer: list[Any], problem_type: list[str]) -> list[float | None]:
    """Video-R1's mixed rule: each row is scored as its ``problem_type`` says.

    ``multiple choice``: the right letter; ``numerical``: equal after rounding to two places, and both or neither with
    a decimal point; ``OCR``: one minus the word error rate; ``free-form``: mean of ROUGE-1, -2 and -L;
    ``regression``: relative closeness. Answers are read strictly, from the last ``<answer>``.

    Args:
        completions: What the policy wrote.
        answer: The ground truth; None or an empty text: does not apply.
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
            raise ValueError(f"problem_type {kind!r:.80} is not one of {', '.join(rules)}")
        rows = [row for row, name in enumerate(kinds) if name == kind]
        values = rules[kind]([completions[r] for r in rows], [answer[r] for r in rows])
        for row, value in zip(rows, values, strict=True):
            has_answer = last_answer(completions[row]) is not None
            scores[row] = value if has_answer or value is None else 0.0
    return scores


def _numerical(completions: list[str], answer: list[Any]) -> list[float | None]:
    scores: list[float | None] = []
    for text, value in zip(completions, answer, strict=True):
        ground_truth = read_ground_truth(value)
        if ground_truth is None:
            scores.append(None)
            continue
        written, true_text = last_answer(text) or "", str(ground_truth)
        number, true = to_number(written), to_number(true_text)
        if true is None:
            raise ValueError(f"the ground truth {value!r:.80} is not a number")
        # A whole float is what a file makes of a whole number: only text tells how the number was written.
        same_form = not isinstance(ground_truth, str) or ("." in written) == ("." in true_text)
        scores.append(float(number is not None and same_form and _round(number) == _round(true)))
    return scores


def _round(number: float) -> float:
    return round(number, 2)


def _free_form(completions: list[str], answer: list[Any]) -> list[float | None]:
    return load_plugin("similarity.py", beside=__file__).rouge(completions, answer, kind="mean")


@reward_facts(low=0.0, high=0.3)
class FrameOrderBonus:
    """T-GRPO: a bonus for right answers where frames in order help more than shuffled ones.

    The data holds each video twice, with frames in order and shuffled (column ``shuffled``), under one ``pair`` id:
    ``shuffled_twins: true`` beside the source makes such rows.
    Where both stand in one step and mean accuracy(in order) >= ``ratio`` * mean accuracy(shuffled), each completion
    in order whose accuracy is above ``above`` gets ``bonus``; all others 0. Put it beside the accuracy reward. The
    code of Video-R1 has a ratio of 0.8, which also pays where shuffled frames do better; its author calls that a slip
    (github.com/tulerfeng/Video-R1/issues/74): ``ratio: 0.8`` gives its runs.

    Args:
        accuracy: The accuracy reward.
        accuracy_args: Its ``args``.
        bonus: What is added.
        ratio: What part of the accuracy with shuffled frames the one with frames in order must reach; 1 or more.
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
        ratio: float = 1.0,
        above: float = 0.1,
    ) -> None:
        if ratio < 0 or not math.isfinite(bonus):
            raise ValueError(f"ratio is at least 0 and bonus a number; got ratio {ratio!r}, bonus {bonus!r}")
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
