"""Countdown: reach a target from given numbers with + - * / and parentheses."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from mmgrpo import last_answer, read_ground_truth, reward_facts

_ALLOWED = re.compile(r"[0-9+\-*/()\s]{1,200}")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "·": "*"})


@reward_facts(low=0.0, high=1.0)
def countdown(completions: list[str], nums: list[Sequence[Any]], target: list[Any]) -> list[float | None]:
    """1 where the expression in the last ``<answer>`` uses each number exactly once and gives the target, else 0.

    Only whole numbers, ``+ - * /`` and parentheses count, evaluated exactly and without ``eval``; what stands behind
    an equals sign is not read. ``**``, ``//`` and glued digits (``12`` from 1 and 2) are not allowed.

    Args:
        completions: What the policy wrote.
        nums: The numbers of each row: whole numbers, as numbers or text.
        target: The number to reach; None: does not apply.

    Returns:
        0 or 1.

    Source: the Countdown task of TinyZero (github.com/Jiayi-Pan/TinyZero).

    Example:
        >>> countdown(["<answer>(6 - 2) * 5 = 20</answer>", "<answer>5 * 4</answer>"], [[2, 5, 6]] * 2, [20, 20])
        [1.0, 0.0]
    """
    goals = [read_ground_truth(value) for value in target]
    rows = [read_ground_truth(row) for row in nums]
    return [
        None if goal is None else _solved(last_answer(text), _whole(row), _target(goal))
        for text, row, goal in zip(completions, rows, goals, strict=True)
    ]


def _whole(row: Any) -> list[int]:
    try:
        return sorted(int(number) for number in row)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"nums {row!r:.80} is not a list of whole numbers") from error


def _target(value: Any) -> Fraction:
    try:
        return Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"the target {value!r:.80} is not a number") from error


def _solved(answer: str | None, nums: Sequence[int], target: Fraction) -> float:
    if answer is None:
        return 0.0
    expression = answer.partition("=")[0].translate(_SIGNS).strip()
    if not _ALLOWED.fullmatch(expression):
        return 0.0
    if sorted(int(number) for number in re.findall(r"[0-9]+", expression)) != nums:
        return 0.0
    try:
        value = _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return 0.0
    return float(value == target)


def _value(node: ast.expr) -> Fraction:
    """Evaluate one node exactly; anything but the four operations is a ValueError."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("not an expression of + - * /")
