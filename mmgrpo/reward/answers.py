r"""Read answers strictly: from the named place, behind the reasoning; and compare them with ground truths.

Nothing is read from the prompt or from the reasoning, and nothing is guessed: a completion without an answer in the
named form has none. Ground truths are read by the same rules, whatever type a file gave them. Pure functions, used by
all shipped rewards and open to yours.
"""

from __future__ import annotations

import functools
import inspect
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any, Literal, get_args

from mmgrpo.reward.quantities import LONGEST, read_quantity, written

Mode = Literal["tag", "boxed", "any", "last_number"]
ANSWER_MARKS = (("<|begin_of_box|>", "<|end_of_box|>"), ("<|box_start|>", "<|box_end|>"))
r"""Marks in which families write answers (GLM-V) and boxes (Qwen2-VL) by themselves: read as ``\boxed{}`` is."""

_TAG = re.compile(r"</?answer>")
_END = re.compile(r"(?:\s|<\|(?:im_end|endoftext|eot_id|end|eos|end_of_text)\|>|</s>|<eos>|<end_of_turn>)+\Z")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\?[{}]|<\|(?:begin_of_box|end_of_box|box_start|box_end)\|>")
_FREE_NUMBER = re.compile(
    r"(?<![\w.,/])[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?![\w/]|[.,][0-9])", re.ASCII
)
_WRAPPERS = (
    ("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"), ("`", "`"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"),
    (r"\[", r"\]"), ('"', '"'), ("'", "'"), ("{", "}"), *ANSWER_MARKS,
)  # fmt: skip
_COMMAND = re.compile(r"\\(?:boxed|fbox|text|mathrm|mathbf|textbf)\s*\{")
_INNER = (
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|textit|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"(?<![\w*])\*\*([^*]+)\*\*(?![\w*])"), r"\1"),
    (re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)"), "°"),
    (re.compile(r"\\[,;:! ]"), " "),
    (re.compile(r"\^\{([0-9]+)\}"), r"^\1"),
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_CHARACTERS: dict[int, str | None] = {
    **dict.fromkeys([0x00AD, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF, *range(0x202A, 0x202F)]),  # these are not seen
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if not chr(code).isdigit()},
    **{ord(c): "'" for c in "\u2018\u2019\u201b\u02bc"},
    **{ord(c): '"' for c in "\u201c\u201d\u201e"},
    0x3002: ".",
}
"""One way to write marks that look or mean the same. Digits of other scripts are numerals, and stay."""


def strip_end(text: str) -> str:
    r"""Remove white space and left-over end-of-turn tokens from the end of a completion.

    Example:
        >>> strip_end("<answer>2</answer><|im_end|>\n")
        '<answer>2</answer>'
    """
    # Searched from the last character that is no part of an end, so that long runs of spaces cost nothing.
    match = _END.search(text, max(0, len(text) - 200))
    return text[: match.start()].rstrip() if match else text


def after_reasoning(text: str) -> str:
    """The part of a completion behind its reasoning; empty while a ``<think>`` is still open.

    Example:
        >>> after_reasoning("<think>12</think> so 5")
        ' so 5'
        >>> after_reasoning("<think>12")
        ''
    """
    rest = text.rpartition("</think>")[2]
    return rest.partition("<think>")[0]


