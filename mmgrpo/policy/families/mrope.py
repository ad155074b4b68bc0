"""M-RoPE after videos: text goes on behind the last moment of the film.

transformers 5.3 and later let the text after a video begin at the larger side of a frame, inside the time of the film,
while its ``generate`` goes on behind the largest position. The checkpoints were trained, and other engines run, with
one rule for both: whatever follows begins at the largest position so far plus one.

Source: Qwen2-VL, arXiv:2409.12191, section 2.1; Qwen2.5-VL, arXiv:2502.13923, section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from jaxtyping import Int
from torch import Tensor


def after_videos(positions: Int[Tensor, "3 P"], types: tuple[int, ...]) -> Int[Tensor, "3 P"]:
    """Move what follows a video behind it.

    Args:
        positions: As transformers counts them.
        types: What each token is: 0 text, 1 picture, 2 video.

    Returns:
        Positions in which each stretch begins at the largest one before it plus one; the same where no video lasts
        longer than its frames are wide.

    Example:
        >>> import torch
        >>> after_videos(torch.tensor([[0, 1, 9, 2], [0, 1, 1, 2], [0, 1, 1, 2]]), (0, 2, 2, 0))[:, 3]
        tensor([10, 10, 10])
    """
    moved = positions.clone()
    start, shift, largest = 0, 0, -1
    for _, run in groupby(types):
        end = start + len(list(run))
        shift = max(shift, largest + 1 - int(positions[:, start].min()))
        moved[:, start:end] += shift
        largest = max(largest, int(moved[:, start:end].max()))
        start = end
    return moved


def timed(
    positions: Int[Tensor, "3 P"], types: tuple[int, ...], seconds: Sequence[float], per_second: float
) -> Int[Tensor, "3 P"]:
    """Give each video its own time between grid steps, from positions that were counted with one second for all.

    transformers before 5.20 cuts the seconds down to whole ones; counting them here is right under every version.

    Args:
        positions: As transformers counts them with one second per grid step.
        types: What each token is: 0 text, 1 picture, 2 video.
        seconds: Of each video, between two grid steps.
        per_second: Positions per second (``vision_config.tokens_per_second``).

    Returns:
        Positions whose time axis runs at each video's own pace.

    Example:
        >>> import torch
        >>> timed(torch.tensor([[0, 4, 8], [0, 0, 0], [0, 0, 0]]), (2, 2, 2), [0.5], 4)[0]
        tensor([0, 2, 4])
    """
    paced = positions.clone()
    films = iter(seconds)
    start = 0
    for kind, run in groupby(types):
        end = start + len(list(run))
        if kind == 2:
            begin = positions[0, start]
            steps = (positions[0, start:end] - begin) / per_second
            paced[0, start:end] = begin + (steps * (per_second * next(films))).long()
        start = end
    return paced
