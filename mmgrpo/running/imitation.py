"""What a warm start imitates: prompts, and the tokens that the policy should write after each.

Knows rows and the words of the YAML; trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmgrpo.config.warm_start import WarmStart
from mmgrpo.contracts import Feed
from mmgrpo.data.templates import fill
from mmgrpo.types import Prompt


def imitation(
    feed: Feed, tokenizer: Any, settings: WarmStart, *, count: int
) -> Callable[[], list[tuple[Prompt, Tensor]]]:
    """Give the next batch to imitate at each call.

    Args:
        feed: Where prompts come from.
        tokenizer: Of the policy.
        settings: The words to write.
        count: Rows of a batch in this process.

    Returns:
        Prompts and the tokens that the policy should write after them, end token included.
    """

    def target(prompt: Prompt) -> Tensor:
        sample = prompt.sample
        values = {**sample.extras, "answer": sample.answer}
        text = fill(settings.target, values, key="warm_start.target", where=f"sample {sample.id}")
        ids = tokenizer(text, add_special_tokens=False).input_ids
        return torch.tensor([*ids, tokenizer.eos_token_id])

    def take() -> list[tuple[Prompt, Tensor]]:
        return [(prompt, target(prompt)) for prompt in feed.take(count)]

    return take
