"""Repetition: a penalty for saying the same again."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo import reward_facts


@reward_facts(low=-1.0, high=0.0)
def repetition(
    completions: list[str],
    completion_ids: list[list[int]],
    ngram: int = 3,
    max_penalty: float = -1.0,
    of: str = "words",
) -> list[float]:
    """Punish by the fraction of n-grams that were there before.

    r = max_penalty * (1 - different n-grams / all n-grams)

    Args:
        completions: What the policy wrote.
        completion_ids: Its tokens.
        ngram: Length of a piece.
        max_penalty: Reward of endless repetition.
        of: ``words`` (lower case, split at white space, as ms-swift) or ``tokens`` (as TRL; for languages without
            spaces).

    Returns:
        ``max_penalty`` to 0; 0 for completions shorter than one piece.

    Source: "Demystifying Long Chain-of-Thought Reasoning", arXiv:2502.03373, appendix C.2.

    Example:
        >>> repetition(["one two three four", "so so so so so"], [[1, 2, 3, 4], [5] * 5], ngram=2)
        [0.0, -0.75]
    """
    if of not in ("words", "tokens") or ngram < 1 or max_penalty > 0:
        raise ValueError("repetition wants of: words or tokens, ngram of at least 1 and max_penalty of at most 0")
    pieces: list[Sequence[object]] = (
        [text.lower().split() for text in completions] if of == "words" else list(completion_ids)
    )
    return [_repeated(items, ngram) * max_penalty or 0.0 for items in pieces]


def _repeated(items: Sequence[object], ngram: int) -> float:
    """The fraction of n-grams that repeat an earlier one."""
    grams = list(zip(*(items[start:] for start in range(ngram)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
