"""Aesthetics: how pleasing a picture is, by the LAION predictors on CLIP embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmgrpo import load_plugin, reward_facts


class AestheticHead:
    """A linear map from a CLIP image embedding of length 1 to a score.

    Takes LAION's linear head (``weight``, ``bias``) and the MLP head (``layers.N.weight``, …), which has no
    activation between its layers and therefore is one linear map too: score = w . e + b.

    Args:
        weights: A ``.pth`` file.

    Source: github.com/LAION-AI/aesthetic-predictor; github.com/christophschuhmann/improved-aesthetic-predictor.
    """

    def __init__(self, weights: str | Path) -> None:
        import torch

        path = Path(weights)
        if not path.is_file():
            raise FileNotFoundError(f"the weights of the aesthetic head are not at {path.absolute()}; give their path")
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.weight, self.bias = None, None
        for name in sorted((key for key in state if key.endswith("weight")), key=_layer):
            matrix, offset = state[name].double(), state[name.removesuffix("weight") + "bias"].double()
            self.weight = matrix if self.weight is None else matrix @ self.weight
            self.bias = offset if self.bias is None else matrix @ self.bias + offset
        if self.weight is None:
            raise ValueError(f"{path} holds no linear layers; it is not an aesthetic head")

    def __call__(self, embeddings: Any) -> Any:
        """Score embeddings ``[N, D]``, which are brought to length 1 first; returns ``[N]``."""
        import torch

        unit = torch.nn.functional.normalize(torch.as_tensor(embeddings).double(), dim=-1)
        return (unit @ self.weight.T + self.bias).squeeze(-1)


def _layer(name: str) -> int:
    """The position of a layer: ``layers.4.weight`` is 4, a lone ``weight`` 0."""
    return int(("0." + name).split(".")[-2])


@reward_facts(low=0.0, high=1.0, pure=True, extra="clip")
class AestheticScore:
    """The aesthetic score of the prompt's picture, or of the pictures that a completion draws.

    r = clip((score - low) / (high - low), 0, 1)

    All completions of a prompt share its picture, so on prompt pictures this cancels inside each group: use it as
    ``role: metric``, to weigh or filter rows, or on rendered pictures (see ``vision.py``).

    Args:
        weights: File of the head: ``sa_0_4_vit_l_14_linear.pth`` or ``sac+logos+ava1-l14-linearMSE.pth``.
        model: The CLIP model that the head was trained on.
        pretrained: Its weights.
        backend: ``open_clip`` or ``transformers``.
        device: Where it runs.
        low: Score that earns 0; pictures range from about 3 to 8.
        high: Score that earns 1.
        batch_size: Pictures at once.
        encoder: An encoder object instead of a model name, in Python.

    Source: LAION-Aesthetics, laion.ai/blog/laion-aesthetics.
    """

    def __init__(
        self,
        weights: str,
        model: str = "ViT-L-14-quickgelu",
        pretrained: str | None = "openai",
        backend: str = "open_clip",
        device: str = "auto",
        *,
        low: float = 3.0,
        high: float = 8.0,
        batch_size: int = 64,
        encoder: Any = None,
    ) -> None:
        clip = load_plugin("clip.py", beside=__file__)
        self.__name__ = "aesthetic_score"
        self.encoder = encoder or clip.make_encoder(backend, model, pretrained, device, batch_size)
        self.head, self.low, self.high = AestheticHead(weights), low, high

    def raw(self, pictures: Sequence[Any]) -> list[float]:
        """The predictor's own scores, about 3 to 8."""
        unique = {id(picture): picture for picture in pictures}
        scores = dict(zip(unique, self.head(self.encoder.images(list(unique.values()))).tolist(), strict=True))
        return [scores[id(picture)] for picture in pictures]

    def rate(self, pictures: Sequence[Any]) -> list[float]:
        """Scores brought into 0 to 1."""
        return [min(1.0, max(0.0, (s - self.low) / (self.high - self.low))) for s in self.raw(pictures)]

    def __call__(self, completions: list[str], images: list[list[Any]]) -> list[float | None]:
        """Score the first picture of each row; None without a picture."""
        rows = [row for row, pictures in enumerate(images) if pictures]
        values = dict(zip(rows, self.rate([images[row][0] for row in rows]), strict=True)) if rows else {}
        return [values.get(row) for row in range(len(completions))]
