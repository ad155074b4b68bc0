"""The vision reward, 0.6 * CLIP + 0.4 * aesthetics, in the forms in which it can teach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmgrpo import answer_or_text, last_answer, load_plugin, load_reward, read_ground_truth, reward_facts, to_number


@reward_facts(low=0.0, high=1.0, extra="clip")
class VisionReward:
    """Text that fits the image and images that please: ``clip_weight * clip + aesthetic_weight * aesthetic``.

    Modes:

    * ``caption``: CLIP of the prompt's image and what the completion says, plus the aesthetics of that image. All
      completions of a prompt share the image, so the second term cancels in GRPO; it is there for filtering and
      for comparison with the recipe.
    * ``rating``: the completion rates the image with a number; r = 1 - |number - score| / range.
    * ``pair``: the prompt shows two images and the completion names the better one (``1`` or ``2``); r = 1 if the
      predictor agrees. None where the predictor cannot tell them apart.
    * ``rendered``: the completion makes an image (``render``), and that image is scored: CLIP with the row's
      answer, plus its aesthetics. Here both terms teach. 0 where nothing can be rendered, None without an answer.

    Args:
        mode: One of these.
        clip: Arguments of ``clip.py:ClipScore``.
        aesthetic: Arguments of ``aesthetic.py:AestheticScore``; at least ``weights``.
        clip_weight: Weight of CLIP.
        aesthetic_weight: Weight of aesthetics.
        render: For ``rendered``: ``render.py:crop``, ``render.py:adjust``, ``render.py:svg``, or a function of yours,
            ``f(completion, images) -> image or None``.
        margin: For ``pair``: smallest difference of predicted scores that counts.

    Source: the recipe ``vision reward = 0.6 * CLIP score(image, text) + 0.4 * aesthetic score(image)``.
    """

    def __init__(
        self,
        mode: str = "caption",
        clip: dict[str, Any] | None = None,
        aesthetic: dict[str, Any] | None = None,
        clip_weight: float = 0.6,
        aesthetic_weight: float = 0.4,
        render: str | Callable[[str, Sequence[Any]], Any] | None = None,
        margin: float = 0.05,
    ) -> None:
        scorers = {"caption": self._captions, "rating": self._ratings, "pair": self._pairs, "rendered": self._rendered}
        if mode not in scorers or (mode == "rendered") != (render is not None):
            raise ValueError(
                f"mode is one of {', '.join(scorers)}, got {mode!r:.80}; render goes with mode: rendered and only "
                "with it"
            )
        if margin < 0:
            raise ValueError(f"margin is at least 0; got {margin!r}")
        self.__name__ = f"vision_{mode}"
        self.score, self.margin = scorers[mode], margin
        self.weights = (clip_weight, aesthetic_weight)
        if mode in ("caption", "rendered"):
            self.clip = load_plugin("clip.py", beside=__file__).ClipScore(**(clip or {}))
        if aesthetic_weight or mode in ("rating", "pair"):
            arguments = dict(aesthetic or {})
            if mode in ("caption", "rendered") and _same_model(clip or {}, arguments):
                arguments["encoder"] = self.clip.encoder  # one CLIP in memory, not two
            self.aesthetic = load_plugin("aesthetic.py", beside=__file__).AestheticScore(**arguments)
        if render is not None:
            self.render = load_reward(render, base=Path(__file__).parent, style="native").function

    def __call__(self, completions: list[str], images: list[list[Any]], answer: list[Any]) -> list[float | None]:
        """Score each completion; None where its row has too few images."""
        return self.score(completions, images, answer)

    def _blend(self, captions: list[str], images: list[Any]) -> list[float]:
        clip, aesthetic = self.weights
        matches = self.clip.match(captions, images)
        beauty = self.aesthetic.rate(images) if aesthetic else [0.0] * len(images)
        return [clip * a + aesthetic * b for a, b in zip(matches, beauty, strict=True)]

    def _captions(self, completions: list[str], images: list[list[Any]], _: list[Any]) -> list[float | None]:
        rows = [row for row, row_images in enumerate(images) if row_images]
        values = (
            self._blend([answer_or_text(completions[r]) for r in rows], [images[r][0] for r in rows]) if rows else []
        )
        return _spread(values, rows, len(completions))

    def _ratings(self, completions: list[str], images: list[list[Any]], _: list[Any]) -> list[float | None]:
        rows = [row for row, row_images in enumerate(images) if row_images]
        true_scores = self.aesthetic.raw([images[row][0] for row in rows]) if rows else []
        span = self.aesthetic.high - self.aesthetic.low
        values: list[float] = []
        for row, true_score in zip(rows, true_scores, strict=True):
            number = to_number(last_answer(completions[row]) or "")
            values.append(0.0 if number is None else max(0.0, 1.0 - abs(number - true_score) / span))
        return _spread(values, rows, len(completions))

    def _pairs(self, completions: list[str], images: list[list[Any]], _: list[Any]) -> list[float | None]:
        rows = [row for row, row_images in enumerate(images) if len(row_images) == 2]
        flat = self.aesthetic.raw([image for row in rows for image in images[row]]) if rows else []
        scores: list[float | None] = [None] * len(completions)
        for row, first, second in zip(rows, flat[::2], flat[1::2], strict=True):
            if abs(first - second) >= self.margin:
                number = to_number(last_answer(completions[row]) or "")
                scores[row] = float(number == (1 if first > second else 2))
        return scores

    def _rendered(self, completions: list[str], images: list[list[Any]], answer: list[Any]) -> list[float | None]:
        drawn = [self.render(text, row_images) for text, row_images in zip(completions, images, strict=True)]
        captions = [read_ground_truth(value) for value in answer]
        rows = [row for row, image in enumerate(drawn) if image is not None and captions[row] is not None]
        values = self._blend([str(captions[row]) for row in rows], [drawn[row] for row in rows]) if rows else []
        scores = _spread(values, rows, len(completions))
        return [None if c is None else value or 0.0 for c, value in zip(captions, scores, strict=True)]


def _same_model(clip: dict[str, Any], aesthetic: dict[str, Any]) -> bool:
    """Whether both terms name the model that the aesthetic heads were trained on."""
    named = (clip.get("model"), clip.get("pretrained"), clip.get("backend", "open_clip"))
    default = ("ViT-L-14-quickgelu", "openai", "open_clip")
    return named == default and not {"model", "pretrained", "backend", "encoder"} & set(aesthetic)


def _spread(values: Sequence[float], rows: Sequence[int], count: int) -> list[float | None]:
    """Put values back to their rows."""
    scores: list[float | None] = [None] * count
    for row, value in zip(rows, values, strict=True):
        scores[row] = value
    return scores
