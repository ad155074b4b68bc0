"""Rows that hold a conversation: turns by whatever names, what the assistant said last, and ms-swift's placeholders.

Knows names of roles and of the forms whose rows are conversations; :mod:`.table` says which columns they have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmgrpo.config.data import AUTO, Columns
from mmgrpo.data.formats.blocks import OTHER_BLOCKS, without_tags
from mmgrpo.data.formats.reading import (
    ONE_FORM,
    ParsedRow,
    RowFormat,
    answer_of,
    media_of,
    parse_cell,
    parse_conversation,
    prompt_column,
    prompt_of,
    read_columns,
)
from mmgrpo.data.rows import Row
from mmgrpo.errors import DatasetError, explain, shorten

RESPONSES = (
    "response", "answer", "output", "targets", "target", "answer_key", "answers", "solution", "text", "completion",
    "content",
)  # fmt: skip
"""Columns of the response, where a row of ms-swift has a query and no messages."""
_ROLES = {
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "chatgpt", "bot", "ai", "function_call", "tool_call"),
    "system": ("system", "developer"),
    "tool": ("tool", "observation", "function", "tool_response", "ipython"),
}
"""What each role is called elsewhere."""
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
_PLACEHOLDER = re.compile("<(ref-object|bbox)>")


def read_turns(row: Row, columns: Columns, where: str, form: RowFormat) -> ParsedRow:
    """Read a row of turns; what the assistant said last is the ground truth where no column holds it.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.
        form: Its form.

    Raises:
        DatasetError: Malformed turns, or two columns of one kind of media are filled.
    """
    media, media_columns = media_of(row, columns, where)
    name = prompt_column(row, columns, form.prompts) or ""
    turns, last = _split_answer(_turns(prompt_of(row, columns, form.prompts, where), f"{where}, column {name}"))
    return _filled(
        ParsedRow(
            prompt=_with_system(turns, row),
            media=media,
            answer=answer_of(row, columns, form.answers, otherwise=last),
            tags=bool(form.tags),
            media_columns=media_columns,
        ),
        row,
        where,
    )


def read_swift(row: Row, columns: Columns, where: str, form: RowFormat) -> ParsedRow:
    """Read a row of ms-swift: messages, or a query and a response.

    Of a row with an instruction and an input the question is both; ``history`` holds earlier turns; ``<ref-object>``
    and ``<bbox>`` stand for what ``objects`` holds.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.
        form: Its form.

    Raises:
        DatasetError: Malformed turns or objects, or two columns of one kind of media are filled.
    """
    name = prompt_column(row, columns, form.prompts) or ""
    prompt = prompt_of(row, columns, form.prompts, where)
    if isinstance(prompt, list | tuple):
        return read_turns(row, columns, where, form)
    media, media_columns = media_of(row, columns, where)
    if columns.prompt == AUTO and name == "input" and "instruction" in row:
        parts = [part for part in (row["instruction"], prompt) if isinstance(part, str) and part.strip()]
        prompt = "\n".join(parts) if parts else prompt
    if not isinstance(prompt, str):
        return ParsedRow(prompt=prompt, media=media, media_columns=media_columns)
    others = tuple(column for column in (*form.answers, *RESPONSES) if column != name)
    chat = _with_system([*_history(row, where), {"role": "user", "content": prompt}], row)
    return _filled(
        ParsedRow(
            prompt=chat if len(chat) > 1 else prompt,
            media=media,
            answer=answer_of(row, columns, others),
            tags=True,
            media_columns=media_columns,
        ),
        row,
        where,
    )


def read_vlm_r1(row: Row, columns: Columns, where: str, form: RowFormat) -> ParsedRow:
    """Read a row of VLM-R1, and add the columns that rewards written for it ask for.

    These are ``problem`` (the question without tags) and ``solution`` (the ground truth in answer tags).

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.
        form: Its form.

    Raises:
        DatasetError: Malformed turns, or two columns of one kind of media are filled.
    """
    parsed = read_turns(row, columns, where, form)
    question = next((_text_of(turn["content"]) for turn in reversed(parsed.prompt) if turn["role"] == "user"), "")
    added: dict[str, Any] = {"problem": without_tags(question) if isinstance(question, str) else question}
    if parsed.answer is not None:
        added["solution"] = f"<answer> {parsed.answer} </answer>"
    return replace(parsed, added={key: value for key, value in added.items() if row.get(key) is None})


def read_trl(row: Row, columns: Columns, where: str, form: RowFormat) -> ParsedRow:
    """Read a row of TRL; its ``completion``, text or messages, is the ground truth where no other column is.

    Args:
        row: Values by column.
        columns: Named columns win over the form's own.
        where: The row, for messages.
        form: Its form.

    Raises:
        DatasetError: Malformed completion, or two columns of one kind of media are filled.
    """
    parsed = read_columns(row, columns, where, form)
    if parsed.answer is not None or columns.answer != AUTO:
        return parsed
    completion = parse_conversation(row.get("completion"), f"{where}, column completion")
    if isinstance(completion, list | tuple) and completion:
        completion = _split_answer(_turns(completion, f"{where}, column completion"))[1]
    return replace(parsed, answer=completion)


def has_other_blocks(messages: Any) -> bool:
    """Tell whether messages hold blocks that carry an address under another type: ``image_url`` and its kin."""
    messages = parse_conversation(messages)
    turns = messages if isinstance(messages, list | tuple) else ()
    contents = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    types = [block.get("type") for block in blocks if isinstance(block, Mapping)]
    return any(isinstance(name, str) and name in OTHER_BLOCKS for name in types)


def _turns(value: Any, where: str) -> list[dict[str, Any]]:
    """Read a list of turns into messages with ``role`` and ``content``; other keys that are not None are kept."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise DatasetError(_malformed("a conversation", value, where))
    return [_turn(turn, where) for turn in value]


