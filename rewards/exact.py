"""The answer, word for word: for short answers that are words, numbers or both."""

from __future__ import annotations

from typing import Any

from mmgrpo import read_answer, read_ground_truth, reward_facts, same_answer


@reward_facts(low=0.0, high=1.0, pure=True)
def exact_answer(completions: list[str], answer: list[Any], mode: str = "tag") -> list[float | None]:
    """1 where the answer is the ground truth after the same normalising, else 0.

    Case and surrounding space do not matter, and numbers are compared as numbers (``3`` is ``3.0``), with their units
    where both have one. Nothing outside the answer counts.

    Args:
        completions: What the policy wrote.
        answer: The ground truth, as text or number; None or an empty text: does not apply.
        mode: Where the answer stands: ``tag``, ``boxed``, ``any`` of the two, or ``last_number``.

    Returns:
        0 or 1; None where there is no ground truth.

    Source: exact match after normalising, as SQuAD scores short answers (arXiv:1606.05250, section 6).

    Example:
        >>> exact_answer(["<answer>Red</answer>", "<answer>blue</answer>", "red"], ["red", "red", "red"])
        [1.0, 0.0, 0.0]
    """
    answers = [read_answer(text, mode) for text in completions]
    ground_truths = [read_ground_truth(value) for value in answer]
    return [
        None if ground_truth is None else float(written is not None and same_answer(written, ground_truth))
        for written, ground_truth in zip(answers, ground_truths, strict=True)
    ]
