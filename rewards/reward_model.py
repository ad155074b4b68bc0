"""A learned reward: any sequence-classification model of transformers, with or without pictures."""

from __future__ import annotations

from typing import Any

from mmgrpo import reward_facts


@reward_facts(pure=True)
class RewardModel:
    """The score that a reward model gives to prompt and completion.

    The model reads the conversation through its own chat template, or ``prompt + completion`` where it has none.
    With ``multimodal`` its processor also gets the pictures of the row.

    Args:
        model: A hub id or folder of a model with one logit.
        device: Where it runs.
        batch_size: Completions at once.
        max_length: Longest conversation, in tokens; longer ones are cut at the front.
        multimodal: Hand over pictures.
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

        self.__name__ = "reward_model"
        self.model = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1).to(device).eval()
        self.processor = (AutoProcessor if multimodal else AutoTokenizer).from_pretrained(model)
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
        if self.model.config.get_text_config().pad_token_id is None:
            self.model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        self.device, self.batch_size, self.max_length = device, batch_size, max_length
        self.multimodal, self.squash = multimodal, squash

    def __call__(
        self, completions: list[str], messages: list[list[Any]], prompts: list[str], images: list[list[Any]]
    ) -> Any:
        """Score each conversation."""
        import torch

        texts = [self._text(m, p, c) for m, p, c in zip(messages, prompts, completions, strict=True)]
        parts = []
        for start in range(0, len(texts), self.batch_size):
            rows = slice(start, start + self.batch_size)
            extra = {"images": images[rows]} if self.multimodal and any(images[rows]) else {}
            batch = self.processor(
                text=texts[rows], padding=True, truncation=not self.multimodal, max_length=self.max_length,
                return_tensors="pt", **extra,
            )  # fmt: skip
            with torch.inference_mode():
                parts.append(self.model(**batch.to(self.device)).logits[:, 0].float().cpu())
        scores = torch.cat(parts)
        return scores.sigmoid() if self.squash else scores

    def _text(self, messages: list[Any], prompt: str, completion: str) -> str:
        if getattr(self.processor, "chat_template", None):
            talk = [*messages, {"role": "assistant", "content": completion}]
            return self.processor.apply_chat_template(talk, tokenize=False)
        return f"{prompt}\n{completion}"
