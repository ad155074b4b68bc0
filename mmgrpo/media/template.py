"""The chat template: conversation in, text out, and what the template itself wrote of the answer.

Works with a processor or, for text-only families, a tokenizer. Knows no family and no token ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from mmgrpo.errors import ProcessorError, explain
from mmgrpo.types import Message

_ROLES = "assistant|model|bot|gpt|ai|system|user|s|bos"
_PREFILL = re.compile(rf"(?:<(?!(?:{_ROLES})>)([A-Za-z][\w-]*)>\s*(?:</\1>\s*)?)+\Z")


def render(processor: Any, messages: Sequence[Message], kwargs: Mapping[str, Any], *, sample_id: str) -> str:
    """Render a conversation up to where the policy answers.

    Args:
        processor: A processor, or a tokenizer where the family reads text alone.
        messages: The conversation.
        kwargs: What the template takes beside, for example ``enable_thinking``.
        sample_id: For messages.

    Returns:
        The text, with one placeholder per medium.

    Raises:
        ProcessorError: There is no template, or it refuses these messages.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    template = getattr(processor, "chat_template", None) or getattr(tokenizer, "chat_template", None)
    if template is None:
        folder = getattr(tokenizer, "name_or_path", "") or "the processor"
        raise ProcessorError(
            explain(
                "There is no chat template",
                where=folder,
                fix="Name a Jinja file under model.chat_template, or use a checkpoint that was trained to chat.",
            )
        )
    shaped = [_shaped(message, as_blocks=tokenizer is not processor) for message in messages]
    options = {**kwargs} if getattr(processor, "chat_template", None) else {"chat_template": template, **kwargs}
    try:
        return processor.apply_chat_template(shaped, tokenize=False, add_generation_prompt=True, **options)
    except (TemplateError, TypeError, KeyError, IndexError, ValueError) as error:
        raise ProcessorError(
            explain(
                "The chat template refuses the conversation",
                where=f"sample {sample_id}",
                expected="roles, turns and content as the checkpoint was trained with",
                got=f"{' -> '.join(str(m['role']) for m in messages)}: {type(error).__name__}: {error}",
                fix="Change data.template, rollout.chat_template_kwargs or model.chat_template.",
            )
        ) from error


def prefill_of(text: str) -> str:
    r"""Find what a template wrote of the answer: tags at the end of the prompt that it opened, or left empty.

    Args:
        text: A rendered conversation.

    Returns:
        The tail that belongs to the answer; rewards read it before the completion.

    Example:
        >>> prefill_of("<|im_start|>assistant\n<think>\n")
        '<think>\n'
        >>> prefill_of("<|im_start|>assistant\n")
        ''
    """
    found = _PREFILL.search(text)
    return found.group() if found else ""


def _shaped(message: Message, *, as_blocks: bool) -> dict[str, Any]:
    """Give content the shape that templates of the kind expect: blocks for processors, text for tokenizers."""
    content = message["content"]
    if as_blocks and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not as_blocks and not isinstance(content, str):
        content = "".join(block["text"] for block in content if block["type"] == "text")
    return {**message, "content": content}
