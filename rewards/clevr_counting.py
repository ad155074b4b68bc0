"""Counting: the number in the last <answer> tag against the number of objects."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection
from typing import Any

from mmgrpo import read_answer, read_truth, reward_facts, to_number


def _truth(value: Any, numerals: Collection[str]) -> float:
    number = to_number(read_truth(value), numerals)
    if number is None:
        raise ValueError(f"the truth {value!r} is not a number; give counting rewards rows with a number as answer")
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
    number; ``3 or 4`` and ``about 3`` are none. The share of completions without a readable number is logged as
    ``parse_failure/count_accuracy``.

    Args:
        completions: What the policy wrote.
        answer: The true number: ``3``, ``"3"``, ``"3.0"`` or ``"<answer> 3 </answer>"``; None: does not apply.
        log_metric: Given by the run.
        mode: Where the answer stands: ``tag``, ``boxed``, or ``last_number`` (guesses; see the docs).
        numerals: Also read ``words``, ``zh`` or ``fullwidth`` numbers.

    Returns:
        0 or 1.

    Raises:
        ValueError: A truth is not a number.

    Source: the counting task of R1-V (github.com/Deep-Agent/R1-V), read strictly.

    Example:
        >>> count_accuracy(["<think>2 + 1</think><answer>3</answer>", "There are 3."], ["<answer> 3 </answer>", 3])
        [1.0, 0.0]
    """
    counts = _counts(completions, mode, numerals, "count_accuracy", log_metric)
    return [
        None if truth is None else float(count is not None and count == _truth(truth, numerals))
        for count, truth in zip(counts, answer, strict=True)
    ]


@reward_facts(low=0.0, high=1.0)
def soft_count(
    completions: list[str],
    answer: list[Any],
    log_metric: Callable[[str, float], None] = _nowhere,
    mode: str = "tag",
    numerals: Collection[str] = (),
) -> list[float | None]:
    """Partial credit by distance, for numbers too large to be hit exactly.

    r = max(0, 1 - |count - truth| / max(|truth|, 1))

    Args:
        completions: What the policy wrote.
        answer: The true number, as in ``count_accuracy``.
        log_metric: Given by the run; ``parse_failure/soft_count`` is logged.
        mode: Where the answer stands: ``tag``, ``boxed`` or ``last_number``.
        numerals: Also read ``words``, ``zh`` or ``fullwidth`` numbers.

    Returns:
        0 to 1; 0 where no number can be read.

    Raises:
        ValueError: A truth is not a number.

    Source: asked for in github.com/Deep-Agent/R1-V/issues/7.

    Example:
        >>> soft_count([f"<answer>{n}</answer>" for n in (98, 100, 300)] + ["many"], [100] * 4)
        [0.98, 1.0, 0.0, 0.0]
    """
    counts = _counts(completions, mode, numerals, "soft_count", log_metric)
    scores: list[float | None] = []
    for count, given in zip(counts, answer, strict=True):
        if given is None or count is None:
            scores.append(None if given is None else 0.0)
            continue
        truth = _truth(given, numerals)
        scores.append(max(0.0, 1.0 - abs(count - truth) / max(abs(truth), 1.0)))
    return scores


@reward_facts(low=0.0, high=1.0)
def r1v_accuracy(completions: list[str], solution: list[Any], verify: bool = True) -> list[float]:
    """R1-V's own accuracy rule, to compare with published runs: it also credits numbers outside the tag.

    First, where ``math-verify`` is installed (extra ``math``), the whole completion is parsed and compared with the
    parsed solution. Then the text of the first ``<answer>`` (on one line), or the whole text, is compared letter by
    letter. Without ``math-verify`` only the second half of the rule applies: install it to compare numbers with R1-V.

    Args:
        completions: What the policy wrote.
        solution: The truth as R1-V's data has it, ``"<answer> 3 </answer>"``.
        verify: False leaves ``math-verify`` out even where it is installed.

    Returns:
        0 or 1.

    Source: ``accuracy_reward`` of R1-V (github.com/Deep-Agent/R1-V, src/r1-v/src/open_r1/grpo.py).

    Example:
        >>> r1v_accuracy(["<answer>3</answer>", "<answer>4</answer>"], ["<answer> 3 </answer>"] * 2, verify=False)
        [1.0, 0.0]
    """
    return [
        float((verify and _math_verified(text, truth)) or _tag_text(text) == _tag_text(truth))
        for text, truth in zip(completions, map(str, solution), strict=True)
    ]


def _tag_text(text: str) -> str:
    match = re.search(r"<answer>(.*?)</answer>", text)
    return (match.group(1) if match else text).strip()


def _math_verified(text: str, truth: str) -> bool:
    try:
        import math_verify
    except ImportError:
        return False
    # Its own time limits use signals, which only work in the main thread.
    limit = 5 if threading.current_thread() is threading.main_thread() else None
    try:
        parsed, gold = (math_verify.parse(t, parsing_timeout=limit) for t in (text, truth))
        return bool(math_verify.verify(parsed, gold, timeout_seconds=limit))
    except Exception:  # R1-V goes on to the letters whatever the parser raises
        return False
