"""Quantities: one number, in digits, words or Chinese, and its unit.

A unit is read only where it is known: a table of units, measure words, nouns of counting such as ``red cubes``.
Whatever else stands behind a number (``2x``, ``5 pm``, ``3 at least``, ``2 dozen``) makes the text no quantity: what
was not read earns no credit. Pure; knows nothing of where in a completion an answer stands.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

from mmgrpo.errors import explain

NUMERALS = ("words", "zh", "fullwidth")
"""What ``numerals`` may hold: English words, Chinese numerals, digits of other scripts (fullwidth, Arabic-Indic)."""
LONGEST = 400
"""Characters from which a text is too long to be an answer of one number."""


def _listed(text: str) -> list[str]:
    return text.split()


_DIGITS = 40
_NUMBER = re.compile(r"([+-]?)(?:([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(\.[0-9]*)?|(\.[0-9]+))(?:[eE]([+-]?[0-9]{1,2}))?")
_RATIO = re.compile(
    r"([+-]?)(?:([0-9]+)\s*/\s*([0-9]+)|\\[dt]?frac\s*(?:\{\s*([+-]?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9])([0-9])))"
)
_CURRENCY = {"$": "$", "US$": "$", "€": "€", "£": "£", "¥": "¥", "₹": "₹", "₩": "₩", "₽": "₽"}
_BEFORE = re.compile(r"([+-]?)\s*(US\$|[$€£¥₹₩₽])\s*(?=[\d.])")

_UNITS = {
    name: unit
    for unit, names in {
        "%": "% percent",
        "°": "° degree degrees deg",
        "°C": "°c celsius",
        "°F": "°f fahrenheit",
        "$": "$ dollar dollars usd buck bucks",
        "¢": "¢ cent cents",
        "€": "€ euro euros eur",
        "£": "£ gbp quid",
        "¥": "¥ yuan rmb cny 元",
        "yen": "yen jpy 円",
        "₹": "₹ rupee rupees inr",
        "₩": "₩ won krw",
        "₽": "₽ rouble roubles ruble rubles",
        "mm": "mm millimeter millimeters millimetre millimetres 毫米",
        "cm": "cm centimeter centimeters centimetre centimetres 厘米 公分",
        "dm": "dm decimeter decimeters decimetre decimetres 分米",
        "m": "m meter meters metre metres 米",
        "km": "km kms kilometer kilometers kilometre kilometres 千米 公里",
        "in": "in inch inches 英寸",
        "ft": "ft foot feet 英尺",
        "yd": "yd yard yards",
        "mi": "mi mile miles 英里",
        "mg": "mg milligram milligrams 毫克",
        "g": "g gram grams gramme grammes 克",
        "kg": "kg kgs kilo kilos kilogram kilograms 千克 公斤",
        "ton": "ton tons tonne tonnes 吨",
        "lb": "lb lbs pound pounds",
        "oz": "oz ounce ounces",
        "ml": "ml milliliter milliliters millilitre millilitres 毫升",
        "l": "l liter liters litre litres 升",
        "gal": "gal gallon gallons",
        "ms": "ms msec millisecond milliseconds 毫秒",
        "s": "s sec secs second seconds 秒 秒钟",
        "min": "min mins minute minutes 分钟",
        "h": "h hr hrs hour hours 小时",
        "day": "day days 天",
        "week": "week weeks 周",
        "month": "month months 个月",
        "year": "year years yr yrs 岁",
        "hz": "hz hertz",
        "khz": "khz kilohertz",
        "v": "v volt volts",
        "w": "w watt watts",
        "kw": "kw kilowatt kilowatts",
        "kwh": "kwh",
        "n": "n newton newtons",
        "j": "j joule joules",
        "kj": "kj kilojoule kilojoules",
        "pa": "pa pascal pascals",
        "rad": "rad radian radians",
        "px": "px pixel pixels",
        "unit": "unit units",
    }.items()
    for name in names.split()
}
_PHRASES = {
    **{"degrees celsius": "°C", "degree celsius": "°C", "degrees c": "°C", "degrees fahrenheit": "°F"},
    **{"years old": "year", "year old": "year", "per cent": "%", "mph": "mi/h", "kph": "km/h", "kmh": "km/h"},
    **{"fps": "frame/s", "frames per second": "frame/s", "度": "°", "摄氏度": "°C"},
}
_LETTERS = frozenset("mgshlLVWNJ")
"""Units of one letter, in their usual case: behind a space only; ``2m`` may be algebra."""
_FACTOR = re.compile(r"(?:(square|sq\.?|cubic)\s+)?([^\W\d_]+|°[CF]?|[%$€£¢¥₹₩₽])\.?(?:\^([23]))?", re.IGNORECASE)
_PER = re.compile(r"\s*(?:/|\bper\b)\s*")

_ADJECTIVES = frozenset(
    _listed(
        """
        red green blue yellow orange purple violet pink brown black white gray grey cyan magenta gold golden silver
        beige teal maroon navy tan turquoise dark light bright small little tiny big large huge medium tall short
        long wide round square rectangular triangular circular spherical cylindrical metal metallic rubber matte
        shiny wooden plastic glass different distinct identical visible similar separate individual unique single
        colored coloured solid hollow empty full open closed old young new dead living
        """
    )
)
_NOUNS = {
    **{"people": "person", "persons": "person", "men": "man", "women": "woman", "children": "child", "mice": "mouse"},
    **{"geese": "goose", "teeth": "tooth", "leaves": "leaf", "knives": "knife", "buses": "bus", "dice": "die"},
    **{"boxes": "box", "glasses": "glass", "vertices": "vertex", "indices": "index", "oxen": "ox"},
    **{
        name: name
        for name in _listed(
            """
            person man woman child object item thing piece cube sphere cylinder ball cone shape block fish sheep
            deer aircraft bus box glass car truck bicycle motorcycle airplane train boat bird cat dog horse cow
            elephant bear zebra giraffe umbrella bottle cup bowl banana apple sandwich chair couch plant table book
            clock vase side edge face vertex angle corner triangle circle square rectangle line point dot star heart
            tree flower house window door player animal figure symbol letter word sound beep frame image photo
            """
        )
    },
}
_NO_NOUNS = frozenset(
    _listed(
        """
        plus minus times less unless perhaps always sometimes this thus does its ours yours theirs hers besides
        towards across versus whereas dozens pairs couples scores hundreds thousands millions billions trillions
        tens halves thirds quarters fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths
        percents equals means makes gives seems looks remains maybes guesses others lots loads says was has goes
        wins fails yes nays exponents powers multiples approximates digits decimals hours'
        """
    )
)
_GENERIC = (
    "个個只隻条條张張件块塊位名辆輛台臺本支颗顆座枚粒根头頭匹棵朵把份项項种種人架艘盏盞扇幅片串棟栋匹つ개명대마리"
)
_NOT_IN_ZH = frozenset(
    "多余餘几幾左右上下以内外约約半分倍成折点點月日号號年时時万萬亿億千百十和或到至与及不是对錯错吗第"
)
_ZH_REST = re.compile(rf"([{_GENERIC}]?)([\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]{{0,6}})")

_ONES = {
    word: value
    for value, word in enumerate(
        _listed(
            """
            zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
            seventeen eighteen nineteen
            """
        )
    )
}
_TENS = {
    word: 10 * n
    for n, word in enumerate(
        _listed(
            """
    twenty thirty forty fifty sixty seventy eighty ninety
    """
        ),
        2,
    )
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_ZH_DIGITS = {**{c: i for i, c in enumerate("零一二三四五六七八九")}, "\u3007": 0, "两": 2, "兩": 2}
_ZH_UNITS = {"十": 10, "百": 100, "千": 1000}
_ZH = "".join([*_ZH_DIGITS, *_ZH_UNITS, "万萬亿億"])
_ZH_NUMBER = re.compile(f"[{_ZH}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number and its unit."""

    number: Fraction
    unit: str = ""
    """In one spelling (``cm``, ``red cube``); empty where there is none."""
    bare: bool = True
    """Whether the number may stand for the whole: not so for ``2m``, which may be algebra."""

    def equals(self, other: Quantity) -> bool:
        """Whether two quantities are the same: equal numbers, and equal units or one without."""
        if self.number != other.number or self.unit == other.unit:
            return self.number == other.number
        return (not self.unit and other.bare) or (not other.unit and self.bare)


