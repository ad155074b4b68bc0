"""CLIP: how well the text that a completion writes fits the image of its prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mmgrpo import answer_or_text, load_plugin, reward_facts

_SENTENCE = re.compile(r"[^.!?\n。！？]+")  # noqa: RUF001  (Chinese full stops are meant)


class Encoder(Protocol):
    """Turns images and texts into vectors of one space.

    It may have a method ``fits(text)`` that tells whether a text is read whole; else its length is estimated.
    """

    def images(self, images: Sequence[Any]) -> Any:
        """Vectors of length 1, ``[images, D]``."""
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
        batch_size: Images or texts at once.
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

    def images(self, images: Sequence[Any]) -> Any:
        """Encode images."""
        import torch

        batches = (torch.stack([self.preprocess(p) for p in part]) for part in _parts(images, self.batch_size))
        return _encode(lambda batch: self.model.encode_image(batch.to(self.device)), batches)

    def texts(self, texts: Sequence[str]) -> Any:
        """Encode texts; each is cut at the model's context length (77 tokens), see ``fits``."""
        batches = (self.tokenizer(list(part)) for part in _parts(texts, self.batch_size))
        return _encode(lambda batch: self.model.encode_text(batch.to(self.device)), batches)

    def fits(self, text: str) -> bool:
        """Whether a text is read whole."""
        inner = getattr(self.tokenizer, "tokenizer", None)  # a tokenizer of transformers, for SigLIP and others
        ids = self.tokenizer.encode(text) if inner is None else inner(text, verbose=False)["input_ids"][2:]
        return len(ids) + 2 <= (self.tokenizer.context_length or 77)


