"""Language consistency: stay in the language that was asked for."""

from __future__ import annotations

import re

from mmgrpo import reward_facts

_SCRIPTS = {
    "latin": r"A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a",
    "chinese": r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f\u3005-\u3007",
    "japanese": r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff66-\uff9f\u3005-\u3007",
    "korean": r"\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "cyrillic": r"\u0400-\u052f",
    "arabic": r"\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff",
    "devanagari": r"\u0900-\u097f\ua8e0-\ua8ff",
    "thai": r"\u0e00-\u0e7f",
    "greek": r"\u0370-\u03ff\u1f00-\u1fff",
}
_TAG = re.compile(r"</?\w{1,40}>|\\\w+")


@reward_facts(low=0.0, high=1.0)
def language_consistency(completions: list[str], script: str = "latin") -> list[float]:
    r"""The fraction of letters that are of the wanted script.

    Tags (``<think>``), LaTeX commands (``\boxed``), digits and superscripts do not count; a completion without
    letters has nothing in a wrong script and earns 1.

    Args:
        completions: What the policy wrote.
        script: latin, chinese, japanese, korean, cyrillic, arabic, devanagari, thai or greek.

    Returns:
        0 to 1.

    Source: DeepSeek-R1, arXiv:2501.12948, section 2.3.2 (there: the fraction of words).

    Example:
        >>> language_consistency(["three 三个", "<think>3</think>", "三个"])
        [0.7142857142857143, 1.0, 0.0]
    """
    if script not in _SCRIPTS:
        raise ValueError(f"script {script!r} is not one of {', '.join(_SCRIPTS)}")
    wanted = re.compile(f"[{_SCRIPTS[script]}]")
    scores: list[float] = []
    for text in completions:
        letters = [c for c in _TAG.sub(" ", text) if c.isalpha()]  # superscripts are of no script
        scores.append(sum(1 for letter in letters if wanted.match(letter)) / len(letters) if letters else 1.0)
    return scores