def read_quantity(text: str, numerals: Collection[str] = ()) -> Quantity | None:
    """Read a text as one number with an optional unit.

    Args:
        text: A text without wrappers, as :func:`mmgrpo.reward.answers.plain_answer` leaves it.
        numerals: Other ways to write numbers that count, see :data:`NUMERALS`.

    Returns:
        The quantity, or None where the text is anything else.

    Raises:
        ValueError: ``numerals`` names a way that nobody reads.

    Example:
        >>> read_quantity("5 red cubes").unit, read_quantity("2 dozen"), read_quantity("3 m/s^2").unit
        ('red cube', None, 'm/s^2')
    """
    _check_numerals(numerals)
    if len(text) > LONGEST:
        return None
    if "fullwidth" in numerals:
        text = ascii_digits(text)
    text = text.replace("\u2212", "-").replace(r"\$", "$").replace(r"\%", "%")
    before = _BEFORE.match(text)
    currency = _CURRENCY[before.group(2)] if before else ""
    text = before.group(1) + text[before.end() :] if before else text
    for number, rest in _numbers(text, numerals):
        unit = _unit(rest)
        if unit is not None and (not currency or unit[0] in ("", currency)):
            return Quantity(number=number, unit=currency or unit[0], bare=unit[1])
    return None


