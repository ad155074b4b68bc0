"""Write an answer in its one plain form: wrappers off, one number or one text.

Pure functions on text. Where in a completion the answer stands is the business of :mod:`mmgrpo.reward.answers`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any

from mmgrpo.errors import explain
from mmgrpo.reward.numerals import NUMERALS, ZH_PREFIX, ascii_digits, from_words, from_zh, number_word

_LONGEST = 400
_DIGITS = 40
_NUMBER = re.compile(r"([+-]?)(?:([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(\.[0-9]*)?|(\.[0-9]+))(?:[eE]([+-]?[0-9]{1,2}))?")
_FRACTION = re.compile(r"([+-]?[0-9]+)\s*/\s*([0-9]+)")
_LATEX_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\s*\{\s*([+-]?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_UNIT = re.compile(r"(?:\s*[^\W\d_]+\.?){1,3}")
_NOT_UNITS = frozenset({"or", "and", "to", "plus", "minus", "times", "per", "e"})
_CURRENCY = "$€£¥"
_WRAPPERS = (
    ("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"), ("`", "`"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"),
    (r"\[", r"\]"), ('"', '"'), ("'", "'"), ("“", "”"), ("{", "}"),
)  # fmt: skip
_COMMAND = re.compile(r"\\(?:boxed|fbox|text|mathrm|mathbf|textbf)\s*\{")


def closing_brace(text: str, start: int, limit: int = 2000) -> int | None:
    """Where the brace that opened just before ``start`` closes; None if not within ``limit`` characters."""
    depth = 1
    for position in range(start, min(len(text), start + limit)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None


def normalise(value: Any, numerals: Collection[str] = ()) -> str:
    r"""Write an answer in its one plain form, so that equal answers are equal texts.

    Wrappers are taken off (``**42**``, ``$42$``, ``\boxed{42}``, quotes), white space is collapsed, and what reads as
    one number becomes that number. Idempotent: normalising twice changes nothing.

    Args:
        value: An answer: text, or a number.
        numerals: Other ways to write numbers that count: ``words``, ``zh``, ``fullwidth``.

    Returns:
        The plain form.

    Example:
        >>> [normalise(t) for t in ("3.0", "1,800", "$29.00", "72.", r"\boxed{42}", "**42**", "2, 3", "E.")]
        ['3', '1800', '29', '72', '42', '42', '2, 3', 'E']
    """
    text = _unwrap(_text(value))
    number = _fraction(text, numerals)
    return text if number is None else _plain(number)


def to_number(value: Any, numerals: Collection[str] = ()) -> float | None:
    """Read one number.

    Accepted: ``3``, ``3.0``, ``1,800``, ``-2``, ``$29.00``, ``20%`` (as 20), ``1/2``, one number with a unit (``5 red
    cubes``). Not accepted: two numbers, hedges (``~7``, ``about 7``), a sentence.

    Args:
        value: Text or a number.
        numerals: As in :func:`normalise`.

    Returns:
        The number, or None where the text is not one number.

    Example:
        >>> [to_number(t) for t in ("5 objects", "20%", "2, 3", "~7", "seven")]
        [5.0, 20.0, None, None, None]
        >>> to_number("二十一", numerals=["zh"])
        21.0
    """
    number = _fraction(_unwrap(_text(value)), numerals)
    return None if number is None else float(number)


def same_answer(given: Any, truth: Any, numerals: Collection[str] = ()) -> bool:
    """Whether two answers are the same number, or the same text apart from upper and lower case.

    Example:
        >>> same_answer("1,800", 1800), same_answer("b.", "B"), same_answer("2, 3", "3")
        (True, True, False)
    """
    return normalise(given, numerals).casefold() == normalise(truth, numerals).casefold()


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(str(value).split())


def _unwrap(text: str) -> str:
    """Take wrappers off until none is left. A text too long to be an answer is left alone."""
    if len(text) > _LONGEST:
        return text
    before = None
    while text != before:
        before = text
        text = _unwrap_once(text.strip())
    return text


def _unwrap_once(text: str) -> str:
    for start, end in _WRAPPERS:
        inner = text[len(start) : len(text) - len(end)]
        if (
            text.startswith(start)
            and text.endswith(end)
            and len(text) > len(start + end)
            and not _splits(inner, start, end)
        ):
            return inner
    command = _COMMAND.match(text)
    if command and closing_brace(text, command.end()) == len(text) - 1:
        return text[command.end() : -1]
    return text[:-1] if text.endswith(".") and not text.endswith("..") and len(text) > 1 else text


def _splits(inner: str, start: str, end: str) -> bool:
    """Whether the outer marks are two pairs beside each other (``$1$ or $2$``), not one pair around all."""
    if start == "{":
        return closing_brace(inner + "}", 0) != len(inner)
    return start in inner or end in inner


def _check_numerals(numerals: Collection[str]) -> None:
    """Refuse a way of writing numbers that nobody reads: it would be ignored, and answers would earn 0."""
    if isinstance(numerals, str) or not set(numerals) <= set(NUMERALS):
        raise ValueError(
            explain(
                "Unknown numerals", where="numerals", expected=f"a list of {', '.join(NUMERALS)}", got=repr(numerals)
            )
        )


def _fraction(text: str, numerals: Collection[str]) -> Fraction | None:
    _check_numerals(numerals)
    if len(text) > _LONGEST:
        return None
    if "fullwidth" in numerals:
        text = ascii_digits(text)
    for read in (_digits, _ratio):
        number = read(text)
        if number is not None:
            return number
    whole = from_words(text) if "words" in numerals else None
    if whole is None and "zh" in numerals and (match := ZH_PREFIX.fullmatch(text)) and len(match.group(2)) <= 6:
        whole = from_zh(match.group(1))
    return None if whole is None else Fraction(whole)


def _ratio(text: str) -> Fraction | None:
    match = _FRACTION.fullmatch(text)
    sign, top, bottom = ("", *match.groups()) if match else (None, "", "")
    if match is None:
        latex = _LATEX_FRACTION.fullmatch(text)
        sign, top, bottom = latex.groups() if latex else (None, "", "")
    if sign is None or len(top) + len(bottom) > _DIGITS or int(bottom) == 0:
        return None
    return Fraction(int(top), int(bottom)) * (-1 if sign == "-" else 1)


def _digits(text: str) -> Fraction | None:
    """One number in digits: a currency sign before it, a percent sign or up to three words of unit behind it."""
    text = text.replace("\u2212", "-").replace(r"\$", "$").replace(r"\%", "%")
    text = text.lstrip(_CURRENCY).lstrip() if text[:1] in _CURRENCY else text
    match = _NUMBER.match(text)
    if match is None or match.end() > _DIGITS or not _is_unit(text[match.end() :]):
        return None
    sign, whole, part, bare, exponent = match.groups()
    number = Fraction((whole or "0").replace(",", "") + (part or bare or "").rstrip("."))
    return number * (-1 if sign == "-" else 1) * Fraction(10) ** int(exponent or 0)


def _is_unit(rest: str) -> bool:
    if rest.strip() in ("", "%"):
        return True
    if not _UNIT.fullmatch(rest):
        return False
    words = re.findall(r"[^\W\d_]+", rest.lower())
    return not any(word in _NOT_UNITS or number_word(word) for word in words)


def _plain(number: Fraction) -> str:
    """A whole number, a finite decimal, or else a ratio."""
    if number.denominator == 1:
        return str(number.numerator)
    bottom = number.denominator
    twos = _times(bottom, 2)
    fives = _times(bottom, 5)
    if bottom != 2**twos * 5**fives:
        return f"{number.numerator}/{number.denominator}"
    places = max(twos, fives)
    shifted = abs(number.numerator) * 10**places // bottom
    digits = str(shifted).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _times(number: int, factor: int) -> int:
    count = 0
    while number % factor == 0:
        number, count = number // factor, count + 1
    return count
