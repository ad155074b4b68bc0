"""Control tokens in a row's text: found, and read as the letters that they are where that is asked for.

A tokenizer takes ``<|im_end|>`` for the end of a turn wherever it stands, so a question may forge one. Which of them a
row wrote, and which the chat template, is told by rendering the conversation once more with the row's marked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ProcessorError, explain
from mmgrpo.types import Message

_MARK = "\ue000"
"""Stands for the first letter of a control token that a row wrote; no text has it."""


def control_tokens(processor: Any) -> frozenset[str]:
    """List the texts that the tokenizer takes for control tokens.

    Args:
        processor: A processor, or a tokenizer.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(token.content for token in added.values() if token.special and token.content.strip())


def controls_in(messages: Sequence[Message], tokens: Collection[str]) -> tuple[str, ...]:
    """List the control tokens that texts of a conversation hold, longest first.

    Args:
        messages: The conversation, before its template.
        tokens: From :func:`control_tokens`.
    """
    present = {token for text in _texts(messages) for token in tokens if token in text}
    return tuple(sorted(present, key=lambda token: (-len(token), token)))


def mark_controls(messages: Sequence[Message], controls: Sequence[str]) -> list[dict[str, Any]]:
    """Mark the control tokens in texts of a conversation, so that they can be told from the template's.

    Args:
        messages: The conversation.
        controls: From :func:`controls_in`.
    """
    pattern = re.compile("|".join(map(re.escape, controls)))

    def marked(text: str) -> str:
        """Put the mark in the place of the first letter."""
        return pattern.sub(lambda match: _MARK + match[0][1:], text)

    def marked_content(content: Any) -> Any:
        """Mark text, or the text blocks of a list."""
        if isinstance(content, str):
            return marked(content)
        return [{**block, "text": marked(block["text"])} if "text" in block else block for block in content]

    return [{**message, "content": marked_content(message["content"])} for message in messages]


def split_controls(
    output: Mapping[str, Any], marked: str, controls: Sequence[str], tokenizer: Any, *, where: str
) -> dict[str, Any]:
    """Put the tokens of its letters in the place of each control token that the row wrote.

    Args:
        output: Of the processor; tensors as long as the token ids grow with them.
        marked: The rendered conversation with the row's control tokens marked.
        controls: Those that the row's text holds, longest first.
        tokenizer: The processor's.
        where: The sample, for messages.

    Raises:
        ProcessorError: They cannot be told from the template's, or the tokenizer has no letters for them.
    """
    ids: list[int] = output["input_ids"][0].tolist()
    pattern = re.compile("|".join(re.escape(c) + "|" + re.escape(_MARK + c[1:]) for c in controls))
    written = [match[0] for match in pattern.finditer(marked)]
    letters: dict[int, list[int]] = {}
    for control in controls:
        number = int(tokenizer.convert_tokens_to_ids(control))
        pieces = tokenizer(control, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        mine = [text.startswith(_MARK) for text in written if text[1:] == control[1:]]
        places = [place for place, token in enumerate(ids) if token == number]
        if len(places) != len(mine) or number in pieces or not pieces:
            fix = "Remove it from the row's text, or leave control_tokens: text out."
            what = f"The control token {control} cannot be read as text here"
            raise ProcessorError(explain(what, where=where, fix=fix))
        letters |= {place: pieces for place, is_text in zip(places, mine, strict=True) if is_text}
    source = [place for place in range(len(ids)) for _ in letters.get(place, [0])]
    new_ids = [token for place, one in enumerate(ids) for token in letters.get(place, [one])]
    grown = {key: _grown(value, len(ids), source) for key, value in output.items()}
    return {**grown, "input_ids": output["input_ids"].new_tensor([new_ids])}


def _grown(value: Any, length: int, source: Sequence[int]) -> Any:
    """Repeat what a processor says of a token for each of the letters in its place."""
    if isinstance(value, Tensor) and value.ndim == 2 and value.shape == (1, length):
        return value[:, torch.tensor(source)]
    return value


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message["content"]
        yield from [content] if isinstance(content, str) else [block.get("text", "") for block in content]
