"""Similarity of texts: ROUGE, BLEU, and the cosine of sentence embeddings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo import answer_or_text, load_plugin, plain_words, read_ground_truth, reward_facts

_LONGEST = 2000
_MAX_TOKENS = 256


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


def _pairs(completions: list[str], answer: list[Any]) -> list[tuple[list[str], list[str]] | None]:
    """Words of each completion's answer and of its ground truth; None where there is none."""
    ground_truths = [read_ground_truth(value) for value in answer]
    return [
        None if ground_truth is None else (_words(answer_or_text(text)), _words(str(ground_truth)))
        for text, ground_truth in zip(completions, ground_truths, strict=True)
    ]


def _words(text: str) -> list[str]:
    """Lower-case words; each Chinese or Japanese character is one."""
    return plain_words(text[: 20 * _LONGEST])[:_LONGEST]


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


@reward_facts(low=0.0, high=1.0)
def rouge(completions: list[str], answer: list[Any], kind: str = "L") -> list[float | None]:
    """ROUGE F-measure against the ground truth.

    F = 2 * precision * recall / (precision + recall), over shared words (1), word pairs (2), or the longest common
    subsequence of words (L); ``mean`` is the mean of the three.

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The reference text; None or an empty text: does not apply.
        kind: ``1``, ``2``, ``L`` or ``mean``.

    Returns:
        0 to 1.

    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004.

    Example:
        >>> rouge(["two red cubes", "a cat"], ["two cubes", "two cubes"])
        [0.8, 0.0]
    """
    if str(kind) not in ("1", "2", "L", "mean"):
        raise ValueError(f"kind {kind!r} is not one of 1, 2, L, mean")
    kinds = ["1", "2", "L"] if kind == "mean" else [str(kind)]
    return [
        None if pair is None else sum(_rouge(*pair, k) for k in kinds) / len(kinds)
        for pair in _pairs(completions, answer)
    ]


def _rouge(written: list[str], ground_truth: list[str], kind: str) -> float:
    if kind == "L":
        shared, left, right = _common(written, ground_truth), len(written), len(ground_truth)
    else:
        a, b = _grams(written, int(kind)), _grams(ground_truth, int(kind))
        shared, left, right = (a & b).total(), a.total(), b.total()
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
    """Sentence BLEU against the ground truth, smoothed so that a short text is not 0 for lack of long pieces.

    BLEU = brevity * exp(mean over n of log((shared n-grams + 1) / (n-grams + 1))), without the +1 for n = 1

    Args:
        completions: What the policy wrote; the ``<answer>`` is compared, or all behind the reasoning.
        answer: The reference text; None or an empty text: does not apply.
        max_ngram: Longest piece.

    Returns:
        0 to 1.

    Source: Papineni et al., 2002; smoothing of Lin and Och, 2004.

    Example:
        >>> bleu(["two red cubes", "a cat"], ["two red cubes", "two cubes"])
        [1.0, 0.0]
    """
    if max_ngram < 1:
        raise ValueError(f"max_ngram is at least 1; got {max_ngram!r}")
    return [None if pair is None else _bleu(*pair, max_ngram) for pair in _pairs(completions, answer)]


def _bleu(written: list[str], ground_truth: list[str], max_ngram: int) -> float:
    logs = 0.0
    for n in range(1, max_ngram + 1):
        a, b = _grams(written, n), _grams(ground_truth, n)
        shared, all_ = (a & b).total() + (n > 1), a.total() + (n > 1)
        if not shared:
            return 0.0
        logs += math.log(shared / all_) / max_ngram
    return min(1.0, math.exp(1 - len(ground_truth) / len(written))) * math.exp(logs)


@reward_facts(low=-1.0, high=1.0, pure=True)
class EmbeddingCosine:
    """Cosine between sentence embeddings of the answer and the ground truth.

    The embedding is the mean of the model's last hidden states over real tokens, of length 1. Texts are cut at 256
    tokens; the fraction of them is logged as ``embedding_cosine/cut``.

    Args:
        model: A hub id or folder of a text encoder, for example ``sentence-transformers/all-MiniLM-L6-v2``.
        device: Where it runs.
        batch_size: Texts at once.

    Source: Sentence-BERT, arXiv:1908.10084.
    """

    def __init__(self, model: str, device: str = "cpu", batch_size: int = 64) -> None:
        from transformers import AutoModel, AutoTokenizer

        if batch_size < 1:
            raise ValueError(f"batch_size is at least 1; got {batch_size!r}")
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        load_whole = load_plugin("reward_model.py", beside=__file__).load_whole
        self.model = load_whole(AutoModel, model, unused=("pooler.",)).to(device).eval()
        self.device, self.batch_size = device, batch_size
        self.__name__ = "embedding_cosine"

    def __call__(
        self, completions: list[str], answer: list[Any], log_metric: Callable[[str, float], None] = _nowhere
    ) -> list[float | None]:
        """Compare what each completion says with its ground truth."""
        ground_truths = [read_ground_truth(value) for value in answer]
        rows = [row for row, ground_truth in enumerate(ground_truths) if ground_truth is not None]
        scores: list[float | None] = [None] * len(completions)
        if rows:
            texts = [*(answer_or_text(completions[row]) for row in rows), *(str(ground_truths[row]) for row in rows)]
            written, true = self._embed(texts).chunk(2)
            cut = sum(len(self.tokenizer(text, verbose=False)["input_ids"]) > _MAX_TOKENS for text in texts)
            log_metric("embedding_cosine/cut", cut / len(texts))
            for row, cosine in zip(rows, (written * true).sum(-1).clamp(-1, 1).tolist(), strict=True):
                scores[row] = cosine
        return scores

    def _embed(self, texts: list[str]) -> Any:
        import torch

        parts = []
        for start in range(0, len(texts), self.batch_size):
            tokens = self.tokenizer(
                texts[start : start + self.batch_size],
                padding=True,
                truncation=True,
                max_length=_MAX_TOKENS,
                return_tensors="pt",
            ).to(self.device)
            with torch.inference_mode():
                hidden = self.model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"][..., None].float()
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            parts.append(torch.nn.functional.normalize(mean, dim=-1).cpu())
        return torch.cat(parts)
