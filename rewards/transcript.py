"""Transcripts and text in images: how far what was written is from what was spoken or printed."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo import answer_or_text, read_ground_truth, reward_facts, spoken_text

_LONGEST = 10_000


def _compared(completions: list[str], answer: list[Any], closeness: Callable[[str, str], float]) -> list[float | None]:
    """The closeness of each completion's answer to its ground truth; None where there is none."""
    ground_truths = [read_ground_truth(value) for value in answer]
    return [
        None if ground_truth is None else closeness(answer_or_text(text)[:_LONGEST], str(ground_truth))
        for text, ground_truth in zip(completions, ground_truths, strict=True)
    ]


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


def _closeness(written: Sequence[str], ground_truth: Sequence[str]) -> float:
    """1 - distance / length of the ground truth, not below 0."""
    if not ground_truth:
        return float(not written)
    return 1.0 - _distance(written, ground_truth, len(ground_truth)) / len(ground_truth)


@reward_facts(low=0.0, high=1.0)
def word_error(completions: list[str], answer: list[Any]) -> list[float | None]:
    """One minus the word error rate, not below 0: for speech recognition.

    r = max(0, 1 - (substitutions + insertions + deletions) / words of the ground truth)

    Upper and lower case, punctuation and typographic variants (curly quotes, full-width letters) do not matter; vowel
    signs, tone marks and accents do.

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The transcript; None or an empty text: does not apply.

    Returns:
        0 to 1.

    Source: the word error rate; equal to ``1 - jiwer.wer`` on the same plain texts.

    Example:
        >>> word_error(["Ask not, what your country", "no"], ["ask not what your country", "ask not"])
        [1.0, 0.0]
    """
    return _compared(completions, answer, lambda a, b: _closeness(spoken_text(a).split(), spoken_text(b).split()))


@reward_facts(low=0.0, high=1.0)
def character_error(completions: list[str], answer: list[Any]) -> list[float | None]:
    """One minus the character error rate, not below 0: as ``word_error``, for languages without spaces.

    Args:
        completions: What the policy wrote.
        answer: The transcript; None or an empty text: does not apply.

    Returns:
        0 to 1.

    Source: the character error rate; spaces do not count.

    Example:
        >>> character_error(["你好世", "hallo"], ["你好世界", "hello"])
        [0.75, 0.8]
    """
    return _compared(
        completions,
        answer,
        lambda a, b: _closeness(spoken_text(a).replace(" ", ""), spoken_text(b).replace(" ", "")),
    )


@reward_facts(low=0.0, high=1.0)
def ocr_distance(completions: list[str], answer: list[Any]) -> list[float | None]:
    """Closeness of text read from an image: case and punctuation matter, white space is collapsed.

    r = 1 - edit distance / length of the longer text

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The printed text; None or an empty text: does not apply.

    Returns:
        0 to 1.

    Source: normalised Levenshtein similarity (ANLS without its threshold, arXiv:1907.00490).

    Example:
        >>> ocr_distance(["<answer>STOP</answer>", "<answer>SHOP</answer>"], ["STOP", "STOP"])
        [1.0, 0.75]
    """
    return _compared(completions, answer, _similarity)


def _similarity(written: str, ground_truth: str) -> float:
    a, b = (" ".join(unicodedata.normalize("NFC", text).split()) for text in (written, ground_truth))
    longest = max(len(a), len(b))
    if not longest:
        return 1.0
    if len(a) > 10 * len(b) + 100:  # far too long: the few shared letters are not worth the time
        return 0.0
    return 1.0 - _distance(a, b, longest) / longest
