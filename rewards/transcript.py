"""Transcripts and text in pictures: how far what was written is from what was said or printed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from mmgrpo import after_reasoning, last_answer, reward_facts


def _said(text: str) -> str:
    answer = last_answer(text)
    return after_reasoning(text) if answer is None else answer


def _plain(text: str) -> str:
    """Lower case, without punctuation, single spaces: what speech does not tell apart."""
    kept = (c if c.isalnum() or c in "'" else " " for c in unicodedata.normalize("NFKC", text).lower())
    return " ".join("".join(kept).split())


def _distance(a: Sequence[str], b: Sequence[str], limit: int) -> int:
    """Levenshtein distance; ``limit`` where it is at least that much."""
    if abs(len(a) - len(b)) >= limit:
        return limit
    try:
        from rapidfuzz.distance import Levenshtein  # a hundred times faster where it is installed
    except ImportError:
        return _plain_distance(a, b, limit)
    return min(Levenshtein.distance(a, b), limit)


def _plain_distance(a: Sequence[str], b: Sequence[str], limit: int) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(before + (x != y), row[j] + 1, row[j - 1] + 1)
    return min(row[-1], limit)


def _closeness(given: Sequence[str], truth: Sequence[str]) -> float:
    """1 - distance / length of the truth, not below 0."""
    if not truth:
        return float(not given)
    return 1.0 - _distance(given, truth, len(truth)) / len(truth)


@reward_facts(low=0.0, high=1.0)
def word_error(completions: list[str], answer: list[Any]) -> list[float | None]:
    """One minus the word error rate, not below 0: for speech recognition.

    r = max(0, 1 - (substitutions + insertions + deletions) / words of the truth)

    Upper and lower case and punctuation do not matter.

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The transcript; None: does not apply.

    Returns:
        0 to 1.

    Source: the word error rate; equal to ``1 - jiwer.wer`` on the same plain texts.

    Example:
        >>> word_error(["Ask not, what your country", "no"], ["ask not what your country", "ask not"])
        [1.0, 0.0]
    """
    return [
        None if truth is None else _closeness(_plain(_said(text)).split(), _plain(str(truth)).split())
        for text, truth in zip(completions, answer, strict=True)
    ]


@reward_facts(low=0.0, high=1.0)
def character_error(completions: list[str], answer: list[Any]) -> list[float | None]:
    """One minus the character error rate, not below 0: as ``word_error``, for languages without spaces.

    Args:
        completions: What the policy wrote.
        answer: The transcript; None: does not apply.

    Returns:
        0 to 1.

    Source: the character error rate; spaces do not count.

    Example:
        >>> character_error(["你好世", "hallo"], ["你好世界", "hello"])
        [0.75, 0.8]
    """
    return [
        None
        if truth is None
        else _closeness(_plain(_said(text)).replace(" ", ""), _plain(str(truth)).replace(" ", ""))
        for text, truth in zip(completions, answer, strict=True)
    ]


@reward_facts(low=0.0, high=1.0)
def ocr_distance(completions: list[str], answer: list[Any]) -> list[float | None]:
    """Closeness of text read from a picture: case and punctuation matter, white space is collapsed.

    r = 1 - edit distance / length of the longer text

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The printed text; None: does not apply.

    Returns:
        0 to 1.

    Source: normalised Levenshtein similarity (ANLS without its threshold, arXiv:1907.00490).

    Example:
        >>> ocr_distance(["<answer>STOP</answer>", "<answer>SHOP</answer>"], ["STOP", "STOP"])
        [1.0, 0.75]
    """
    return [
        None if truth is None else _similarity(_said(text), str(truth))
        for text, truth in zip(completions, answer, strict=True)
    ]


def _similarity(given: str, truth: str) -> float:
    a, b = (re.sub(r"\s+", " ", text).strip() for text in (given, truth))
    longest = max(len(a), len(b))
    if not longest:
        return 1.0
    if len(a) > 10 * len(b) + 100:  # far too long: the few shared letters are not worth the time
        return 0.0
    return 1.0 - _distance(a, b, longest) / longest