def ascii_digits(text: str) -> str:
    """Write every decimal digit, of whatever script, as 0 to 9; superscripts and the like are left alone.

    Example:
        >>> ascii_digits("７ and ٧ and ²")
        '7 and 7 and ²'
    """
    return "".join(str(digit) if (digit := unicodedata.decimal(c, None)) is not None else c for c in text)


def written(number: Fraction) -> str:
    """Write a number in its one form: a whole number, a finite decimal, or else a ratio.

    Example:
        >>> written(Fraction(1, 4)), written(Fraction(1, 3))
        ('0.25', '1/3')
    """
    twos, fives = (_times(number.denominator, factor) for factor in (2, 5))
    if number.denominator != 2**twos * 5**fives:
        return f"{number.numerator}/{number.denominator}"
    places = max(twos, fives)
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    whole, part = (digits[:-places], "." + digits[-places:]) if places else (digits, "")
    return f"{'-' if number < 0 else ''}{whole}{part}"


def _check_numerals(numerals: Collection[str]) -> None:
    """Refuse a way of writing numbers that nobody reads: it would be ignored, and answers would earn 0."""
    if isinstance(numerals, str) or not set(numerals) <= set(NUMERALS):
        raise ValueError(
            explain(
                "Unknown numerals", where="numerals", expected=f"a list of {', '.join(NUMERALS)}", got=repr(numerals)
            )
        )


def _numbers(text: str, numerals: Collection[str]) -> list[tuple[Fraction, str]]:
    """Each way to read a number at the start of a text, and what follows it."""
    found: list[tuple[Fraction, str]] = []
    match = _NUMBER.match(text)
    if match and match.end() <= _DIGITS:
        sign, whole, part, bare, exponent = match.groups()
        number = Fraction((whole or "0").replace(",", "") + (part or bare or "").rstrip("."))
        number *= Fraction(10) ** int(exponent or 0)
        found.append((-number if sign == "-" else number, text[match.end() :]))
    match = _RATIO.match(text)
    if match and match.end() <= _DIGITS:
        sign, *pairs = match.groups()
        top, bottom = (int(n) for n in pairs if n is not None)
        if bottom:
            found.append((Fraction(-top if sign == "-" else top, bottom), text[match.end() :]))
    if "words" in numerals:
        words = list(re.finditer(r"[a-z]+", text[:100].lower()))
        for last in range(min(len(words), 12), 0, -1):
            whole_number = from_words(text[: words[last - 1].end()])
            if whole_number is not None:
                found.append((Fraction(whole_number), text[words[last - 1].end() :]))
                break
    match = _ZH_NUMBER.match(text) if "zh" in numerals else None
    chinese = from_zh(match.group()) if match else None
    if match and chinese is not None:
        found.append((Fraction(chinese), text[match.end() :]))
    return found


