"""The answer, word for word: for short answers that are words, numbers or both."""

from __future__ import annotations

from typing import Any

from mmgrpo import read_answer, read_truth, reward_facts, same_answer


@reward_facts(low=0.0, high=1.0, pure=True)
def exact_answer(completions: list[str], answer: list[Any], mode: str = "tag") -> list[float | None]:
    """1 where the answer is the truth after the same normalising, else 0.

    Case and surrounding space do not matter, and numbers are compared as numbers (``3`` is ``3.0``). Nothing outside
    the answer counts.

    Args:
        completions: What the policy wrote.
        answer: The truth, as text or number; None: does not apply.
        mode: Where the answer stands: ``tag``, ``boxed`` or ``last_number``.

    Returns:
        0 or 1; None where there is no truth.

    Source: exact match after normalising, as SQuAD scores short answers (arXiv:1606.05250, section 6).

    Example:
        >>> exact_answer(["<answer>Red</answer>", "<answer>blue</answer>", "red"], ["red", "red", "red"])
        [1.0, 0.0, 0.0]
    """
    return [_judge(text, truth, mode) for text, truth in zip(completions, answer, strict=True)]


def _judge(text: str, truth: Any, mode: str) -> float | None:
    if truth is None:
        return None
    given = read_answer(text, mode)
    if given is None:
        return 0.0
    return float(same_answer(given, read_truth(truth)))
