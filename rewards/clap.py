"""CLAP: how well the text that a completion writes fits the audio of its prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmgrpo import answer_or_text, load_plugin, reward_facts


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


@reward_facts(low=0.0, high=1.0, pure=True)
class ClapScore:
    """CLAP similarity of a completion's caption and the audio of its prompt.

    r = clip((cosine - low) / (high - low), 0, 1)

    Audio is resampled to the model's own rate (48 kHz) first. Captions longer than the model's context are cut there;
    the fraction of them is logged as ``clap_score/cut``.

    Args:
        model: A hub id or folder, for example ``laion/clap-htsat-unfused``.
        device: Where it runs.
        low: Cosine that earns 0.
        high: Cosine that earns 1.
        batch_size: Audios or texts at once.

    Source: CLAP, arXiv:2211.06687.
    """

    def __init__(
        self, model: str, device: str = "cpu", low: float = 0.0, high: float = 0.6, batch_size: int = 16
    ) -> None:
        from transformers import AutoProcessor, ClapModel

        if low >= high or batch_size < 1:
            raise ValueError("ClapScore wants low below high, and a batch_size of at least 1")
        self.__name__ = "clap_score"
        load_whole = load_plugin("reward_model.py", beside=__file__).load_whole
        self.model = load_whole(ClapModel, model).to(device).eval()
        self.processor = AutoProcessor.from_pretrained(model)
        self.rate = self.processor.feature_extractor.sampling_rate
        self.device, self.low, self.high, self.batch_size = device, low, high, batch_size

    def __call__(
        self,
        completions: list[str],
        audios: list[list[Any]],
        log_metric: Callable[[str, float], None] = _nowhere,
    ) -> list[float | None]:
        """Score each caption against the first audio of its row; None without one."""
        rows = [row for row, row_audios in enumerate(audios) if row_audios]
        scores: list[float | None] = [None] * len(completions)
        if not rows:
            return scores
        unique = {id(audios[row][0]): audios[row][0] for row in rows}
        vectors = dict(zip(unique, self._audios(list(unique.values())), strict=True))
        captions = [answer_or_text(completions[row]) for row in rows]
        for row, caption, vector in zip(rows, captions, self._texts(captions), strict=True):
            cosine = float(vector @ vectors[id(audios[row][0])])
            scores[row] = min(1.0, max(0.0, (cosine - self.low) / (self.high - self.low))) if caption else 0.0
        log_metric("clap_score/cut", sum(self._is_cut(caption) for caption in captions) / len(captions))
        return scores

    def _is_cut(self, caption: str) -> bool:
        tokenizer = self.processor.tokenizer
        return len(tokenizer(caption, verbose=False)["input_ids"]) > tokenizer.model_max_length

    def _audios(self, audios: list[Any]) -> list[Any]:
        waves = [_resampled(audio.data, audio.rate, self.rate) for audio in audios]
        return self._encode(
            waves,
            lambda part: self.processor(audio=part, sampling_rate=self.rate, return_tensors="pt"),
            self.model.get_audio_features,
        )

    def _texts(self, texts: list[str]) -> list[Any]:
        return self._encode(
            texts,
            lambda part: self.processor(text=part, return_tensors="pt", padding=True, truncation=True),
            self.model.get_text_features,
        )

    def _encode(self, items: list[Any], prepare: Any, features: Any) -> list[Any]:
        import torch

        vectors: list[Any] = []
        for start in range(0, len(items), self.batch_size):
            batch = prepare(items[start : start + self.batch_size]).to(self.device)
            with torch.inference_mode():
                output = features(**batch)
            output = getattr(output, "pooler_output", output)
            vectors += list(torch.nn.functional.normalize(output.float(), dim=-1).cpu())
        return vectors


def _resampled(wave: Any, rate: float, wanted: float) -> Any:
    """Another sampling rate by linear interpolation: enough for a score, and without a dependency."""
    import numpy as np

    if rate == wanted:
        return np.asarray(wave, dtype=np.float32)
    times = np.arange(int(len(wave) * wanted / rate)) * (rate / wanted)
    return np.interp(times, np.arange(len(wave)), wave).astype(np.float32)
