"""Find the answer in a completion, strictly: from the named place, behind the reasoning.

Nothing is read from the prompt or from the reasoning, and nothing is guessed: a completion without an answer in the
named form has none. Pure functions on text, used by all shipped rewards and open to yours.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from mmgrpo.reward.normalise import normalise, same_answer, to_number

__all__ = [
    "Mode", "after_reasoning", "last_answer", "last_boxed", "normalise", "read_answer", "read_truth", "same_answer",
    "strip_end", "to_number",
]  # fmt: skip

Mode = Literal["tag", "boxed", "last_number"]
_TAG = re.compile(r"</?answer>")
_END = re.compile(r"(?:\s|<\|(?:im_end|endoftext|eot_id|end|eos|end_of_text)\|>|</s>|<eos>|<end_of_turn>)+\Z")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\?[{}]")
_FREE_NUMBER = re.compile(
    r"(?<![\w.,/])[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?![\w/]|[.,][0-9])", re.ASCII
)


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
    found: str | None = None
    start: int | None = None
    for tag in _TAG.finditer(rest):
        if tag.group() == "<answer>":
            start = tag.end()
        elif start is not None:
            found, start = rest[start : tag.start()].strip(), None
    return found


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}`` (or ``\fbox{…}``) behind the reasoning, with nested braces.

    Returns:
        The content, or None where no box is closed.

    Example:
        >>> last_boxed(r"so \boxed{\frac{1}{2}}")
        '\\frac{1}{2}'
        >>> last_boxed(r"so \boxed{4") is None
        True
    """
    rest = after_reasoning(text)
    open_braces: list[tuple[int, bool]] = []
    best: tuple[int, int] | None = None
    for mark in _BOX.finditer(rest):
        token = mark.group()
        if token == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box and (best is None or start > best[0]):
                best = (start, mark.start())
        elif token[-1] == "{" and token != r"\{":
            open_braces.append((mark.end(), token != "{"))
    return rest[best[0] : best[1]].strip() if best else None


def read_answer(text: str, mode: Mode = "tag") -> str | None:
    """Take the answer from where the mode says, and from nowhere else.

    Args:
        text: A completion.
        mode: ``tag`` (the last ``<answer>``), ``boxed``, or ``last_number`` (the last number behind the reasoning:
            it also finds numbers that are no answer, so use it only where the form cannot be taught).

    Returns:
        The answer as written, or None.

    Example:
        >>> read_answer("There are 4 cubes and 5 spheres.", "last_number")
        '5'
    """
    if mode == "tag":
        return last_answer(text)
    if mode == "boxed":
        return last_boxed(text)
    numbers = _FREE_NUMBER.findall(after_reasoning(text))
    return numbers[-1] if numbers else None


def read_truth(value: Any, mode: Mode = "tag") -> Any:
    """The truth of a row, which may itself be written as a completion (``<answer> 3 </answer>``)."""
    if not isinstance(value, str):
        return value
    inside = last_answer(value)
    if inside is None:
        inside = last_boxed(value)
    return value if inside is None else inside
