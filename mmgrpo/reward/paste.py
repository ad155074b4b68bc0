"""Groups made of given texts, without a model: to try rewards on completions that somebody wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmgrpo.types import Completion, Decoded, Group, Prompt, Sample


def pasted_group(
    texts: Sequence[str],
    *,
    answer: Any = None,
    id: str = "pasted",
    media: Sequence[Decoded] = (),
    prefill: str = "",
    **extras: Any,
) -> Group:
    """Make a group of completions that were not sampled.

    Args:
        texts: What each completion says.
        answer: The truth.
        id: Id of the sample.
        media: Decoded media of the prompt.
        prefill: What the chat template already wrote of the answer.
        **extras: Other columns of the row.

    Returns:
        A group whose completions have one token per character, for lack of a tokenizer.

    Example:
        >>> pasted_group(["3", "4"], answer=3).completions[1].text
        '4'
    """
    messages = ({"role": "user", "content": extras.get("problem", "")},)
    sample = Sample(id=id, messages=messages, answer=answer, extras=extras)
    prompt = Prompt(
        sample=sample,
        text=str(extras.get("problem", "")),
        token_ids=torch.zeros(1, dtype=torch.long),
        model_inputs={},
        media=tuple(media),
        prefill=prefill,
    )
    return regroup(prompt, texts)


def regroup(prompt: Prompt, texts: Sequence[str]) -> Group:
    """Put given texts in the place of completions of a real prompt, as :func:`pasted_group` does."""
    return Group(prompt=prompt, completions=tuple(_completion(text) for text in texts))


def _completion(text: str) -> Completion:
    length = max(len(text), 1)
    return Completion(
        token_ids=torch.tensor([ord(c) for c in text] or [0]),
        rollout_logprobs=torch.zeros(length),
        loss_mask=torch.ones(length, dtype=torch.bool),
        text=text,
        status="stop",
        policy_version=0,
    )
