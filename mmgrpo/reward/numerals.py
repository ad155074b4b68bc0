"""Numbers written in words, in Chinese, or with the digits of other scripts.

Pure; each function reads a whole text or returns None.
"""

from __future__ import annotations

import re
import unicodedata

NUMERALS = ("words", "zh", "fullwidth")
"""What ``numerals`` may hold: English words, Chinese numerals, digits of other scripts (fullwidth, Arabic-Indic)."""

_ONES = {
    **{"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9},
    **{"ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16},
    **{"seventeen": 17, "eighteen": 18, "nineteen": 19},
}
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_ZH_DIGITS = {**{c: i for i, c in enumerate("零一二三四五六七八九")}, "\u3007": 0, "两": 2, "兩": 2}
_ZH_UNITS = {"十": 10, "百": 100, "千": 1000}
_ZH_SCALES = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_ZH = "".join([*_ZH_DIGITS, *_ZH_UNITS, *_ZH_SCALES])
ZH_PREFIX = re.compile(f"([{_ZH}]+)([^{_ZH}0-9]*)")
"""Chinese numerals, then a measure word or noun."""


def ascii_digits(text: str) -> str:
    """Write every decimal digit, of whatever script, as 0 to 9; superscripts and the like are left alone.

    Example:
        >>> ascii_digits("７ and ٧ and ²")
        '7 and 7 and ²'
    """
    return "".join(str(digit) if (digit := unicodedata.decimal(c, None)) is not None else c for c in text)


def from_words(text: str) -> int | None:
    """Read an English number.

    Example:
        >>> from_words("two hundred and twenty-one")
        221
    """
    total = part = 0
    seen = False
    for word in re.split(r"[\s-]+", text.strip().lower()):
        if word in _ONES or word in _TENS:
            value = _ONES.get(word, _TENS.get(word, 0))
            if seen and not _fits(part, value):
                return None
            part += value
        elif word == "hundred" and 0 < part < 10:
            part *= 100
        elif word in _SCALES and part and (not total or total >= _SCALES[word] * 1000):
            total, part = total + part * _SCALES[word], 0
        elif word != "and" or not seen:
            return None
        seen = True
    return total + part if seen else None


def _fits(part: int, value: int) -> bool:
    """Whether a value may follow: units after tens (twenty-one), anything below a hundred after hundreds."""
    low = part % 100
    return low == 0 or (low >= 20 and low % 10 == 0 and 0 < value < 10)


def number_word(word: str) -> bool:
    """Whether an English word is (part of) a number."""
    word = word.lower()
    return word in _ONES or word in _TENS or word in _SCALES or word == "hundred"


def from_zh(text: str) -> int | None:
    """Read a Chinese number.

    Example:
        >>> [from_zh(t) for t in ("五", "十", "十二", "二十一", "两", "一万零三", "二〇二五")]
        [5, 10, 12, 21, 2, 10003, 2025]
    """
    if not text or any(c not in _ZH for c in text):
        return None
    if all(c in _ZH_DIGITS for c in text):
        return int("".join(str(_ZH_DIGITS[c]) for c in text))  # digit by digit, as in a year
    total = section = digit = 0
    for c in text:
        if c in _ZH_DIGITS:
            digit = _ZH_DIGITS[c]
        elif c in _ZH_UNITS:
            section, digit = section + (digit or 1) * _ZH_UNITS[c], 0
        else:
            total, section, digit = (total + section + digit) * _ZH_SCALES[c], 0, 0
    return total + section + digit
