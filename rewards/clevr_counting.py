"""Counting: the number in the last <answer> tag against the number of objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Any

from mmgrpo import load_plugin, read_answer, read_ground_truth, reward_facts, to_number


def _ground_truth(value: Any, numerals: Collection[str]) -> float | None:
    """The true number; None where the row has none."""
    ground_truth = read_ground_truth(value)
    number = None if ground_truth is None else to_number(ground_truth, numerals)
    if ground_truth is not None and number is None:
        raise ValueError(
            f"the ground truth {value!r:.80} is not a number; give counting rewards rows with a number as answer"
        )
    return number


def _counts(
    completions: list[str], mode: str, numerals: Collection[str], name: str, log_metric: Callable[[str, float], None]
) -> list[float | None]:
    """The number that each completion gives, and how many give none as a metric."""
    numbers: list[float | None] = []
    for text in completions:
        answer = read_answer(text, mode)
        numbers.append(None if answer is None else to_number(answer, numerals))
    log_metric(f"parse_failure/{name}", sum(n is None for n in numbers) / max(len(numbers), 1))
    return numbers


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


@reward_facts(low=0.0, high=1.0)
def count_accuracy(
    completions: list[str],
    answer: list[Any],
    log_metric: Callable[[str, float], None] = _nowhere,
    mode: str = "tag",
    numerals: Collection[str] = (),
) -> list[float | None]:
    """1 where the last ``<answer>`` behind the reasoning is exactly the true number, else 0.

    Only the tag is read, never the reasoning or the text around it. ``3``, ``3.0`` and ``3 objects`` are the same
    number; ``3 or 4`` and ``about 3`` are none. The fraction of completions without a readable number is logged as
    ``parse_failure/count_accuracy``.

    Args:
        completions: What the policy wrote.
        answer: The true number: ``3``, ``"3"``, ``"3.0"`` or ``"<answer> 3 </answer>"``; None: does not apply.
        log_metric: Given by the run.
        mode: Where the answer stands: ``tag``, ``boxed``, ``any`` of the two, or ``last_number`` (it guesses).
        numerals: Also read ``words``, ``zh`` or ``fullwidth`` numbers.

    Returns:
        0 or 1.

    Raises:
        ValueError: A ground truth is not a number, or there is no such mode.

    Source: the counting task of R1-V (github.com/Deep-Agent/R1-V), read strictly.

    Example:
        >>> count_accuracy(["<think>2 + 1</think><answer>3</answer>", "There are 3."], ["<answer> 3 </answer>", 3])
        [1.0, 0.0]
    """
    counts = _counts(completions, mode, numerals, "count_accuracy", log_metric)
    true_counts = [_ground_truth(value, numerals) for value in answer]
    return [None if true is None else float(count == true) for count, true in zip(counts, true_counts, strict=True)]


@reward_facts(low=0.0, high=1.0)
def soft_count(
    completions: list[str],
    answer: list[Any],
    log_metric: Callable[[str, float], None] = _nowhere,
    mode: str = "tag",
    numerals: Collection[str] = (),
) -> list[float | None]:
    """Partial credit by distance, for numbers too large to be hit exactly.

    r = max(0, 1 - |count - true number| / max(|true number|, 1))

    Args:
        completions: What the policy wrote.
        answer: The true number, as in ``count_accuracy``.
        log_metric: Given by the run; ``parse_failure/soft_count`` is logged.
        mode: Where the answer stands: ``tag``, ``boxed``, ``any`` of the two, or ``last_number``.
        numerals: Also read ``words``, ``zh`` or ``fullwidth`` numbers.

    Returns:
        0 to 1; 0 where no number can be read.

    Raises:
        ValueError: A ground truth is not a number, or there is no such mode.

    Source: asked for in github.com/Deep-Agent/R1-V/issues/7.

    Example:
        >>> soft_count([f"<answer>{n}</answer>" for n in (98, 100, 300)] + ["many"], [100] * 4)
        [0.98, 1.0, 0.0, 0.0]
    """
    counts = _counts(completions, mode, numerals, "soft_count", log_metric)
    scores: list[float | None] = []
    for count, value in zip(counts, answer, strict=True):
        true = _ground_truth(value, numerals)
        if true is None or count is None:
            scores.append(None if true is None else 0.0)
        else:
            scores.append(max(0.0, 1.0 - abs(count - true) / max(abs(true), 1.0)))
    return scores


@reward_facts(low=0.0, high=1.0)
def r1v_accuracy(completions: list[str], solution: list[Any], verify: bool = True) -> list[float | None]:
    """R1-V's own accuracy rule, to compare with published runs: it also credits numbers outside the tag.

    First, where ``math-verify`` is installed (extra ``math``), the whole completion is parsed and compared with the
    parsed solution. Then the text of the first ``<answer>`` (on one line), or the whole text, is compared letter by
    letter. Without ``math-verify`` only the second half of the rule applies: install it to compare numbers with R1-V.

    Args:
        completions: What the policy wrote.
        solution: The ground truth as R1-V's data has it, ``"<answer> 3 </answer>"``; None: does not apply.
        verify: False leaves ``math-verify`` out even where it is installed.

    Returns:
        0 or 1.

    Source: ``accuracy_reward`` of R1-V (github.com/Deep-Agent/R1-V, src/r1-v/src/open_r1/grpo.py).

    Example:
        >>> r1v_accuracy(["<answer>3</answer>", "<answer>4</answer>"], ["<answer> 3 </answer>"] * 2, verify=False)
        [1.0, 0.0]
    """
    verifier = load_plugin("maths.py", beside=__file__).Verifier() if verify and find_spec("math_verify") else None
    scores: list[float | None] = []
    for text, value in zip(completions, solution, strict=True):
        ground_truth = read_ground_truth(value)
        if ground_truth is None:
            scores.append(None)
            continue
        true_text = value if isinstance(value, str) else str(ground_truth)
        equal = verifier is not None and verifier.equal_as_read(text, true_text)
        scores.append(float(equal or _tag_text(text) == _tag_text(true_text)))
    return scores


def _tag_text(text: str) -> str:
    match = re.search(r"<answer>(.*?)</answer>", text)
    return (match.group(1) if match else text).strip()
