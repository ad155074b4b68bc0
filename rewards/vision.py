"""The vision reward, 0.6 * CLIP + 0.4 * aesthetics, in the forms in which it can teach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmgrpo import last_answer, load_plugin, load_reward, read_truth, reward_facts, to_number


@reward_facts(low=0.0, high=1.0, extra="clip")
class VisionReward:
    """Text that fits the picture and pictures that please: ``clip_weight * clip + aesthetic_weight * aesthetic``.

    Modes:

    * ``caption``: CLIP of the prompt's picture and what the completion says, plus the aesthetics of that picture. All
      completions of a prompt share the picture, so the second term cancels in GRPO; it is there for filtering and
      for comparison with the recipe.
    * ``rating``: the completion rates the picture with a number; r = 1 - |number - score| / range.
    * ``pair``: the prompt shows two pictures and the completion names the better one (``1`` or ``2``); r = 1 if the
      predictor agrees. None where the predictor cannot tell them apart.
    * ``rendered``: the completion makes a picture (``render``), and that picture is scored: CLIP with the row's
      answer, plus its aesthetics. Here both terms teach. 0 where nothing can be rendered.

    Args:
        mode: One of these.
        clip: Arguments of ``clip.py:ClipScore``.
        aesthetic: Arguments of ``aesthetic.py:AestheticScore``; at least ``weights``.
        clip_weight: Weight of CLIP.
        aesthetic_weight: Weight of aesthetics.
        render: For ``rendered``: ``render.py:crop``, ``render.py:adjust``, ``render.py:svg``, or a function of yours,
            ``f(completion, images) -> picture or None``.
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
            raise ValueError(f"mode is one of {', '.join(scorers)}; render goes with mode: rendered and only with it")
        self.__name__ = f"vision_{mode}"
        self.score, self.margin = scorers[mode], margin
        self.weights = (clip_weight, aesthetic_weight)
        if mode in ("caption", "rendered"):
            self.clip = load_plugin("clip.py", beside=__file__).ClipScore(**(clip or {}))
        if aesthetic_weight or mode in ("rating", "pair"):
            own = dict(aesthetic or {})
            if mode in ("caption", "rendered") and _same_model(clip or {}, own):
                own["encoder"] = self.clip.encoder  # one CLIP in memory, not two
            self.aesthetic = load_plugin("aesthetic.py", beside=__file__).AestheticScore(**own)
        if render is not None:
            self.render = load_reward(render, base=Path(__file__).parent, style="native").function

    def __call__(self, completions: list[str], images: list[list[Any]], answer: list[Any]) -> list[float | None]:
        """Score each completion; None where its row has too few pictures."""
        return self.score(completions, images, answer)

    def _blend(self, captions: list[str], pictures: list[Any]) -> list[float]:
        clip, aesthetic = self.weights
        matches = self.clip.match(captions, pictures)
        beauty = self.aesthetic.rate(pictures) if aesthetic else [0.0] * len(pictures)
        return [clip * a + aesthetic * b for a, b in zip(matches, beauty, strict=True)]

    def _captions(self, completions: list[str], images: list[list[Any]], _: list[Any]) -> list[float | None]:
        rows = [row for row, pictures in enumerate(images) if pictures]
        said = load_plugin("clip.py", beside=__file__).said
        values = self._blend([said(completions[r]) for r in rows], [images[r][0] for r in rows]) if rows else []
        return _spread(values, rows, len(completions))

    def _ratings(self, completions: list[str], images: list[list[Any]], _: list[Any]) -> list[float | None]:
        rows = [row for row, pictures in enumerate(images) if pictures]
        truths = self.aesthetic.raw([images[row][0] for row in rows]) if rows else []
        span = self.aesthetic.high - self.aesthetic.low
        values: list[float] = []
        for row, truth in zip(rows, truths, strict=True):
            number = to_number(last_answer(completions[row]) or "")
            values.append(0.0 if number is None else max(0.0, 1.0 - abs(number - truth) / span))
        return _spread(values, rows, len(completions))

    def _pairs(self, completions: list[str], images: list[list[Any]], _: list[Any]) -> list[float | None]:
        rows = [row for row, pictures in enumerate(images) if len(pictures) == 2]
        flat = self.aesthetic.raw([picture for row in rows for picture in images[row]]) if rows else []
        scores: list[float | None] = [None] * len(completions)
        for row, first, second in zip(rows, flat[::2], flat[1::2], strict=True):
            if abs(first - second) >= self.margin:
                number = to_number(last_answer(completions[row]) or "")
                scores[row] = float(number == (1 if first > second else 2))
        return scores

    def _rendered(self, completions: list[str], images: list[list[Any]], answer: list[Any]) -> list[float | None]:
        made = [self.render(text, pictures) for text, pictures in zip(completions, images, strict=True)]
        rows = [row for row, picture in enumerate(made) if picture is not None]
        wanted = [str(read_truth(answer[row])) for row in rows]
        values = self._blend(wanted, [made[row] for row in rows]) if rows else []
        return [0.0 if value is None else value for value in _spread(values, rows, len(completions))]


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
