"""Maths: answers compared as mathematics, and the graded four-part reward."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from mmgrpo import read_answer, read_ground_truth, reward_facts, same_answer

_LONGEST = 2000
_TOWER = re.compile(r"\^[\s{(]*-?(\d+)[\s})]*\^[\s{(]*-?(\d+)(?!\s*\d)[\s})]*(\^)?")
_POWER = re.compile(r"(?:\d|[})])\s*\^[\s{(]*-?(\d+)")
_FACTORIAL = re.compile(r"(?:\d{5,}|[)}!])\s*!")


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


@reward_facts(low=0.0, high=1.0, pure=True, extra="math", timeout_seconds=120.0)
def math_accuracy(
    completions: list[str],
    answer: list[Any],
    log_metric: Callable[[str, float], None] = _nowhere,
    mode: str = "any",
) -> list[float | None]:
    r"""1 where the answer equals the ground truth, as text or as mathematics (``1/2``, ``0.5``, ``\frac12``), else 0.

    The answer is read strictly: the last ``<answer>``, else the last closed ``\boxed{…}``, behind the reasoning. From
    a YAML it runs in a worker process, where ``math-verify``'s limit of 5 s per comparison works; called directly in
    a thread it gives the same values without that limit. Numbers that no computer writes out (``9^{9^{9}}``) and
    comparisons that break or take too long earn 0. ``math_accuracy/parse_failure`` and ``/errors`` are logged.

    Args:
        completions: What the policy wrote.
        answer: The ground truth, plain or as ``<answer>…</answer>`` or ``\boxed{…}``; None or an empty text: does not
            apply. One that is no mathematics is compared as text.
        log_metric: Given by the run.
        mode: Where the answer stands: ``tag``, ``boxed``, ``any`` of the two, or ``last_number``.

    Returns:
        0 or 1; None where there is no ground truth.

    Source: the task of Math-Verify (github.com/huggingface/Math-Verify), which compares.

    Example:
        >>> math_accuracy([r"\boxed{\frac{1}{2}}", r"\boxed{\frac{1}{3}}", r"\boxed{4"], [r"\frac{1}{2}"] * 3)
        [1.0, 0.0, 0.0]
    """
    verifier = Verifier()
    answers = [read_answer(text, mode) for text in completions]
    ground_truths = [read_ground_truth(value) for value in answer]
    scores = [
        None if ground_truth is None else float(written is not None and verifier.equal(written, ground_truth))
        for written, ground_truth in zip(answers, ground_truths, strict=True)
    ]
    total = max(len(answers), 1)
    log_metric("math_accuracy/parse_failure", sum(text is None for text in answers) / total)
    log_metric("math_accuracy/errors", verifier.errors / total)
    return scores


class Verifier:
    """Compares answers by math-verify; errors of the comparison are counted, not hidden, and mean "not equal"."""

    def __init__(self) -> None:
        self.errors = 0
        """Comparisons that broke, took too long, or were of numbers too large to be written out."""
        self._broke = False
        self._seconds = 0.0
        # math-verify's limits are signals, which exist only in the main thread.
        self._has_limits = threading.current_thread() is threading.main_thread()

    def equal(self, answer: str, ground_truth: Any) -> bool:
        """Whether an answer equals a ground truth, as text or as mathematics."""
        if same_answer(answer, ground_truth):
            return True
        true_value = self._parse(str(ground_truth))
        equal = bool(true_value) and self._verified(true_value, self._parse(answer))
        self.errors, self._broke = self.errors + self._broke, False
        return equal

    def equal_as_read(self, text: str, ground_truth: str) -> bool:
        """Whether what math-verify itself finds in two whole texts is equal."""
        parsed = [self._guarded("parse", part) or [] for part in (text, ground_truth)]
        return self._verified(parsed[1], parsed[0])

    def _parse(self, text: str) -> list[Any]:
        return self._guarded("parse", f"${text}$") or self._guarded("parse", text) or []

    def _verified(self, true_value: list[Any], value: list[Any]) -> bool:
        return bool(true_value and value and self._guarded("verify", true_value, value))

    def _guarded(self, name: str, *arguments: Any) -> Any:
        """One call of math-verify within the limits; None where it breaks, as algebra may in any way."""
        try:
            import math_verify
        except ImportError as error:
            raise ImportError("math_accuracy needs math-verify: pip install 'mmgrpo[math]'") from error
        if name == "parse" and (len(arguments[0]) > _LONGEST or _too_large(arguments[0])):
            self._broke = self._broke or len(arguments[0]) <= _LONGEST
            return None
        limit = None
        if self._has_limits:  # a few hard comparisons may take long; a whole group of them may not
            limit = 5 if self._seconds < 20 else 1
        else:  # else each comparison would log that there is no limit
            for part in ("math_verify.parser", "math_verify.grader"):
                logging.getLogger(part).setLevel(logging.ERROR)
        key = "parsing_timeout" if name == "parse" else "timeout_seconds"
        start = time.monotonic()
        try:
            return getattr(math_verify, name)(*arguments, **{key: limit}, raise_on_error=True)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # its timeout is no Exception
            self._broke = True
            return None
        finally:
            self._seconds += time.monotonic() - start


def _too_large(text: str) -> bool:
    """Whether a text has a power or a factorial too large to be written out: no ground truth is one."""
    text = text.replace("**", "^")
    if any(match.group(3) or max(int(match.group(i)[:9]) for i in (1, 2)) > 5 for match in _TOWER.finditer(text)):
        return True
    size = 1
    for match in _POWER.finditer(text):
        size *= max(1, int(match.group(1)[:9]))
        if size > 10**5:
            return True
    return bool(_FACTORIAL.search(text)) or bool(re.search(r"\d{1000}", text))


_PARTS = (("理解题意", "understanding"), ("解题思路", "idea"), ("计算步骤", "calculation steps"))
_CJK = re.compile(r"[\u3400-\u9fff]")


@reward_facts(low=0.0, high=1.0, pure=True, extra="math", timeout_seconds=120.0)
def math12k_graded(completions: list[str], answer: list[Any]) -> list[float | None]:
    r"""Partial credit for the four-part form: understanding, idea, calculation steps, final answer in a box.

    r = 0.4 * right + 0.3 * (all three part names present) + 0.2 * (a ``\boxed`` present) + 0.1 * (over 50 words)

    Part names are read in Chinese (理解题意, 解题思路, 计算步骤) or in English; Chinese characters count as words.

    Args:
        completions: What the policy wrote.
        answer: The ground truth; None or an empty text: does not apply.

    Returns:
        0 to 1.

    Source: the Math12K recipe for Qwen models (prompt of four parts, graded reward).

    Example:
        >>> math12k_graded([r"理解题意 解题思路 计算步骤 \boxed{4}", r"\boxed{5}", "4"], [4, 4, 4])
        [0.9, 0.2, 0.0]
    """
    right = math_accuracy(completions, answer, mode="boxed")
    return [
        None if value is None else round(0.4 * value + _form(text), 10)
        for value, text in zip(right, completions, strict=True)
    ]


def _form(text: str) -> float:
    low = text.lower()
    parts = all(any(name in low for name in names) for names in _PARTS)
    words = len(_CJK.sub(" ", text).split()) + len(_CJK.findall(text))
    return 0.3 * parts + 0.2 * (r"\boxed" in text) + 0.1 * (words > 50)


math12k_graded.answer_mode = "boxed"  # pyright: ignore[reportFunctionMemberAccess]
