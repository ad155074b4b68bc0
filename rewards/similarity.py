"""Similarity of texts: ROUGE, BLEU, and the cosine of sentence embeddings."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mmgrpo import after_reasoning, last_answer, reward_facts

_WORD = re.compile(r"[\u3400-\u9fff\u3040-\u30ff]|\w+")
_LONGEST = 2000


def _words(text: str) -> list[str]:
    """Lower-case words; each Chinese or Japanese character is one."""
    return _WORD.findall(text.lower())[:_LONGEST]


def _said(text: str) -> str:
    """What is compared: the last ``<answer>``, else all that stands behind the reasoning."""
    answer = last_answer(text)
    return after_reasoning(text) if answer is None else answer


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


@reward_facts(low=0.0, high=1.0)
def rouge(completions: list[str], answer: list[Any], kind: str = "L") -> list[float | None]:
    """ROUGE F-measure against the truth.

    F = 2 * precision * recall / (precision + recall), over shared words (1), word pairs (2), or the longest common
    subsequence of words (L); ``mean`` is the mean of the three.

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The reference text; None: does not apply.
        kind: ``1``, ``2``, ``L`` or ``mean``.

    Returns:
        0 to 1.

    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004.

    Example:
        >>> rouge(["two red cubes", "a cat"], ["two cubes", "two cubes"])
        [0.8, 0.0]
    """
    kinds = ["1", "2", "L"] if kind == "mean" else [str(kind)]
    pairs = [
        None if truth is None else (_words(_said(text)), _words(str(truth)))
        for text, truth in zip(completions, answer, strict=True)
    ]
    return [None if pair is None else sum(_rouge(*pair, k) for k in kinds) / len(kinds) for pair in pairs]


def _rouge(given: list[str], truth: list[str], kind: str) -> float:
    if kind == "L":
        shared, left, right = _common(given, truth), len(given), len(truth)
    elif kind in ("1", "2"):
        a, b = _grams(given, int(kind)), _grams(truth, int(kind))
        shared, left, right = (a & b).total(), a.total(), b.total()
    else:
        raise ValueError(f"kind {kind!r} is not one of 1, 2, L, mean")
    return 2 * shared / (left + right) if shared else 0.0


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


@reward_facts(low=0.0, high=1.0)
def bleu(completions: list[str], answer: list[Any], max_ngram: int = 4) -> list[float | None]:
    """Sentence BLEU against the truth, smoothed so that a short text is not 0 for lack of long pieces.

    BLEU = brevity * exp(mean over n of log((shared n-grams + 1) / (n-grams + 1))), without the +1 for n = 1

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The reference text; None: does not apply.
        max_ngram: Longest piece.

    Returns:
        0 to 1.

    Source: Papineni et al., 2002; smoothing of Lin and Och, 2004.

    Example:
        >>> bleu(["two red cubes", "a cat"], ["two red cubes", "two cubes"])
        [1.0, 0.0]
    """
    return [
        None if truth is None else _bleu(_words(_said(text)), _words(str(truth)), max_ngram)
        for text, truth in zip(completions, answer, strict=True)
    ]


def _bleu(given: list[str], truth: list[str], max_ngram: int) -> float:
    logs = 0.0
    for n in range(1, max_ngram + 1):
        a, b = _grams(given, n), _grams(truth, n)
        shared, all_ = (a & b).total() + (n > 1), a.total() + (n > 1)
        if not shared:
            return 0.0
        logs += math.log(shared / all_) / max_ngram
    return min(1.0, math.exp(1 - len(truth) / len(given))) * math.exp(logs)


@reward_facts(low=-1.0, high=1.0, pure=True)
class EmbeddingCosine:
    """Cosine between sentence embeddings of the answer and the truth.

    The embedding is the mean of the model's last hidden states over real tokens, of length 1.

    Args:
        model: A hub id or folder of a text encoder, for example ``sentence-transformers/all-MiniLM-L6-v2``.
        device: Where it runs.
        batch_size: Texts at once.

    Source: Sentence-BERT, arXiv:1908.10084.
    """

    def __init__(self, model: str, device: str = "cpu", batch_size: int = 64) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModel.from_pretrained(model).to(device).eval()
        self.device, self.batch_size = device, batch_size
        self.__name__ = "embedding_cosine"

    def __call__(self, completions: list[str], answer: list[Any]) -> list[float | None]:
        """Compare what each completion says with its truth."""
        given = self._embed([_said(text) for text in completions])
        truth = self._embed([str(text) for text in answer])
        cosines = (given * truth).sum(-1).clamp(-1, 1).tolist()
        return [None if text is None else value for text, value in zip(answer, cosines, strict=True)]

    def _embed(self, texts: list[str]) -> Any:
        import torch

        parts = []
        for start in range(0, len(texts), self.batch_size):
            tokens = self.tokenizer(
                texts[start : start + self.batch_size],
                padding=True,
                truncation=True,
                max_length=256,
                return_tensors="pt",
            ).to(self.device)
            with torch.inference_mode():
                hidden = self.model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"][..., None].float()
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            parts.append(torch.nn.functional.normalize(mean, dim=-1).cpu())
        return torch.cat(parts)
