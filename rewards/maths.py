"""Maths: answers compared as mathematics, and the graded four-part reward."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any

from mmgrpo import last_answer, last_boxed, read_truth, reward_facts, same_answer


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


def _given(text: str, mode: str) -> str | None:
    """The answer: in the tag, in the box, or (``any``) in the tag and else in the box."""
    if mode not in ("tag", "boxed", "any"):
        raise ValueError(f"mode {mode!r} is not one of tag, boxed, any")
    tag = last_answer(text) if mode != "boxed" else None
    return tag if tag is not None or mode == "tag" else last_boxed(text)


@reward_facts(low=0.0, high=1.0, pure=True, extra="math", timeout_seconds=120.0)
def math_accuracy(
    completions: list[str],
    answer: list[Any],
    log_metric: Callable[[str, float], None] = _nowhere,
    mode: str = "any",
) -> list[float | None]:
    r"""1 where the answer equals the truth, as text or as mathematics (``1/2``, ``0.5``, ``\frac12``), else 0.

    The answer is read strictly: the last ``<answer>``, else the last closed ``\boxed{…}``, behind the reasoning. From
    a YAML it runs in a worker process, where ``math-verify``'s limit of 5 s per comparison works; called directly in
    a thread it gives the same values without that limit. ``math_accuracy/parse_failure`` and ``/errors`` are logged.

    Args:
        completions: What the policy wrote.
        answer: The truth, plain or as ``<answer>…</answer>`` or ``\boxed{…}``; None: does not apply.
        log_metric: Given by the run.
        mode: Where the answer stands: ``tag``, ``boxed``, or ``any`` of the two.

    Returns:
        0 or 1; None where there is no truth, or it is neither equal as text nor readable as mathematics.

    Source: the task of Math-Verify (github.com/huggingface/Math-Verify), which compares.

    Example:
        >>> math_accuracy([r"\boxed{\frac{1}{2}}", r"\boxed{\frac{1}{3}}", r"\boxed{4"], [r"\frac{1}{2}"] * 3)
        [1.0, 0.0, 0.0]
    """
    verifier = _Verifier()
    given = [_given(text, mode) for text in completions]
    scores = [
        None if truth is None else verifier.equal(text, read_truth(truth))
        for text, truth in zip(given, answer, strict=True)
    ]
    total = max(len(given), 1)
    log_metric("math_accuracy/parse_failure", sum(text is None for text in given) / total)
    log_metric("math_accuracy/errors", verifier.errors / total)
    return scores


class _Verifier:
    """Compares two answers; errors of the comparison are counted, not hidden."""

    def __init__(self) -> None:
        self.errors = 0
        # Its limits are signals, which exist only in the main thread.
        self.limit = 5 if threading.current_thread() is threading.main_thread() else None

    def equal(self, given: str | None, truth: Any) -> float | None:
        if given is not None and same_answer(given, truth):
            return 1.0
        gold = self._parse(str(truth))
        if not gold:
            return None if given is not None else 0.0
        return 0.0 if given is None else self._verified(gold, given)

    def _verified(self, gold: list[Any], given: str) -> float:
        import math_verify

        parsed = self._parse(given)
        try:
            return float(
                bool(parsed) and math_verify.verify(gold, parsed, timeout_seconds=self.limit, raise_on_error=True)
            )
        except Exception:  # a strange completion may break the algebra in any way: it is counted, and not right
            self.errors += 1
            return 0.0

    def _parse(self, text: str) -> list[Any]:
        try:
            import math_verify
        except ImportError as error:
            raise ImportError("math_accuracy needs math-verify: pip install 'mmgrpo[math]'") from error
        if self.limit is None:  # else each comparison would log that there is no limit
            for name in ("math_verify.parser", "math_verify.grader"):
                logging.getLogger(name).setLevel(logging.ERROR)
        if len(text) > 2000:  # no answer is that long
            return []
        try:
            parsed = math_verify.parse(f"${text}$", parsing_timeout=self.limit, raise_on_error=True)
            return parsed or math_verify.parse(text, parsing_timeout=self.limit, raise_on_error=True)
        except Exception:  # as above
            self.errors += 1
            return []


_PARTS = (("理解题意", "understanding"), ("解题思路", "idea"), ("计算步骤", "calculation steps"))
_CJK = re.compile(r"[\u3400-\u9fff]")


@reward_facts(low=0.0, high=1.0, pure=True, extra="math", timeout_seconds=120.0)
def math12k_graded(completions: list[str], answer: list[Any]) -> list[float | None]:
    r"""Partial credit for the four-part form: understanding, idea, calculation steps, final answer in a box.

    r = 0.4 * right + 0.3 * (all three part names present) + 0.2 * (a ``\boxed`` present) + 0.1 * (over 50 words)

    Part names are read in Chinese (理解题意, 解题思路, 计算步骤) or in English; Chinese characters count as words.

    Args:
        completions: What the policy wrote.
        answer: The truth; None: does not apply.

    Returns:
        0 to 1.

    Source: the Math12K recipe for Qwen models (prompt of four parts, graded reward).

    Example:
        >>> math12k_graded([r"理解题意 解题思路 计算步骤 \boxed{4}", r"\boxed{5}", "4"], [4, 4, 4])
        [0.9, 0.2, 0.0]
    """
    right = math_accuracy(completions, answer, mode="boxed")
    return [
        None if value is None and truth is None else round(0.4 * (value or 0.0) + _form(text), 10)
        for value, truth, text in zip(right, answer, completions, strict=True)
    ]


def _form(text: str) -> float:
    low = text.lower()
    parts = all(any(name in low for name in names) for names in _PARTS)
    words = len(_CJK.sub(" ", text).split()) + len(_CJK.findall(text))
    return 0.3 * parts + 0.2 * (r"\boxed" in text) + 0.1 * (words > 50)
