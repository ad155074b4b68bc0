"""Length: shorter right answers, longer wrong ones, and a soft border before the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmgrpo import call_reward, load_reward, reward_facts


def _nowhere(name: str, value: float) -> None:
    """Where metrics go when nobody listens."""


@reward_facts(low=-1.0, high=0.0)
def soft_overlong(completion_ids: list[list[int]], max_length: int, cache_length: int) -> list[float]:
    """Punish completions that come near the limit, and no others.

    r = 0 up to max_length - cache_length tokens, then falls in a straight line to -1 at max_length

    Args:
        completion_ids: Token ids of each completion; its length counts.
        max_length: Where the reward reaches -1, in tokens; usually ``rollout.max_completion_length``.
        cache_length: Width of the falling part, in tokens.

    Returns:
        -1 to 0.

    Source: DAPO, arXiv:2503.14476, equation 13; ``get_soft_overlong_punishment`` of TRL.

    Example:
        >>> soft_overlong([[1] * 80, [1] * 90, [1] * 120], max_length=100, cache_length=20)
        [0.0, -0.5, -1.0]
    """
    if not 0 < cache_length < max_length:
        raise ValueError(f"cache_length {cache_length} must be above 0 and below max_length {max_length}")
    over = [len(ids) - (max_length - cache_length) for ids in completion_ids]
    return [-min(1.0, max(0, tokens) / cache_length) or 0.0 for tokens in over]


@reward_facts(low=-0.5, high=1.0)
class CosineLength:
    """Right answers earn more when short; wrong ones lose less when long, so that thinking on is not punished.

    r = high - (high - low) * (1 - cos(pi * length / max_length)) / 2

    with high and low from the two ranges below. What counts as right is another reward's value of at least
    ``correct_at``, logged as ``cosine_length/correct_at``.

    Args:
        max_length: Length at which the curve ends, in tokens; longer completions stay there.
        accuracy: The reward that says what is right.
        accuracy_args: Its ``args``.
        correct_at: Smallest value of that reward that counts as right.
        correct: Reward of a right answer at length 0 and at ``max_length``.
        wrong: Reward of a wrong answer at length 0 and at ``max_length``.

    Source: "Demystifying Long Chain-of-Thought Reasoning", arXiv:2502.03373, appendix C.1; ``cosine`` of ms-swift.

    Example:
        >>> reward = CosineLength(max_length=100)
        >>> texts, answer = ["<answer>3</answer>", "<answer>4</answer>"], [3, 3]
        >>> [round(r, 3) for r in reward(texts, completion_ids=[[1] * 50] * 2, answer=answer)]
        [0.75, -0.25]
    """

    def __init__(
        self,
        max_length: int,
        accuracy: str = "clevr_counting.py:count_accuracy",
        accuracy_args: dict[str, Any] | None = None,
        correct_at: float = 1.0,
        correct: tuple[float, float] = (1.0, 0.5),
        wrong: tuple[float, float] = (-0.5, 0.0),
    ) -> None:
        if max_length < 1:
            raise ValueError(f"max_length is at least 1 token; got {max_length!r}")
        self.__name__ = "cosine_length"
        self.max_length, self.correct_at, self.correct, self.wrong = max_length, correct_at, correct, wrong
        self.accuracy = load_reward(accuracy, base=Path(__file__).parent, args=accuracy_args)

    def __call__(
        self,
        completions: list[str],
        completion_ids: list[list[int]],
        log_metric: Callable[[str, float], None] = _nowhere,
        **columns: Any,
    ) -> list[float | None]:
        """Score by correctness and length; None where the accuracy reward does not apply."""
        right = call_reward(self.accuracy, completions=completions, completion_ids=completion_ids, **columns)
        log_metric("cosine_length/correct_at", self.correct_at)
        return [
            None
            if math.isnan(value)
            else self._curve(len(ids), self.correct if value >= self.correct_at else self.wrong)
            for value, ids in zip(right, completion_ids, strict=True)
        ]

    def _curve(self, length: int, ends: tuple[float, float]) -> float:
        start, end = ends
        return start - (start - end) * (1 - math.cos(math.pi * min(length / self.max_length, 1.0))) / 2