def last_answer(text: str) -> str | None:
    r"""The content of the last well-formed ``<answer>`` tag behind the reasoning.

    Well-formed is an opening tag whose next tag is its closing one; a doubled closing tag belongs to nothing.

    Args:
        text: A completion.

    Returns:
        The content without white space around it, or None where there is no such tag.

    Example:
        >>> last_answer("<think>\nt\n</think>\n<answer>\n333\n</answer>\n</answer>")
        '333'
        >>> last_answer("<think><answer>12</answer></think> it is 5") is None
        True
    """
    rest = after_reasoning(text)
    answer: str | None = None
    start: int | None = None
    for tag in _TAG.finditer(rest):
        if tag.group() == "<answer>":
            start = tag.end()
        elif start is not None:
            answer, start = rest[start : tag.start()].strip(), None
    return answer


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}`` (or ``\fbox{…}``) behind the reasoning, with nested braces.

    A family's own marks count as well: ``<|begin_of_box|>…<|end_of_box|>`` (GLM-V), ``<|box_start|>…<|box_end|>``.

    Returns:
        The content, or None where no box is closed.

    Example:
        >>> last_boxed(r"so \boxed{\frac{1}{2}}"), last_boxed("<|begin_of_box|>3<|end_of_box|>")
        ('\\frac{1}{2}', '3')
        >>> last_boxed(r"so \boxed{4") is None
        True
    """
    boxes = _boxed(text)
    return max(boxes)[1] if boxes else None


def marked_answers(text: str) -> list[str]:
    """The contents of all boxes and family marks behind the reasoning, in order, as :func:`last_boxed` reads the last.

    Example:
        >>> marked_answers("<|box_start|>(1,2),(3,4)<|box_end|> and <|box_start|>(5,6),(7,8)<|box_end|>")
        ['(1,2),(3,4)', '(5,6),(7,8)']
    """
    return [content for _, content in sorted(_boxed(text))]


def _boxed(text: str) -> list[tuple[int, str]]:
    """Start and content of each closed box."""
    rest = after_reasoning(text)
    closing = dict(ANSWER_MARKS)
    open_braces: list[tuple[int, bool]] = []
    mark: tuple[int, str] | None = None
    boxes: list[tuple[int, str]] = []
    for found in _BOX.finditer(rest):
        token = found.group()
        if token.startswith("<|"):
            if token in closing:
                mark = (found.end(), closing[token])
            elif mark is not None and token == mark[1]:
                boxes.append((mark[0], rest[mark[0] : found.start()].strip()))
                mark = None
        elif token == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box:
                boxes.append((start, rest[start : found.start()].strip()))
        elif token[-1] == "{" and token != r"\{":
            open_braces.append((found.end(), token != "{"))
    return boxes


def answer_or_text(text: str) -> str:
    """What a completion says, for texts that are compared as a whole: its last answer, else all behind the reasoning.

    Example:
        >>> answer_or_text("<think>hm</think> a red cube"), answer_or_text("So <answer>a cube</answer>")
        ('a red cube', 'a cube')
    """
    answer = last_answer(text)
    return after_reasoning(text).strip() if answer is None else answer


def read_answer(text: str, mode: Mode = "tag") -> str | None:
    """Take the answer from where the mode says, and from nowhere else.

    Args:
        text: A completion.
        mode: ``tag`` (the last ``<answer>``), ``boxed``, ``any`` (the tag, else the box), or ``last_number`` (the last
            number behind the reasoning: it also finds numbers that are no answer, so use it only where the form cannot
            be taught).

    Returns:
        The answer as written, or None.

    Raises:
        ValueError: There is no such mode.

    Example:
        >>> read_answer("There are 4 cubes and 5 spheres.", "last_number")
        '5'
    """
    if mode == "last_number":
        numbers = _FREE_NUMBER.findall(after_reasoning(text))
        return numbers[-1] if numbers else None
    if mode not in get_args(Mode):
        raise ValueError(f"mode {mode!r} is not one of {', '.join(get_args(Mode))}")
    answer = None if mode == "boxed" else last_answer(text)
    return last_boxed(text) if mode != "tag" and answer is None else answer


def answer_mode(reward: Callable[..., Any]) -> Mode | None:
    """Where a reward reads its answers: the ``mode`` that it was given or has by default.

    Args:
        reward: A function, one with bound arguments, or an object that is called; ``Loaded.function`` is one.

    Returns:
        The mode; ``tag`` where the reward has no such argument; None where its ``mode`` means something else.

    Example:
        >>> answer_mode(functools.partial(lambda completions, mode="tag": [], mode="boxed"))
        'boxed'
    """
    declared = getattr(reward, "answer_mode", None)
    if declared is None:
        try:
            parameter = inspect.signature(reward).parameters.get("mode")
        except (TypeError, ValueError):
            parameter = None
        declared = "tag" if parameter is None else parameter.default
    return declared if declared in get_args(Mode) else None


def is_well_formed(text: str, reward: Callable[..., Any] | None = None) -> bool:
    r"""Whether a completion has an answer in the form in which a reward reads it.

    Args:
        text: A completion, with what the template wrote of it.
        reward: The reward; None: the ``<answer>`` tag is meant.

    Returns:
        True where there is an answer, right or wrong.

    Example:
        >>> is_well_formed("<answer>3</answer>"), is_well_formed(r"\boxed{3}")
        (True, False)
    """
    mode = "tag" if reward is None else answer_mode(reward)
    return read_answer(text, mode or "tag") is not None


def read_ground_truth(value: Any) -> Any:
    r"""Read the ground truth of a row, whatever type or form its file gave it.

    A text written as a completion (``<answer> 3 </answer>``, ``\boxed{3}``) is what it holds; numpy's numbers and
    arrays become Python's; a whole float (3.0, as pandas makes of a column with gaps) is an integer; a missing value
    of any kind (None, NaN, an empty text) is None: the reward does not apply to that row.

    Args:
        value: The value of the column.

    Returns:
        A text, number, list or mapping; None where there is none.

    Example:
        >>> [read_ground_truth(v) for v in ("<answer> 3 </answer>", 3.0, float("nan"), " ")]
        ['3', 3, None, None]
    """
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        value = value.tolist()
    if isinstance(value, Decimal):
        value = float(value)
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, str):
        inside = last_answer(value)
        inside = last_boxed(value) if inside is None else inside
        return (value if inside is None else inside).strip() or None
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [read_ground_truth(item) for item in value]
    return {key: read_ground_truth(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def normalise(value: Any, numerals: Collection[str] = ()) -> str:
    r"""Write an answer in its one plain form, so that equal answers are equal texts.

    Wrappers are taken off (``**42**``, ``$42$``, ``\boxed{42}``, quotes), white space is collapsed, and what reads as
    one number, with or without a known unit, becomes that number. Idempotent: normalising twice changes nothing.

    Args:
        value: An answer: text, or a number.
        numerals: Other ways to write numbers that count: ``words``, ``zh``, ``fullwidth``.

    Returns:
        The plain form.

    Example:
        >>> [normalise(t) for t in ("3.0", "1,800", "$29.00", "72.", r"\boxed{42}", "**42**", "2, 3", "E.")]
        ['3', '1800', '29', '72', '42', '42', '2, 3', 'E']
    """
    text = plain_answer(value)
    quantity = read_quantity(text, numerals)
    return text if quantity is None or not quantity.bare else written(quantity.number)


def to_number(value: Any, numerals: Collection[str] = ()) -> float | None:
    """Read one number.

    Accepted: ``3``, ``3.0``, ``1,800``, ``-2``, ``$29.00``, ``20%`` (as 20), ``1/2``, one number with a known unit or
    a noun of counting (``60°``, ``5 red cubes``). Not accepted: two numbers, hedges (``~7``, ``3 at least``), scales
    (``2 dozen``), times (``5 pm``), algebra (``2x``), a sentence.

    Args:
        value: Text or a number.
        numerals: As in :func:`normalise`.

    Returns:
        The number, or None where the text is not one number.

    Example:
        >>> [to_number(t) for t in ("5 objects", "20%", "2, 3", "~7", "seven", "5 pm")]
        [5.0, 20.0, None, None, None, None]
        >>> to_number("二十一个", numerals=["zh"])
        21.0
    """
    quantity = read_quantity(plain_answer(value), numerals)
    return None if quantity is None or not quantity.bare else float(quantity.number)


def same_answer(answer: Any, ground_truth: Any, numerals: Collection[str] = ()) -> bool:
    """Whether two answers are the same number in the same unit, or the same text apart from upper and lower case.

    A unit may be left out on one side; two different units are two different answers.

    Example:
        >>> same_answer("1,800", 1800), same_answer("b.", "B"), same_answer("2, 3", "3"), same_answer("5 cm", "5 kg")
        (True, True, False, False)
    """
    texts = [plain_answer(value) for value in (answer, ground_truth)]
    first, second = (read_quantity(text, numerals) for text in texts)
    if first is not None and second is not None:
        return first.equals(second)
    first_text, second_text = (unicodedata.normalize("NFC", text.casefold()) for text in texts)
    return first_text == second_text


def plain_answer(value: Any) -> str:
    r"""An answer as text, in one spelling and without wrappers, its number and unit as they were written.

    Example:
        >>> plain_answer(r"**3** \text{ objects}"), plain_answer("（B）。"), plain_answer(r"60^\circ")
        ('3 objects', '(B)', '60°')
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = unicodedata.normalize("NFC", _text(value).translate(_CHARACTERS))
    text = " ".join(_SUPERSCRIPT.sub(lambda match: "^" + match.group().translate(_SUPERSCRIPTS), text).split())
    before = None
    while text != before and len(text) <= LONGEST:
        before = text
        for pattern, plain in _INNER:
            text = pattern.sub(plain, text)
        text = _unwrap_once(" ".join(text.split()))
    return text


