"""Turns of a conversation, by whatever names: ``role`` and ``content``, or ``from`` and ``value``.

Knows names of roles, no columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.data.formats.reading import ONE_FORM
from mmgrpo.data.lazy import Row
from mmgrpo.errors import DatasetError, explain

_ROLES = {
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "chatgpt", "bot", "ai", "function_call", "tool_call"),
    "system": ("system", "developer"),
    "tool": ("tool", "observation", "function", "tool_response", "ipython"),
}
"""What each role is called elsewhere."""
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}


def turns_of(value: Any, where: str) -> list[dict[str, Any]]:
    """Read a list of turns.

    Args:
        value: What the column holds.
        where: Row and column, for messages.

    Returns:
        Messages with ``role`` and ``content``; other keys that are not None are kept.

    Raises:
        DatasetError: It is no list of turns, or a role is unknown.

    Example:
        >>> turns_of([{"from": "human", "value": "?"}], "row 0")
        [{'role': 'user', 'content': '?'}]
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise DatasetError(_malformed("a conversation", value, where))
    return [_turn(turn, where) for turn in value]


def _turn(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise DatasetError(_malformed("a turn of a conversation", turn, where))
    name = turn.get("role") if turn.get("role") is not None else turn.get("from")
    if not isinstance(name, str) or name.lower() not in _ROLE_OF:
        raise DatasetError(
            explain("A turn has no role that is known", where=where, expected=", ".join(_ROLE_OF), got=repr(name)[:80])
        )
    content = turn.get("content") if turn.get("content") is not None else turn.get("value")
    rest = {key: v for key, v in turn.items() if key not in ("role", "from", "content", "value") and v is not None}
    return {"role": _ROLE_OF[name.lower()], "content": content, **rest}


def without_answer(turns: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Any]:
    """Take the last assistant turn off: it is what the policy should find, not read.

    Args:
        turns: Messages.

    Returns:
        The messages that are left, and what the assistant said; None where it had not the last word.

    Example:
        >>> without_answer([{"role": "user", "content": "?"}, {"role": "assistant", "content": "3"}])
        ([{'role': 'user', 'content': '?'}], '3')
    """
    if not turns or turns[-1]["role"] != "assistant":
        return list(turns), None
    return list(turns[:-1]), said(turns[-1]["content"])


def said(content: Any) -> Any:
    """Give content as text where it is a list of text blocks; anything else (a number, a list) as it is."""
    blocks = content if isinstance(content, list) else None
    if blocks and all(isinstance(block, Mapping) and isinstance(block.get("text"), str) for block in blocks):
        return "".join(block["text"] for block in blocks)
    return content


def with_system(turns: Sequence[Mapping[str, Any]], row: Row) -> list[Mapping[str, Any]]:
    """Put the row's ``system`` column before its turns, unless they begin with a system message."""
    system = row.get("system")
    if not isinstance(system, str) or not system.strip() or (turns and turns[0]["role"] == "system"):
        return list(turns)
    return [{"role": "system", "content": system}, *turns]


def _malformed(what: str, got: Any, where: str) -> str:
    expected = 'a list of {"role": …, "content": …} or {"from": …, "value": …}'
    fix = ONE_FORM if got is None else ""
    return explain(f"This is not {what}", where=where, expected=expected, got=repr(got)[:200], fix=fix)
