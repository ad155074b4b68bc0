"""A learned reward: any sequence-classification model of transformers, with or without images."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from mmgrpo import reward_facts


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


def load_whole(model_class: Any, name: str, *, unused: tuple[str, ...] = (), **arguments: Any) -> Any:
    """Load a model by ``from_pretrained``, and refuse one that would be part random.

    Args:
        model_class: A class of transformers.
        name: A hub id or folder.
        unused: Prefixes of weights that the reward does not need.
        **arguments: Handed to ``from_pretrained``.

    Returns:
        The model.

    Raises:
        ValueError: The checkpoint lacks weights.
    """
    model, report = model_class.from_pretrained(name, output_loading_info=True, **arguments)
    missing = sorted(key for key in report["missing_keys"] if not (unused and key.startswith(unused)))
    unexpected = sorted(report["unexpected_keys"])
    if missing:
        other = f" It has {len(unexpected)} unknown ones, such as {unexpected[0]}." if unexpected else ""
        raise ValueError(
            f"the checkpoint {name} lacks {len(missing)} weights of {type(model).__name__}, such as "
            f"{', '.join(missing[:3])}: they would be random.{other} Name a checkpoint that was trained for this, or "
            "download it again"
        )
    if unexpected:
        warnings.warn(
            f"The checkpoint {name} has {len(unexpected)} weights that {type(model).__name__} does not use, such as "
            f"{unexpected[0]}.",
            stacklevel=2,
        )
    return model


@reward_facts(pure=True)
class RewardModel:
    """The score that a reward model gives to prompt and completion.

    The model reads the conversation through its own chat template, or ``prompt + completion`` where it has none.
    With ``multimodal`` its processor also gets the images of the row.

    Args:
        model: A hub id or folder of a model with one logit.
        device: Where it runs.
        batch_size: Completions at once.
        max_length: Longest conversation, in tokens; longer ones are cut at the front, and the
            fraction of them is logged as ``reward_model/cut``.
        multimodal: Hand over images.
        squash: Pass the logit through a sigmoid, so that values lie in 0 to 1.

    Source: the reward models of RLHF (arXiv:2203.02155) as transformers and TRL load them.
    """

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        batch_size: int = 16,
        max_length: int = 4096,
        multimodal: bool = False,
        squash: bool = False,
    ) -> None:
        from transformers import AutoModelForSequenceClassification, AutoProcessor, AutoTokenizer

        if batch_size < 1 or max_length < 1:
            raise ValueError("RewardModel wants a batch_size and a max_length of at least 1")
        self.__name__ = "reward_model"
        self.model = load_whole(AutoModelForSequenceClassification, model, num_labels=1).to(device).eval()
        self.processor = (AutoProcessor if multimodal else AutoTokenizer).from_pretrained(model)
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
        if self.model.config.get_text_config().pad_token_id is None:
            self.model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        self.device, self.batch_size, self.max_length = device, batch_size, max_length
        self.multimodal, self.squash = multimodal, squash

    def __call__(
        self,
        completions: list[str],
        messages: list[list[Any]],
        prompts: list[str],
        images: list[list[Any]],
        log_metric: Callable[[str, float], None] = _nowhere,
    ) -> Any:
        """Score each conversation."""
        import torch

        texts = [self._text(m, p, c) for m, p, c in zip(messages, prompts, completions, strict=True)]
        parts = []
        cut = 0
        for start in range(0, len(texts), self.batch_size):
            rows = slice(start, start + self.batch_size)
            extra = {"images": images[rows]} if self.multimodal and any(images[rows]) else {}
            batch = self.processor(
                text=texts[rows], padding=True, truncation=not self.multimodal, max_length=self.max_length,
                return_tensors="pt", **extra,
            )  # fmt: skip
            cut += 0 if self.multimodal else int((batch["attention_mask"].sum(-1) >= self.max_length).sum())
            with torch.inference_mode():
                parts.append(self.model(**batch.to(self.device)).logits[:, 0].float().cpu())
        log_metric("reward_model/cut", cut / max(len(texts), 1))
        scores = torch.cat(parts) if parts else torch.zeros(0)
        return scores.sigmoid() if self.squash else scores

    def _text(self, messages: list[Any], prompt: str, completion: str) -> str:
        if getattr(self.processor, "chat_template", None):
            talk = [*messages, {"role": "assistant", "content": completion}]
            return self.processor.apply_chat_template(talk, tokenize=False)
        return f"{prompt}\n{completion}"
