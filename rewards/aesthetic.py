"""Aesthetics: how pleasing an image is, by the LAION predictors on CLIP embeddings."""

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
        names = sorted((key for key in state if key.endswith("weight")), key=_layer)
        missing = [name.removesuffix("weight") + "bias" for name in names]
        missing = [name for name in missing if name not in state]
        self.weight, self.bias = None, None
        for name in names if not missing else ():
            matrix, offset = state[name].double(), state[name.removesuffix("weight") + "bias"].double()
            if self.weight is not None and matrix.shape[1] != self.weight.shape[0]:
                missing = [f"what stands before {name}, which takes {matrix.shape[1]} values, not {len(self.weight)}"]
                break
            self.weight = matrix if self.weight is None else matrix @ self.weight
            self.bias = offset if self.bias is None else matrix @ self.bias + offset
        if missing or self.weight is None or len(self.weight) != 1:
            lacks = ", ".join(missing) or "linear layers that end in one score"
            raise ValueError(f"{path} is no whole aesthetic head: missing is {lacks}. Download it again")

    def __call__(self, embeddings: Any) -> Any:
        """Score embeddings ``[N, D]``, which are brought to length 1 first; returns ``[N]``."""
        import torch

        if torch.as_tensor(embeddings).shape[-1] != self.weight.shape[1]:
            width = torch.as_tensor(embeddings).shape[-1]
            raise ValueError(
                f"the aesthetic head takes {self.weight.shape[1]} values, the encoder gives {width}: its first layer "
                "is missing, or it was trained on another encoder"
            )
        unit = torch.nn.functional.normalize(torch.as_tensor(embeddings).double(), dim=-1)
        return (unit @ self.weight.T + self.bias).squeeze(-1)


def _layer(name: str) -> int:
    """The position of a layer: ``layers.4.weight`` is 4, a lone ``weight`` 0."""
    return int(("0." + name).split(".")[-2])


@reward_facts(low=0.0, high=1.0, pure=True, extra="clip")
class AestheticScore:
    """The aesthetic score of the prompt's image, or of the images that a completion draws.

    r = clip((score - low) / (high - low), 0, 1)

    All completions of a prompt share its image, so on prompt images this cancels inside each group: use it as
    ``role: metric``, to weigh or filter rows, or on rendered images (see ``vision.py``).

    Args:
        weights: File of the head: ``sa_0_4_vit_l_14_linear.pth`` or ``sac+logos+ava1-l14-linearMSE.pth``.
        model: The CLIP model that the head was trained on.
        pretrained: Its weights.
        backend: ``open_clip`` or ``transformers``.
        device: Where it runs.
        low: Score that earns 0; images range from about 3 to 8.
        high: Score that earns 1.
        batch_size: Images at once.
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
        if low >= high or batch_size < 1:
            raise ValueError("AestheticScore wants low below high, and a batch_size of at least 1")
        clip = load_plugin("clip.py", beside=__file__)
        self.__name__ = "aesthetic_score"
        self.encoder = encoder or clip.make_encoder(backend, model, pretrained, device, batch_size)
        self.head, self.low, self.high = AestheticHead(weights), low, high

    def raw(self, images: Sequence[Any]) -> list[float]:
        """The predictor's own scores, about 3 to 8."""
        unique = {id(image): image for image in images}
        scores = dict(zip(unique, self.head(self.encoder.images(list(unique.values()))).tolist(), strict=True))
        return [scores[id(image)] for image in images]

    def rate(self, images: Sequence[Any]) -> list[float]:
        """Scores brought into 0 to 1."""
        return [min(1.0, max(0.0, (s - self.low) / (self.high - self.low))) for s in self.raw(images)]

    def __call__(self, completions: list[str], images: list[list[Any]]) -> list[float | None]:
        """Score the first image of each row; None without an image."""
        rows = [row for row, row_images in enumerate(images) if row_images]
        values = dict(zip(rows, self.rate([images[row][0] for row in rows]), strict=True)) if rows else {}
        return [values.get(row) for row in range(len(completions))]
