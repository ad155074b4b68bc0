"""CLIP: how well the text that a completion writes fits the picture of its prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from mmgrpo import after_reasoning, last_answer, reward_facts

_SENTENCE = re.compile(r"[^.!?\n。！？]+")  # noqa: RUF001  (Chinese full stops are meant)


class Encoder(Protocol):
    """Turns pictures and texts into vectors of one space."""

    def images(self, pictures: Sequence[Any]) -> Any:
        """Vectors of length 1, ``[pictures, D]``."""
        ...

    def texts(self, texts: Sequence[str]) -> Any:
        """Vectors of length 1, ``[texts, D]``."""
        ...


class OpenClip:
    """An open_clip model.

    Args:
        model: Its name there, for example ``ViT-B-32``.
        pretrained: Name of the weights or a path; None: random weights, for rehearsals.
        device: Where it runs; ``auto``: a GPU if there is one.
        batch_size: Pictures or texts at once.
    """

    def __init__(
        self, model: str = "ViT-B-32", pretrained: str | None = None, device: str = "auto", batch_size: int = 64
    ) -> None:
        try:
            import open_clip
        except ImportError as error:
            raise ImportError("CLIP rewards need open_clip: pip install 'mmgrpo[clip]'") from error
        self.model, _, self.preprocess = open_clip.create_model_and_transforms(model, pretrained=pretrained)
        self.tokenizer = open_clip.get_tokenizer(model)
        self.device, self.batch_size = _device(device), batch_size
        self.model.to(self.device).eval()

    def images(self, pictures: Sequence[Any]) -> Any:
        """Encode pictures."""
        import torch

        batches = (torch.stack([self.preprocess(p) for p in part]) for part in _parts(pictures, self.batch_size))
        return _encode(lambda batch: self.model.encode_image(batch.to(self.device)), batches)

    def texts(self, texts: Sequence[str]) -> Any:
        """Encode texts; each is cut at the model's context length (77 tokens)."""
        batches = (self.tokenizer(list(part)) for part in _parts(texts, self.batch_size))
        return _encode(lambda batch: self.model.encode_text(batch.to(self.device)), batches)


class TransformersClip:
    """A CLIP or SigLIP model of transformers.

    Args:
        model: A hub id or folder, for example ``openai/clip-vit-base-patch32`` or ``google/siglip2-base-patch16-224``.
        device: Where it runs; ``auto``: a GPU if there is one.
        batch_size: Pictures or texts at once.
    """

    def __init__(self, model: str, device: str = "auto", batch_size: int = 64) -> None:
        from transformers import AutoModel, AutoProcessor

        self.device, self.batch_size = _device(device), batch_size
        self.model = AutoModel.from_pretrained(model).to(self.device).eval()
        self.processor = AutoProcessor.from_pretrained(model)
        self.padding = "max_length" if "siglip" in self.model.config.model_type else True

    def images(self, pictures: Sequence[Any]) -> Any:
        """Encode pictures."""
        batches = (
            self.processor(images=list(part), return_tensors="pt") for part in _parts(pictures, self.batch_size)
        )
        return _encode(lambda batch: _pooled(self.model.get_image_features(**batch.to(self.device))), batches)

    def texts(self, texts: Sequence[str]) -> Any:
        """Encode texts; each is cut at the model's context length."""
        batches = (
            self.processor(text=list(part), return_tensors="pt", padding=self.padding, truncation=True)
            for part in _parts(texts, self.batch_size)
        )
        return _encode(lambda batch: _pooled(self.model.get_text_features(**batch.to(self.device))), batches)


def _pooled(features: Any) -> Any:
    """Recent transformers return a record, older ones the vectors themselves."""
    return getattr(features, "pooler_output", features)


