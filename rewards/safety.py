"""Safety: a gate on what is written, and a filter for pictures with a detector of yours."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmgrpo import load_reward, reward_facts

_WORDS = re.split(
    " ",
    "arsehole asshole bastard bitch bollocks bullshit cunt dickhead dumbass fag faggot fuck fucker fucking goddamn "
    "jackass moron motherfucker nigga nigger piss prick pussy retard shit slut twat wanker whore "
    "傻逼 操你 去死 他妈的 贱人 王八蛋",
)
_PHRASES = (
    "kill yourself", "go die", "how to make a bomb", "build a bomb", "how to kill", "rape", "hurt yourself",
)  # fmt: skip


@reward_facts(low=0.0, high=1.0)
def text_safety(
    completions: list[str],
    prompts: list[str],
    words: Sequence[str] = (),
    include_prompt: bool = False,
    model: str = "words",
) -> list[float]:
    """1 where a text is clean, 0 where it holds an offensive word: meant as ``role: gate``.

    total = base * safety(prompt + answer)

    Whole words count, in any case, also with letters drawn apart or replaced (``sh1t``); this is a floor, not a
    moderation system. With ``model: profanity_check`` (package alt-profanity-check) it is 1 minus the probability
    that a trained model gives.

    Args:
        completions: What the policy wrote.
        prompts: What it was asked.
        words: Further words and phrases.
        include_prompt: Also look at the prompt. It is the same for a whole group, so it cannot teach; it only takes
            the group out.
        model: ``words`` or ``profanity_check``.

    Returns:
        0 or 1 (``words``), or 0 to 1.

    Source: the safety product of the recipe, ``final = base * safety(prompt + answer)``.

    Example:
        >>> text_safety(["three red cubes", "three, you moron", "a Scunthorpe class"], prompts=[""] * 3)
        [1.0, 0.0, 1.0]
    """
    if model not in ("words", "profanity_check"):
        raise ValueError(f"model {model!r} is not one of words, profanity_check")
    before = prompts if include_prompt else [""] * len(completions)
    texts = [f"{prompt} {text}" for prompt, text in zip(before, completions, strict=True)]
    return _probability(texts) if model == "profanity_check" else _by_words(tuple(words))(texts)


_LOOKALIKES = str.maketrans("013457@$!", "oieastasi")


@functools.lru_cache
def _by_words(further: tuple[str, ...]) -> Callable[[list[str]], list[float]]:
    words = [*_WORDS, *_PHRASES, *further]
    latin = sorted({w.lower() for w in words if w.isascii()}, key=len, reverse=True)
    other = [w for w in words if not w.isascii()]
    whole = rf"(?<![a-z])(?:{'|'.join(map(re.escape, latin))})(?:s|es|ed|ing)?(?![a-z])"
    pattern = re.compile("|".join([whole, *map(re.escape, other)]))
    spaced = re.compile(r"(?<![a-z])(?:[a-z][\s.*_-]){3,20}[a-z](?![a-z])")

    def score(texts: list[str]) -> list[float]:
        return [float(not any(pattern.search(form) for form in _forms(text.lower(), spaced))) for text in texts]

    return score


def _forms(text: str, spaced: re.Pattern[str]) -> list[str]:
    """The text, the text with look-alike signs as letters, and its words of single letters drawn together."""
    letters = text.translate(_LOOKALIKES)
    return [text, letters, *(re.sub(r"[^a-z]", "", run.group()) for run in spaced.finditer(letters))]


def _probability(texts: list[str]) -> list[float]:
    try:
        from profanity_check import predict_prob
    except ImportError as error:
        raise ImportError("model: profanity_check needs pip install alt-profanity-check") from error
    return [1.0 - float(p) for p in predict_prob(texts)]


@reward_facts(low=0.0, high=1.0)
class PictureSafety:
    """1 where a detector of yours finds every picture of the row safe, else 0.

    All completions of a prompt share its pictures, so as a reward this cancels inside each group: use ``keep`` to
    filter rows, or ``role: gate`` on pictures that completions draw.

    Args:
        detector: ``path.py:name`` of a function ``f(image) -> probability that it is unsafe``, or such a function.
        threshold: Pictures below this probability are safe.

    Source: the picture filter of the recipe; no detector is shipped.

    Example:
        >>> PictureSafety(detector=lambda image: 0.9).keep(["a picture"])
        False
    """

    def __init__(self, detector: str | Callable[[Any], float], threshold: float = 0.5) -> None:
        self.__name__ = "picture_safety"
        self.threshold = threshold
        self.detector = (
            load_reward(detector, base=Path.cwd(), style="native").function if isinstance(detector, str) else detector
        )

    def keep(self, images: Sequence[Any]) -> bool:
        """Whether a row with these pictures may stay in the data."""
        return all(self.detector(image) < self.threshold for image in images)

    def __call__(self, completions: list[str], images: list[list[Any]]) -> list[float]:
        """Score the pictures of each row, each picture once."""
        known: dict[int, bool] = {}
        for row in images:
            for image in row:
                if id(image) not in known:
                    known[id(image)] = self.detector(image) < self.threshold
        return [float(all(known[id(image)] for image in row)) for row in images]