def _turn(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise DatasetError(_malformed("a turn of a conversation", turn, where))
    name = turn.get("role") if turn.get("role") is not None else turn.get("from")
    if not isinstance(name, str) or name.lower() not in _ROLE_OF:
        got, expected = shorten(repr(name), limit=80), ", ".join(_ROLE_OF)
        raise DatasetError(explain("A turn has no role that is known", where=where, expected=expected, got=got))
    content = turn.get("content") if turn.get("content") is not None else turn.get("value")
    rest = {key: v for key, v in turn.items() if key not in ("role", "from", "content", "value") and v is not None}
    return {"role": _ROLE_OF[name.lower()], "content": content, **rest}


def _split_answer(turns: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Any]:
    """Take the last assistant turn off: it is what the policy should find, not read."""
    if not turns or turns[-1]["role"] != "assistant":
        return list(turns), None
    return list(turns[:-1]), _text_of(turns[-1]["content"])


def _text_of(content: Any) -> Any:
    """Give content as text where it is a list of text blocks; anything else (a number, a list) as it is."""
    blocks = content if isinstance(content, list) else None
    if blocks and all(isinstance(block, Mapping) and isinstance(block.get("text"), str) for block in blocks):
        return "".join(block["text"] for block in blocks)
    return content


def _with_system(turns: Sequence[Mapping[str, Any]], row: Row) -> list[Mapping[str, Any]]:
    """Put the row's ``system`` column before its turns, unless they begin with a system message."""
    system = row.get("system")
    if not isinstance(system, str) or not system.strip() or (turns and turns[0]["role"] == "system"):
        return list(turns)
    return [{"role": "system", "content": system}, *turns]


def _history(row: Row, where: str) -> list[dict[str, Any]]:
    """Read earlier turns: a list of pairs of what the user asked and what the assistant answered."""
    pairs = parse_cell(row.get("history")) or ()
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        expected, got = 'a list of pairs: [["question", "answer"], …]', shorten(repr(pairs))
        raise DatasetError(explain("This is no history", where=where, expected=expected, got=got))
    asked = [({"role": "user", "content": q}, {"role": "assistant", "content": a}) for q, a in pairs]
    return [turn for pair in asked for turn in pair]


def _filled(parsed: ParsedRow, row: Row, where: str) -> ParsedRow:
    """Fill ``<ref-object>`` and ``<bbox>`` from the row's ``objects``, in the order in which they stand.

    A box is written as ``[x1, y1, x2, y2]``, its numbers as the row has them.
    """
    if not any(_PLACEHOLDER.search(text) and "</bbox>" not in text for text in _texts((parsed.prompt, parsed.answer))):
        return parsed
    objects = parse_cell(row.get("objects"))
    objects = objects if isinstance(objects, Mapping) else {}
    waiting = {
        "ref-object": iter([str(name) for name in objects.get("ref") or ()]),
        "bbox": iter([_box(box, where) for box in objects.get("bbox") or ()]),
    }

    def fill(match: re.Match[str]) -> str:
        """Give what the next placeholder stands for."""
        value = next(waiting[match[1]], None)
        if value is None:
            raise DatasetError(
                explain(
                    f"The row has more {match[0]} than its objects fill",
                    where=where,
                    expected='a column objects: {"ref": ["dog"], "bbox": [[10, 20, 110, 220]]}, one for each',
                    got=shorten(repr(row.get("objects"))),
                )
            )
        return value

    prompt = _replaced(parsed.prompt, fill)
    return replace(parsed, prompt=prompt, answer=_replaced(parsed.answer, fill))


def _box(box: Any, where: str) -> str:
    numbers = box if isinstance(box, list | tuple) else ()
    if not numbers or not all(isinstance(n, int | float) and n == n and abs(n) < 1e9 for n in numbers):
        expected = "a list of numbers: [x1, y1, x2, y2]"
        raise DatasetError(explain("A box is malformed", where=where, expected=expected, got=shorten(repr(box))))
    return f"[{', '.join(str(int(n) if n == int(n) else n) for n in numbers)}]"


def _texts(value: Any) -> Iterator[str]:
    """Give all texts of messages or of an answer."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, Mapping):
        yield from _texts([value[key] for key in ("content", "text") if key in value])


def _replaced(value: Any, fill: Any) -> Any:
    """Fill the placeholders of all texts of messages or of an answer."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(fill, value)
    if isinstance(value, list | tuple):
        return [_replaced(one, fill) for one in value]
    if isinstance(value, Mapping):
        return {key: _replaced(one, fill) if key in ("content", "text") else one for key, one in value.items()}
    return value


def _malformed(what: str, got: Any, where: str) -> str:
    expected = 'a list of {"role": …, "content": …} or {"from": …, "value": …}'
    fix = ONE_FORM if got is None else ""
    return explain(f"This is not {what}", where=where, expected=expected, got=shorten(repr(got)), fix=fix)