def _device(name: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _encode(encode: Any, batches: Any) -> Any:
    import torch

    with torch.inference_mode():
        return torch.cat([torch.nn.functional.normalize(encode(batch).float(), dim=-1).cpu() for batch in batches])


def make_encoder(backend: str, model: str, pretrained: str | None, device: str, batch_size: int) -> Encoder:
    """Build the encoder that a YAML names.

    Args:
        backend: ``open_clip`` or ``transformers``.
        model: The model's name there.
        pretrained: Weights, for open_clip.
        device: Where it runs.
        batch_size: Pictures or texts at once.

    Returns:
        The encoder.
    """
    if backend == "open_clip":
        return OpenClip(model, pretrained, device, batch_size)
    if backend == "transformers":
        return TransformersClip(model, device, batch_size)
    raise ValueError(f"backend {backend!r} is not one of open_clip, transformers")


def said(text: str) -> str:
    """The caption in a completion: its last ``<answer>``, else all behind the reasoning."""
    answer = last_answer(text)
    return (after_reasoning(text) if answer is None else answer).strip()


def sentences(text: str, words: int = 40) -> list[str]:
    """Cut a caption into pieces that fit into CLIP's 77 tokens.

    Example:
        >>> sentences("A red cube. A ball!")
        ['A red cube', 'A ball']
    """
    pieces: list[str] = []
    for sentence in _SENTENCE.findall(text):
        parts = sentence.split()
        pieces += [" ".join(parts[start : start + words])[:300] for start in range(0, len(parts), words)]
    return pieces[:64]


@reward_facts(low=0.0, high=1.0, pure=True, extra="clip")
class ClipScore:
    """CLIP similarity of the caption that a completion writes and the picture of its prompt.

    r = clip((cosine - low) / (high - low), 0, 1), averaged over the caption's sentences

    or, with ``contrast``, the softmax of 100 * cosine over all different pictures of the step: how surely the
    caption picks its own picture. CLIP reads 77 tokens, so a caption is scored sentence by sentence; a plain cosine
    also rewards lists of keywords, which a length or repetition reward beside it prevents.

    Args:
        model: Model name, see ``backend``.
        pretrained: Weights of an open_clip model: a name or a path.
        backend: ``open_clip``, or ``transformers`` (CLIP, SigLIP).
        device: Where it runs; ``auto``: a GPU if there is one.
        low: Cosine that earns 0: unrelated pairs of ViT-B/32 have about 0.15.
        high: Cosine that earns 1: good captions have about 0.35.
        over: ``mean`` over sentences, or the ``max``.
        contrast: Score against the other pictures of the step (then values are not cached).
        batch_size: Pictures or texts at once.
        encoder: An encoder object instead of a model name, in Python.

    Source: CLIPScore, arXiv:2104.08718, with a rescaled range instead of its factor 2.5.
    """

    def __init__(
        self,
        model: str = "ViT-B-32",
        pretrained: str | None = "laion2b_s34b_b79k",
        backend: str = "open_clip",
        device: str = "auto",
        *,
        low: float = 0.15,
        high: float = 0.35,
        over: str = "mean",
        contrast: bool = False,
        batch_size: int = 64,
        encoder: Encoder | None = None,
    ) -> None:
        if over not in ("mean", "max") or low >= high:
            raise ValueError("ClipScore wants over: mean or max, and low below high")
        self.__name__ = "clip_score"
        self.encoder = encoder or make_encoder(backend, model, pretrained, device, batch_size)
        self.low, self.high, self.over, self.contrast = low, high, over, contrast
        if contrast:  # the value depends on the other pictures of the step
            reward_facts(low=0.0, high=1.0, extra="clip")(self)

    def __call__(self, completions: list[str], images: list[list[Any]]) -> list[float | None]:
        """Score each caption against the first picture of its row; None without a picture."""
        rows = [row for row, pictures in enumerate(images) if pictures]
        scores: list[float | None] = [None] * len(completions)
        if rows:
            values = self.match([said(completions[row]) for row in rows], [images[row][0] for row in rows])
            for row, value in zip(rows, values, strict=True):
                scores[row] = value
        return scores

    def match(self, captions: Sequence[str], pictures: Sequence[Any]) -> list[float]:
        """Score caption i against picture i; an empty caption earns 0."""
        unique = {id(picture): picture for picture in pictures}
        column = {key: index for index, key in enumerate(unique)}
        vectors = self.encoder.images(list(unique.values()))
        pieces = [sentences(caption) for caption in captions]
        flat = [piece for part in pieces for piece in part]
        cosines = self.encoder.texts(flat) @ vectors.T if flat else None
        scores: list[float] = []
        start = 0
        for part, picture in zip(pieces, pictures, strict=True):
            if part:
                mine = cosines[start : start + len(part)]
                mine = mine.mean(0) if self.over == "mean" else mine.amax(0)
                scores.append(self._scale(mine, column[id(picture)]))
            else:
                scores.append(0.0)
            start += len(part)
        return scores

    def _scale(self, cosines: Any, own: int) -> float:
        if self.contrast:
            return float((100.0 * cosines).softmax(-1)[own])
        return float(((cosines[own] - self.low) / (self.high - self.low)).clamp(0, 1))