class TransformersClip:
    """A CLIP or SigLIP model of transformers.

    Args:
        model: A hub id or folder, for example ``openai/clip-vit-base-patch32`` or ``google/siglip2-base-patch16-224``.
        device: Where it runs; ``auto``: a GPU if there is one.
        batch_size: Images or texts at once.
    """

    def __init__(self, model: str, device: str = "auto", batch_size: int = 64) -> None:
        from transformers import AutoModel, AutoProcessor

        load_whole = load_plugin("reward_model.py", beside=__file__).load_whole
        self.device, self.batch_size = _device(device), batch_size
        self.model = load_whole(AutoModel, model).to(self.device).eval()
        self.processor = AutoProcessor.from_pretrained(model)
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", 77)
        self.tokenizer, self.context_length = tokenizer, min(tokenizer.model_max_length, positions)
        self.padding = "max_length" if "siglip" in self.model.config.model_type else True

    def images(self, images: Sequence[Any]) -> Any:
        """Encode images."""
        batches = (self.processor(images=list(part), return_tensors="pt") for part in _parts(images, self.batch_size))
        return _encode(lambda batch: _pooled(self.model.get_image_features(**batch.to(self.device))), batches)

    def texts(self, texts: Sequence[str]) -> Any:
        """Encode texts; each is cut at the model's context length, see ``fits``."""
        limits = {"padding": self.padding, "truncation": True, "max_length": self.context_length}
        batches = (
            self.processor(text=list(part), return_tensors="pt", **limits) for part in _parts(texts, self.batch_size)
        )
        return _encode(lambda batch: _pooled(self.model.get_text_features(**batch.to(self.device))), batches)

    def fits(self, text: str) -> bool:
        """Whether a text is read whole."""
        return len(self.tokenizer(text, verbose=False)["input_ids"]) <= self.context_length


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
        batch_size: Images or texts at once.

    Returns:
        The encoder.
    """
    if backend == "open_clip":
        return OpenClip(model, pretrained, device, batch_size)
    if backend == "transformers":
        return TransformersClip(model, device, batch_size)
    raise ValueError(f"backend {backend!r:.80} is not one of open_clip, transformers")


def _estimated_to_fit(text: str) -> bool:
    """Whether a text has surely no more than 75 tokens of CLIP, without its tokenizer."""
    words = text.split()
    tokens = sum(1 + len(word) // 4 if word.isascii() else len(word.encode()) for word in words)
    return len(words) <= 40 and tokens <= 75


def sentences(text: str, fits: Callable[[str], bool] = _estimated_to_fit) -> list[str]:
    """Cut a caption into pieces that an encoder reads whole: sentences, and parts of those that are too long.

    Where there are more than 64, short ones go together. Nothing is left out.

    Args:
        text: The caption.
        fits: Tells whether a piece is short enough.

    Example:
        >>> sentences("A red cube. A ball!")
        ['A red cube', 'A ball']
    """
    pieces: list[str] = []
    for sentence in _SENTENCE.findall(text):
        pieces += _cut(" ".join(sentence.split()), fits)
    if len(pieces) <= _MANY:
        return pieces
    packed: list[str] = []
    for piece in pieces:
        if packed and fits(f"{packed[-1]}. {piece}"):
            packed[-1] += f". {piece}"
        else:
            packed.append(piece)
    return packed


_MANY = 64


def _cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Halve a text, between words where there are several, until each part fits."""
    if not text or len(text) == 1 or (len(text) <= 2000 and fits(text)):
        return [text] if text else []
    middle = text.rfind(" ", 0, len(text) // 2 + 1)
    middle = middle if middle > 0 else text.find(" ")
    middle = middle if middle > 0 else len(text) // 2
    return [*_cut(text[:middle].strip(), fits), *_cut(text[middle:].strip(), fits)]


@reward_facts(low=0.0, high=1.0, pure=True, extra="clip")
class ClipScore:
    """CLIP similarity of the caption that a completion writes and the image of its prompt.

    r = clip((cosine - low) / (high - low), 0, 1), averaged over the caption's sentences

    or, with ``contrast``, the softmax of 100 * cosine over all different images of the step: how surely the
    caption picks its own image. CLIP reads 77 tokens, so a caption is scored sentence by sentence, longer ones in
    parts, all of it; a plain cosine also rewards lists of keywords, which a length or repetition reward beside it
    prevents.

    Args:
        model: Model name, see ``backend``.
        pretrained: Weights of an open_clip model: a name or a path.
        backend: ``open_clip``, or ``transformers`` (CLIP, SigLIP).
        device: Where it runs; ``auto``: a GPU if there is one.
        low: Cosine that earns 0: unrelated pairs of ViT-B/32 have about 0.15.
        high: Cosine that earns 1: good captions have about 0.35.
        over: ``mean`` over sentences, or the ``max``.
        contrast: Score against the other images of the step (then values are not cached).
        batch_size: Images or texts at once.
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
        if over not in ("mean", "max") or low >= high or batch_size < 1:
            raise ValueError("ClipScore wants over: mean or max, low below high, and a batch_size of at least 1")
        self.__name__ = "clip_score"
        self.encoder = encoder or make_encoder(backend, model, pretrained, device, batch_size)
        self.low, self.high, self.over, self.contrast = low, high, over, contrast
        if contrast:  # the value depends on the other images of the step
            reward_facts(low=0.0, high=1.0, extra="clip")(self)

    def __call__(self, completions: list[str], images: list[list[Any]]) -> list[float | None]:
        """Score each caption against the first image of its row; None without an image."""
        rows = [row for row, row_images in enumerate(images) if row_images]
        scores: list[float | None] = [None] * len(completions)
        if rows:
            values = self.match([answer_or_text(completions[row]) for row in rows], [images[row][0] for row in rows])
            for row, value in zip(rows, values, strict=True):
                scores[row] = value
        return scores

    def match(self, captions: Sequence[str], images: Sequence[Any]) -> list[float]:
        """Score caption i against image i; an empty caption earns 0."""
        unique = {id(image): image for image in images}
        column = {key: index for index, key in enumerate(unique)}
        vectors = self.encoder.images(list(unique.values()))
        fits = getattr(self.encoder, "fits", _estimated_to_fit)
        pieces = [sentences(caption, fits) for caption in captions]
        flat = [piece for part in pieces for piece in part]
        cosines = self.encoder.texts(flat) @ vectors.T if flat else None
        scores: list[float] = []
        start = 0
        for part, image in zip(pieces, images, strict=True):
            if part:
                own = cosines[start : start + len(part)]
                own = own.mean(0) if self.over == "mean" else own.amax(0)
                scores.append(self._scale(own, column[id(image)]))
            else:
                scores.append(0.0)
            start += len(part)
        return scores

    def _scale(self, cosines: Any, index: int) -> float:
        if self.contrast:
            return float((100.0 * cosines).softmax(-1)[index])
        return float(((cosines[index] - self.low) / (self.high - self.low)).clamp(0, 1))
