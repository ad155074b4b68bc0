"""Multiple choice: one letter, strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo import plain_answer, read_answer, read_ground_truth, reward_facts, same_answer

_LETTER = re.compile(r"(?:[(\[]\s*([A-Za-z])\s*[)\]]|([A-Za-z])(?=\s*[.):,]|\s*\Z))\s*[.):,]?(.*)", re.DOTALL)
_SECOND = re.compile(
    r"\b[B-HJ-Z]\b(?!')"  # a capital that is a word by itself: "B, C"
    r"|\b[AI]\b\s*(?:[.,;:!?)]|\Z)"  # these two may begin a text, and end none: "B, no, A"
    r"|\A[\s.,;:/&|+()\[\]-]*(?:(?:and|or)\b)?[\s(\[]*[A-Za-z]\s*(?:[)\].,;:/&|+]|\Z)"  # next to the first: "(B)(a)"
    r"|(?:\b(?:and|or)|[,;/&|])\s*[(\[]?[A-Za-z](?:[)\].,;:]|\s*\Z)"  # at the end of a list: "B, not sure, or a"
)


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


def _choice(text: str, options: Sequence[Any] | None) -> str | None:
    """The letter of an answer: the very text of an option, or ``B``, ``(b)``, ``B. red``."""
    texts = [] if options is None else [str(option) for option in options]
    same = _matching(text, texts)
    if len(same) == 1:
        return chr(ord("A") + same[0])
    match = _LETTER.match(plain_answer(text))
    if same or match is None:
        return None
    letter, rest = (match.group(1) or match.group(2)).upper(), match.group(3).strip()
    if texts and ord(letter) - ord("A") >= len(texts):
        return None
    named = _matching(rest, texts) if rest and texts else []
    if named:  # "B. Vitamin C": right where option B says so, and contradicts itself where another does
        return letter if ord(letter) - ord("A") in named else None
    return None if _SECOND.search(rest) else letter


def _matching(text: str, options: Sequence[str]) -> list[int]:
    """Which options have this text, with or without a letter before it (``A. red``)."""
    return [
        index
        for index, option in enumerate(options)
        if same_answer(text, option)
        or same_answer(text, re.sub(rf"\A\s*[(\[]?{chr(65 + index)}[)\].:]\s*(?=\S)", "", option))
    ]


@reward_facts(low=0.0, high=1.0)
def choice_accuracy(
    completions: list[str],
    answer: list[Any],
    options: list[Sequence[Any] | None] | None = None,
    choices: list[Sequence[Any] | None] | None = None,
    log_metric: Callable[[str, float], None] = _nowhere,
    mode: str = "tag",
) -> list[float | None]:
    """1 where the answer is the right letter (or the right option's own text), else 0.

    Where the row has options, their texts go before letters. ``B``, ``(b)``, ``B.``, ``B) a red cube`` are the letter
    B; ``A or B``, ``B, A`` and ``(B)(A)`` are none, as is a letter with another option's text. The fraction of
    completions without a choice is logged as ``parse_failure/choice_accuracy``.

    Args:
        completions: What the policy wrote.
        answer: The right letter, or the right option's text; None or an empty text: does not apply.
        options: The options of each row, first is A; only needed to accept their texts.
        choices: The same, under the name that AVQA and others give the column.
        log_metric: Given by the run.
        mode: Where the answer stands: ``tag``, ``boxed``, ``any`` of the two, or ``last_number``.

    Returns:
        0 or 1.

    Source: the multiple-choice rule of Video-R1 (arXiv:2503.21776), read strictly.

    Example:
        >>> choice_accuracy(["<answer>(b)</answer>", "<answer>B or C</answer>", "B"], ["B", "B", "B"])
        [1.0, 0.0, 0.0]
    """
    rows = options if options is not None else choices if choices is not None else [None] * len(completions)
    scores: list[float | None] = []
    failures = 0
    for text, value, row in zip(completions, answer, rows, strict=True):
        ground_truth, row_options = read_ground_truth(value), read_ground_truth(row)
        if ground_truth is None:
            scores.append(None)
            continue
        if isinstance(row_options, str):
            raise ValueError(f"the options {row!r:.80} are one text; give a list of texts")
        written = read_answer(text, mode)
        letter = None if written is None else _choice(written, row_options)
        failures += letter is None
        right = _choice(str(ground_truth), row_options)
        if right is None:
            raise ValueError(f"the ground truth {value!r:.80} is neither a letter nor one of the options")
        scores.append(float(letter == right))
    log_metric("parse_failure/choice_accuracy", failures / max(len(completions), 1))
    return scores
