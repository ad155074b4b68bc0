"""CLAP: how well the text that a completion writes fits the sound of its prompt."""

from __future__ import annotations

from typing import Any

from mmgrpo import after_reasoning, last_answer, reward_facts


@reward_facts(low=0.0, high=1.0, pure=True)
class ClapScore:
    """CLAP similarity of a completion's caption and the sound of its prompt.

    r = clip((cosine - low) / (high - low), 0, 1)

    Sound is resampled to the model's own rate (48 kHz) first.

    Args:
        model: A hub id or folder, for example ``laion/clap-htsat-unfused``.
        device: Where it runs.
        low: Cosine that earns 0.
        high: Cosine that earns 1.
        batch_size: Sounds or texts at once.

    Source: CLAP, arXiv:2211.06687.
    """

    def __init__(
        self, model: str, device: str = "cpu", low: float = 0.0, high: float = 0.6, batch_size: int = 16
    ) -> None:
        from transformers import AutoProcessor, ClapModel

        self.__name__ = "clap_score"
        self.model = ClapModel.from_pretrained(model).to(device).eval()
        self.processor = AutoProcessor.from_pretrained(model)
        self.rate = self.processor.feature_extractor.sampling_rate
        self.device, self.low, self.high, self.batch_size = device, low, high, batch_size

    def __call__(self, completions: list[str], audios: list[list[Any]]) -> list[float | None]:
        """Score each caption against the first sound of its row; None without a sound."""
        rows = [row for row, sounds in enumerate(audios) if sounds]
        scores: list[float | None] = [None] * len(completions)
        if not rows:
            return scores
        unique = {id(audios[row][0]): audios[row][0] for row in rows}
        sounds = dict(zip(unique, self._sounds(list(unique.values())), strict=True))
        answers = [last_answer(completions[row]) for row in rows]
        said = [after_reasoning(completions[row]) if a is None else a for row, a in zip(rows, answers, strict=True)]
        for row, text, vector in zip(rows, said, self._texts(said), strict=True):
            cosine = float(vector @ sounds[id(audios[row][0])])
            scores[row] = min(1.0, max(0.0, (cosine - self.low) / (self.high - self.low))) if text.strip() else 0.0
        return scores

    def _sounds(self, sounds: list[Any]) -> list[Any]:
        waves = [_resampled(sound.data, sound.rate, self.rate) for sound in sounds]
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
                found = features(**batch)
            found = getattr(found, "pooler_output", found)
            vectors += list(torch.nn.functional.normalize(found.float(), dim=-1).cpu())
        return vectors


def _resampled(wave: Any, rate: float, wanted: float) -> Any:
    """Another sampling rate by linear interpolation: enough for a score, and without a dependency."""
    import numpy as np

    if rate == wanted:
        return np.asarray(wave, dtype=np.float32)
    times = np.arange(int(len(wave) * wanted / rate)) * (rate / wanted)
    return np.interp(times, np.arange(len(wave)), wave).astype(np.float32)