def _text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python writes
        return hex(value)


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
    if command and _closing_brace(text, command.end()) == len(text) - 1:
        return text[command.end() : -1]
    return text[:-1] if text.endswith(".") and not text.endswith("..") and len(text) > 1 else text


def _splits(inner: str, start: str, end: str) -> bool:
    """Whether the outer marks are two pairs beside each other (``$1$ or $2$``), not one pair around all."""
    if start == "{":
        return _closing_brace(inner + "}", 0) != len(inner)
    return start in inner or end in inner


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace that opened just before ``start`` closes."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None


def plain_words(text: str) -> list[str]:
    """The words of a text as speech has them: lower case, no punctuation, each Chinese or Japanese character a word.

    Letters keep their marks (vowel signs, tones, accents), typographic variants become one: what is heard counts.

    Example:
        >>> plain_words("Don\u2019t stop, it\u2019s 你好!")
        ["don't", 'stop', "it's", '你', '好']
    """
    return re.sub(r"([\u3400-\u9fff\u3040-\u30ff])", r" \1 ", " ".join(spoken_text(text).split())).split()


@functools.lru_cache(maxsize=1024)
def spoken_text(text: str) -> str:
    """A text in lower case, without punctuation, single spaces between words: what speech does not tell apart."""
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).lower()
    letters = (c if unicodedata.category(c)[0] in "LNM" or c in "'\u200c\u200d" else " " for c in text)
    return " ".join("".join(letters).split())
