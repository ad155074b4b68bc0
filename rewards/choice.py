"""Multiple choice: one letter, strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo import normalise, read_answer, read_truth, reward_facts

_LETTER = re.compile(r"(?:[(\[]\s*([A-Za-z])\s*[)\]]|([A-Za-z])(?=\s*[.):,]|\s*\Z))\s*[.):,]?(.*)", re.DOTALL)


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


def _letter(text: str, options: Sequence[str] | None) -> str | None:
    """The letter of an answer: ``B``, ``(b)``, ``B. red``, or the very text of an option."""
    plain = normalise(text)
    if options is not None:
        same = [i for i, option in enumerate(options) if normalise(option).casefold() == plain.casefold()]
        if len(same) == 1 and len(plain) > 1:
            return chr(ord("A") + same[0])
    match = _LETTER.match(plain)
    if match is None or re.search(r"\b[B-HJ-Z]\b", match.group(3)):  # a second letter: "B, C" is no single choice
        return None
    return (match.group(1) or match.group(2)).upper()


@reward_facts(low=0.0, high=1.0)
def choice_accuracy(
    completions: list[str],
    answer: list[Any],
    options: list[Sequence[str] | None] | None = None,
    log_metric: Callable[[str, float], None] = _nowhere,
    mode: str = "tag",
) -> list[float | None]:
    """1 where the answer is the right letter (or the right option's own text), else 0.

    ``B``, ``(b)``, ``B.``, ``B) a red cube`` are the letter B; ``A or B`` and ``B, C`` are none. The share of
    completions without a letter is logged as ``parse_failure/choice_accuracy``.

    Args:
        completions: What the policy wrote.
        answer: The right letter, or the right option's text; None: does not apply.
        options: The options of each row, first is A; only needed to accept their texts.
        log_metric: Given by the run.
        mode: Where the answer stands: ``tag``, ``boxed``.

    Returns:
        0 or 1.

    Source: the multiple-choice rule of Video-R1 (arXiv:2503.21776), read strictly.

    Example:
        >>> choice_accuracy(["<answer>(b)</answer>", "<answer>B or C</answer>", "B"], ["B", "B", "B"])
        [1.0, 0.0, 0.0]
    """
    rows = options if options is not None else [None] * len(completions)
    scores: list[float | None] = []
    failures = 0
    for text, truth, row in zip(completions, answer, rows, strict=True):
        if truth is None:
            scores.append(None)
            continue
        given = read_answer(text, mode)
        letter = None if given is None else _letter(given, row)
        failures += letter is None
        right = _letter(str(read_truth(truth)), row)
        if right is None:
            raise ValueError(f"the truth {truth!r} is neither a letter nor one of the options")
        scores.append(float(letter == right))
    log_metric("parse_failure/choice_accuracy", failures / max(len(completions), 1))
    return scores
