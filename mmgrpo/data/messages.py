"""A conversation with its media in order: from a plain question or from chat messages.

Knows roles and content blocks, and no column names. A block ``{"type": "image"}`` stands for the next picture of the
row; a block that carries its medium (``{"type": "image", "image": …}``) brings its own. Texts may be cut into blocks
at tags such as ``<image>``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmgrpo.data.formats.blocks import plain_block
from mmgrpo.data.formats.reading import KINDS, Part
from mmgrpo.data.formats.tags import split_tags
from mmgrpo.errors import DatasetError, explain
from mmgrpo.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages, and the media that their placeholders stand for."""

    messages: tuple[Message, ...]
    media: tuple[Part, ...] = ()


@dataclass(slots=True)
class _Queue:
    """Media of the row's columns that wait for their placeholder, and all media in order so far."""

    waiting: dict[str, list[Part]]
    taken: list[Part] = field(default_factory=list)

    def take(self, kind: str, own: Any, where: str) -> None:
        """Fill one placeholder: with the medium that its block carries, or with the next of the row."""
        if own is None:
            if not self.waiting.get(kind):
                raise DatasetError(_mismatch(kind, "more placeholders than media", where))
            self.taken.append(self.waiting[kind].pop(0))
        else:
            self.taken.append(Part(kind, own))


def ask(text: str, *, system: str | None, media: Sequence[Part]) -> Conversation:
    """Build the conversation of a plain question: its media first, then the text.

    Args:
        text: The user's message.
        system: The system message, if there is one.
        media: In order.

    Example:
        >>> ask("How many?", system=None, media=[Part("image", "a.png")]).messages[0]["content"]
        [{'type': 'image'}, {'type': 'text', 'text': 'How many?'}]
    """
    content: Any = [*({"type": part.kind} for part in media), {"type": "text", "text": text}] if media else text
    return Conversation(messages=(*_opening(system, ()), {"role": "user", "content": content}), media=tuple(media))


def converse(
    messages: Sequence[Mapping[str, Any]],
    *,
    system: str | None,
    media: Sequence[Part],
    rewrite: Callable[[str], str],
    where: str,
    tags: bool = False,
) -> Conversation:
    """Build the conversation of a row that holds chat messages.

    Args:
        messages: ``role`` and ``content`` (text or blocks); keys that are None are dropped.
        system: Put first, unless the messages bring a system message of their own.
        media: What the row's columns hold, in order. Without any placeholder they stand before the first user text.
        rewrite: Applied to the last text of the last user message.
        where: The row, for messages.
        tags: ``<image>``, ``<video>`` and ``<audio>`` in texts that are not the assistant's are placeholders, and
            those that are missing stand before the first user text.

    Raises:
        DatasetError: Malformed messages, or placeholders that do not match the media.
    """
    turns = [_turn(message, where) for message in messages]
    users = [i for i, turn in enumerate(turns) if turn["role"] == "user"]
    if not users or turns[-1]["role"] == "assistant":
        raise DatasetError(
            explain(
                "A conversation must end where the policy answers",
                where=where,
                expected="a user message, and no assistant message after it",
                got=" -> ".join(turn["role"] for turn in turns) or "no messages",
                fix="Leave the assistant's last message out, or give the rows as format: swift: then it is the truth.",
            )
        )
    turns[users[-1]]["content"] = _rewritten(turns[users[-1]]["content"], rewrite)
    if tags:
        turns = [turn if turn["role"] == "assistant" else {**turn, "content": _cut(turn["content"])} for turn in turns]
    turns[users[0]]["content"] = [*_missing(turns, media, tags), *turns[users[0]]["content"]]
    queue = _Queue({kind: [part for part in media if part.kind == kind] for kind in KINDS})
    done = [{**turn, "content": _closed(turn["content"], queue, where)} for turn in turns]
    for kind, rest in queue.waiting.items():
        if rest:
            raise DatasetError(_mismatch(kind, f"{len(rest)} more media than placeholders", where))
    return Conversation(messages=(*_opening(system, turns), *done), media=tuple(queue.taken))


def _opening(system: str | None, turns: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    if system is None or (turns and turns[0]["role"] == "system"):
        return ()
    return ({"role": "system", "content": system},)


def _turn(message: Any, where: str) -> dict[str, Any]:
    """Copy one message, its content as a list of blocks without None keys (arrow tables fill those in)."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DatasetError(_malformed("a message", '{"role": …, "content": …}', message, where))
    content = message.get("content")
    blocks = [content] if isinstance(content, str) else [] if content is None else content
    if not isinstance(blocks, Sequence):
        raise DatasetError(_malformed("a message's content", "text or a list of blocks", content, where))
    rest = {key: value for key, value in message.items() if value is not None}
    return {**rest, "content": [_block(block, where) for block in blocks]}


def _block(block: Any, where: str) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    expected = '{"type": "text", "text": …} or {"type": "image"}, "audio", "video"'
    if not isinstance(block, Mapping):
        raise DatasetError(_malformed("a content block", expected, block, where))
    kept = plain_block(block)
    kind = kept.get("type")
    if kind not in ("text", *KINDS) or (kind == "text" and not isinstance(kept.get("text"), str)):
        raise DatasetError(_malformed("a content block", expected, block, where))
    return kept


def _missing(turns: Sequence[Mapping[str, Any]], media: Sequence[Part], tags: bool) -> list[dict[str, Any]]:
    """Give placeholders for the media that have none: under tags each of them, else only where nothing has one."""
    opened = Counter(block["type"] for turn in turns for block in turn["content"] if _is_open(block))
    if opened and not tags:
        return []
    missing = Counter(part.kind for part in media) - opened
    return [{"type": kind} for kind in KINDS for _ in range(missing[kind])]


def _cut(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cut text blocks at their tags."""
    return [piece for b in blocks for piece in (split_tags(b["text"]) if b["type"] == "text" else [b])]


def _own(block: Mapping[str, Any]) -> Any:
    """Return the medium that a block carries, or None."""
    return block.get(block["type"])


def _is_open(block: Mapping[str, Any]) -> bool:
    return block["type"] in KINDS and _own(block) is None


def _closed(blocks: list[dict[str, Any]], queue: _Queue, where: str) -> str | list[dict[str, Any]]:
    """Hand each placeholder its medium; content of text alone becomes text."""
    for block in blocks:
        if block["type"] in KINDS:
            queue.take(block["type"], _own(block), where)
    if all(block["type"] == "text" for block in blocks):
        return "".join(block["text"] for block in blocks)
    return [block if block["type"] == "text" else {"type": block["type"]} for block in blocks]


def _rewritten(blocks: list[dict[str, Any]], rewrite: Callable[[str], str]) -> list[dict[str, Any]]:
    last = max((i for i, block in enumerate(blocks) if block["type"] == "text"), default=None)
    if last is None:
        return blocks
    return [{**b, "text": rewrite(b["text"])} if i == last else b for i, b in enumerate(blocks)]


def _mismatch(kind: str, got: str, where: str) -> str:
    return explain(
        f"The {kind} placeholders of the messages do not match the row's media",
        where=where,
        expected=f'one {{"type": "{kind}"}} block, or one <{kind}> where tags count, for each {kind}; or none at all',
        got=got,
        fix=f"Give the row as many {kind}s as its text has places for them.",
    )


def _malformed(what: str, expected: str, got: Any, where: str) -> str:
    return explain(f"This is not {what}", where=where, expected=expected, got=repr(got)[:200])