def _unit(rest: str) -> tuple[str, bool] | None:
    """The unit behind a number and whether the number may stand without it; None where it is no unit."""
    text = rest.strip()
    if not text:
        return "", True
    if text in _LETTERS:
        return text.lower(), rest[0].isspace()
    if re.search(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", text):
        return _chinese_unit(text.replace(" ", ""))
    low = text.removesuffix(".").casefold()
    if low in _PHRASES:
        return _PHRASES[low], True
    factors = [_factor(part) for part in _PER.split(text.removesuffix("."))]
    if len(factors) <= 2 and None not in factors:
        return "/".join(str(factor) for factor in factors), True
    noun = _counting_noun(low.split()) if rest[0].isspace() else None
    return None if noun is None else (noun, True)


def _factor(text: str) -> str | None:
    match = _FACTOR.fullmatch(text)
    if match is None:
        return None
    area, name, power = match.groups()
    if len(name) == 1 and name.isalpha() and name not in _LETTERS:
        return None
    unit = _UNITS.get(name.casefold())
    power = power or {"s": "2", "c": "3"}.get((area or "").lower()[:1])
    return unit if unit is None or power is None else f"{unit}^{power}"


def _counting_noun(words: list[str]) -> str | None:
    """``red cubes`` as ``red cube``; None where the last word is no noun of counting or another no plain adjective."""
    *adjectives, noun = words
    if len(words) > 4 or not set(adjectives) <= _ADJECTIVES:
        return None
    single = _NOUNS.get(noun) or _singular(noun)
    return None if single is None else " ".join([*adjectives, single])


def _singular(noun: str) -> str | None:
    stem = noun.removesuffix("s")
    plural = noun.isalpha() and len(noun) >= 4 and stem != noun and stem[-1] not in "siu"
    if not plural or noun in _NO_NOUNS or stem in _ONES or stem in _TENS or stem in _SCALES:
        return None
    if stem.endswith("ie"):
        return stem[:-2] + "y"
    return stem[:-1] if stem.endswith(("xe", "che", "she", "sse")) else stem


def _chinese_unit(text: str) -> tuple[str, bool] | None:
    known = _PHRASES.get(text) or _UNITS.get(text)
    if known:
        return known, True
    match = _ZH_REST.fullmatch(text)
    if match is None or set(match.group(2)) & _NOT_IN_ZH or (not match.group(1) and len(text) < 2):
        return None
    return match.group(2), True


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
    return total + part if seen and not re.search(r"\band$", text.rstrip().lower()) else None


def _fits(part: int, value: int) -> bool:
    """Whether a value may follow: units after tens (twenty-one), anything below a hundred after hundreds."""
    low = part % 100
    return low == 0 or (low >= 20 and low % 10 == 0 and 0 < value < 10)


def from_zh(text: str) -> int | None:
    """Read a Chinese number; approximate ones (两三, 十七八) are none.

    Example:
        >>> [from_zh(t) for t in ("五", "十二", "两", "一万零三", "二〇二五", "一亿二千万", "两万五", "两三")]
        [5, 12, 2, 10003, 2025, 120000000, 25000, None]
    """
    if not text or any(c not in _ZH for c in text):
        return None
    if all(c in _ZH_DIGITS for c in text):  # digit by digit, as in a year; two digits alone are "two or three"
        exact = len(text) == 1 or (len(text) > 2 and not set("两兩") & set(text)) or text[0] in "零\u3007"
        return int("".join(str(_ZH_DIGITS[c]) for c in text[:_DIGITS])) if exact else None
    return _zh_value(text.replace("萬", "万").replace("億", "亿"), {"亿": 10**8, "万": 10**4})


def _zh_value(text: str, scales: dict[str, int]) -> int | None:
    """A number with units: what stands before 亿, then before 万, then below ten thousand."""
    for mark, size in scales.items():
        high, found, low = text.rpartition(mark)
        if found:
            smaller = {m: s for m, s in scales.items() if s < size}
            top = _zh_value(high, scales if mark in high else smaller or {})
            rest = _zh_tail(low, size, smaller)
            return None if not top or rest is None else top * size + rest
    return _zh_section(text)


def _zh_tail(text: str, size: int, scales: dict[str, int]) -> int | None:
    if not text:
        return 0
    if len(text) == 1 and text in _ZH_DIGITS and _ZH_DIGITS[text]:
        return _ZH_DIGITS[text] * size // 10  # 两万五 is 25,000
    value = _zh_value(text, scales)
    return value if value is not None and value < size else None


def _zh_section(text: str) -> int | None:
    """Below ten thousand: thousands, hundreds, tens and ones, each at most once and in this order."""
    match = re.fullmatch(
        r"(?:([一二两兩三四五六七八九])千)?(零?)(?:([一二两兩三四五六七八九])百)?(零?)(?:([一二三四五六七八九]?)(十))?(零?)([一二两兩三四五六七八九]?)",
        text.replace("\u3007", "零"),
    )
    if match is None or not text.strip("零"):
        return None
    thousands, _, hundreds, _, tens, ten, zero, ones = match.groups()
    digit = {key: _ZH_DIGITS[key] if key else 0 for key in (thousands, hundreds, tens, ones)}
    total = digit[thousands] * 1000 + digit[hundreds] * 100 + (digit[tens] or 1) * 10 * bool(ten)
    if not ten and not zero and "零" not in text and (thousands or hundreds):
        return total + digit[ones] * (10 if hundreds else 100)  # 一百五 is 150
    return total + digit[ones]


def _times(number: int, factor: int) -> int:
    count = 0
    while number % factor == 0:
        number, count = number // factor, count + 1
    return count
