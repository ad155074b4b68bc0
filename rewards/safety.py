"""Safety: a gate on what is written, and a filter for images with a detector of yours."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmgrpo import load_reward, reward_facts


def _listed(text: str) -> list[str]:
    return text.split()


_WORDS = _listed(
    """
    arsehole asshole bastard bitch bollocks bullshit cunt dickhead dumbass fag faggot fuck fucker fucking goddamn
    jackass moron motherfucker nigga nigger piss prick pussy retard shit slut twat wanker whore
    """
)
_PHRASES = (
    "kill yourself", "go die", "how to make a bomb", "build a bomb", "hurt yourself",
    *(f"{verb} {whom}" for verb in ("how to kill", "rape") for whom in
      _listed(
          """
          a someone somebody people him her them you me myself your my women children girls boys
          """
      )),
)  # fmt: skip
_CHINESE = ("傻逼", "操你", "去死", "他妈的", "贱人", "王八蛋")
_INNOCENT = re.compile(
    r"\b(?:en|du|le|un|au|de|sans|aucun|son|ce|ton|mon|leur|les|des|ces|quelques|petit|gros) retards?\b"
    r"|\bretards? (?:de|du|des|dans|sur|important|scolaire)\b|\bretards? d'"  # being late, in French
    r"|\bpussy ?(?:willow|cat|foot)\w*"
    r"|\bprick(?:ed|s|ing)? (?:the|a|an|your|his|her|my|up)\b|\bfag end"
    r"|(?<=[过失除出离进下上回逝老])去死|去死(?=[亡者因])|(?<=[体早])操你"  # 过去|死亡, 体操|你
)
"""Where the letters of the list mean something else."""


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

    Whole words count, in any case, also with letters drawn apart (``s h i t``) or replaced (``sh1t``); Chinese words
    count where they stand, unless their characters are parts of other words (过去死亡). This is a floor, not a
    moderation system: it knows a few dozen words of English and Chinese, no meaning and no letters borrowed from other
    scripts, and now and then an innocent sentence holds one of its words. With ``model: profanity_check`` (package
    alt-profanity-check) it is 1 minus the probability that a trained model gives.

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
        raise ValueError(f"model {model!r:.80} is not one of words, profanity_check")
    before = prompts if include_prompt else [""] * len(completions)
    texts = [f"{prompt} {text}" for prompt, text in zip(before, completions, strict=True)]
    return _probability(texts) if model == "profanity_check" else _by_words(tuple(words))(texts)


_LOOKALIKES = str.maketrans("013457@$!", "oieastasi")
_SPACED = re.compile(r"(?<![a-z])(?:[a-z][\s.*_-]{1,3}){3,40}[a-z](?![a-z])")
_SHORT = "(?:a|i|u|ur|you|are|is|am|it|its|of|the|this|that|no|so|go|to|and|or|me|my|up|off|in|on|eat|what|holy)*"


@functools.lru_cache
def _by_words(further: tuple[str, ...]) -> Callable[[list[str]], list[float]]:
    words = [word.strip().lower() for word in (*_WORDS, *_PHRASES, *_CHINESE, *further) if word.strip()]
    latin = "|".join(re.escape(w) for w in sorted({w for w in words if w.isascii()}, key=len, reverse=True))
    whole = rf"(?<![a-z])(?:{latin})(?:s|es|ed|ing)?(?![a-z])"
    other = (r"[\s*_.\-·]{0,2}".join(map(re.escape, w)) for w in words if not w.isascii())
    pattern = re.compile("|".join([whole, *other]))
    joined = re.compile(rf"{_SHORT}(?:{latin})(?:s|es|ed|ing)?{_SHORT}")

    def is_clean(text: str) -> bool:
        plain = _plain(text)
        letters = plain.translate(_LOOKALIKES)
        if any(pattern.search(_INNOCENT.sub(" ", form)) for form in (plain, letters)):
            return False
        runs = (re.sub(r"[^a-z]", "", run.group()) for run in _SPACED.finditer(letters))
        return not any(joined.fullmatch(run) for run in runs)

    return lambda texts: [float(is_clean(text)) for text in texts]


def _plain(text: str) -> str:
    """Lower case, without accents and without characters that are not seen."""
    letters = unicodedata.normalize("NFKD", text.lower())
    return unicodedata.normalize("NFC", "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Cf")))


def _probability(texts: list[str]) -> list[float]:
    try:
        from profanity_check import predict_prob
    except ImportError as error:
        raise ImportError("model: profanity_check needs pip install alt-profanity-check") from error
    return [1.0 - float(p) for p in predict_prob(texts)]


@reward_facts(low=0.0, high=1.0)
class PictureSafety:
    """1 where a detector of yours finds every image of the row safe, else 0.

    All completions of a prompt share its images, so as a reward this cancels inside each group: use ``keep`` to
    filter rows, or ``role: gate`` on images that completions draw.

    Args:
        detector: ``path.py:name`` of a function ``f(image) -> probability that it is unsafe``, or such a function.
        threshold: Images below this probability are safe.

    Source: the image filter of the recipe; no detector is shipped.

    Example:
        >>> PictureSafety(detector=lambda image: 0.9).keep(["an image"])
        False
    """

    def __init__(self, detector: str | Callable[[Any], float], threshold: float = 0.5) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is a probability; got {threshold!r}")
        self.__name__ = "picture_safety"
        self.threshold = threshold
        self.detector = (
            load_reward(detector, base=Path.cwd(), style="native").function if isinstance(detector, str) else detector
        )

    def keep(self, images: Sequence[Any]) -> bool:
        """Whether a row with these images may stay in the data."""
        return all(self.detector(image) < self.threshold for image in images)

    def __call__(self, completions: list[str], images: list[list[Any]]) -> list[float]:
        """Score the images of each row, each image once."""
        known: dict[int, bool] = {}
        for row in images:
            for image in row:
                if id(image) not in known:
                    known[id(image)] = self.detector(image) < self.threshold
        return [float(all(known[id(image)] for image in row)) for row in images]
