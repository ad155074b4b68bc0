"""Boxes and points in a picture: intersection over union, hits, and mean average precision."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from mmgrpo import last_answer, reward_facts

Box = tuple[float, float, float, float]
_NUMBER = r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*"
_BOX = re.compile(r"\[" + ",".join([_NUMBER] * 4) + r"\]")
_POINT = re.compile(r"[\[(]" + ",".join([_NUMBER] * 2) + r"[\])]")


def _overlap(a: Box, b: Box) -> float:
    """Intersection over union of two boxes ``x1, y1, x2, y2``."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    inter = max(0.0, width) * max(0.0, height)
    union = sum(max(0.0, x2 - x1) * max(0.0, y2 - y1) for x1, y1, x2, y2 in (a, b)) - inter
    return inter / union if union > 0 else 0.0


def _box(value: Any) -> Box | None:
    """A box from a list of four numbers, or from text that holds exactly one."""
    if isinstance(value, str):
        found = _BOX.findall(last_answer(value) or value)
        value = [float(number) for number in found[0]] if len(found) == 1 else None
    if not isinstance(value, Sequence) or len(value) != 4:
        return None
    x1, y1, x2, y2 = (float(number) for number in value)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def _scaled(box: Box, x: float, y: float) -> Box:
    return (box[0] * x, box[1] * y, box[2] * x, box[3] * y)


def resized(width: int, height: int, *, factor: int = 28, min_pixels: int = 3136, max_pixels: int = 12845056) -> Box:
    """Size of a picture as Qwen-VL models see it, written as the box ``0, 0, width, height``.

    Sides are multiples of ``factor``, the area lies between the two limits, and the shape is kept.

    Args:
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
        factor: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL.
        min_pixels: Smallest area.
        max_pixels: Largest area.

    Returns:
        The whole picture as a box in the model's pixels.

    Example:
        >>> resized(480, 320)
        (0.0, 0.0, 476.0, 308.0)
    """
    w, h = (max(factor, round(side / factor) * factor) for side in (width, height))
    if w * h > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        w, h = (max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif w * h < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        w, h = (math.ceil(side * grow / factor) * factor for side in (width, height))
    return (0.0, 0.0, float(w), float(h))


@reward_facts(low=0.0, high=1.0)
def box_iou(
    completions: list[str],
    answer: list[Any],
    images: list[list[Any]],
    unit: str = "pixels",
    factor: int = 28,
    min_pixels: int = 3136,
    max_pixels: int = 12845056,
) -> list[float | None]:
    """Intersection over union of the one box in the answer with the true box.

    Args:
        completions: What the policy wrote: ``[x1, y1, x2, y2]`` in the last ``<answer>``, alone or inside JSON.
        answer: The true box in pixels of the original picture, a list or text; None: does not apply.
        images: Pictures, for their sizes.
        unit: What the policy's numbers count: ``pixels`` of the original picture, ``model`` (pixels after Qwen-VL's
            resizing, as VLM-R1 rescales them), or ``thousand`` (thousandths of width and height).
        factor: For ``model``: sides are multiples of this.
        min_pixels: For ``model``: as in the YAML.
        max_pixels: For ``model``: as in the YAML.

    Returns:
        0 to 1; 0 where there is not exactly one box.

    Source: VLM-R1, arXiv:2504.07615, section 3.

    Example:
        >>> box_iou(["<answer>[0, 0, 10, 10]</answer>", "<answer>none</answer>"], [[0, 0, 10, 20]] * 2, [[], []])
        [0.5, 0.0]
    """
    if unit not in ("pixels", "model", "thousand"):
        raise ValueError(f"unit {unit!r} is not one of pixels, model, thousand")
    scores: list[float | None] = []
    for text, truth, pictures in zip(completions, answer, images, strict=True):
        if truth is None:
            scores.append(None)
            continue
        gold, given = _box(truth), _box(last_answer(text) or "")
        if gold is None:
            raise ValueError(f"the truth {truth!r} is not a box [x1, y1, x2, y2]")
        if given is not None and unit != "pixels":
            width, height = pictures[0].size
            limits = {"factor": factor, "min_pixels": min_pixels, "max_pixels": max_pixels}
            seen = (0, 0, 1000.0, 1000.0) if unit == "thousand" else resized(width, height, **limits)
            given = _scaled(given, width / seen[2], height / seen[3])
        scores.append(0.0 if given is None else _overlap(given, gold))
    return scores


@reward_facts(low=0.0, high=1.0)
def vlm_r1_iou(completions: list[str], answer: list[Any]) -> list[float]:
    """VLM-R1's own rule, to compare with its runs, on boxes that are already in one unit.

    The first whole-number box of the first ``<answer>`` counts; an overlap of at most one pixel counts as none.

    Args:
        completions: What the policy wrote.
        answer: The true box, a list or ``<answer>[x1, y1, x2, y2]</answer>``.

    Returns:
        0 to 1.

    Source: ``iou_reward`` of VLM-R1 (github.com/om-ai-lab/VLM-R1).

    Example:
        >>> vlm_r1_iou(["<answer>[0, 0, 10, 10]</answer>", "<answer>[0.5, 0, 10, 10]</answer>"], [[0, 0, 10, 20]] * 2)
        [0.5, 0.0]
    """
    scores = []
    for text, truth in zip(completions, answer, strict=True):
        gold = _box(truth)
        if gold is None:
            raise ValueError(f"the truth {truth!r} is not a box [x1, y1, x2, y2]")
        tag = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
        match = re.search(r"\[(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\]", tag.group(1)) if tag else None
        given = tuple(int(number) for number in match.groups()) if match else (0, 0, 0, 0)
        touching = (
            min(given[2], gold[2]) - max(given[0], gold[0]) > 1 and min(given[3], gold[3]) - max(given[1], gold[1]) > 1
        )
        scores.append(_overlap((given[0], given[1], given[2], given[3]), gold) if touching else 0.0)
    return scores


@reward_facts(low=0.0, high=1.0)
def point_in_box(completions: list[str], answer: list[Any]) -> list[float | None]:
    """1 where the one point in the answer lies in the true box, else 0: for clicks and pointing.

    Args:
        completions: What the policy wrote: ``(x, y)`` or ``[x, y]`` in the last ``<answer>``.
        answer: The true box; None: does not apply.

    Returns:
        0 or 1.

    Source: the grounding metric of GUI agents, for example ScreenSpot (arXiv:2401.10935).

    Example:
        >>> point_in_box(["<answer>(5, 5)</answer>", "<answer>(50, 5)</answer>"], [[0, 0, 10, 10]] * 2)
        [1.0, 0.0]
    """
    scores: list[float | None] = []
    for text, truth in zip(completions, answer, strict=True):
        if truth is None:
            scores.append(None)
            continue
        box = _box(truth)
        if box is None:
            raise ValueError(f"the truth {truth!r} is not a box [x1, y1, x2, y2]")
        points = _POINT.findall(last_answer(text) or "")
        x, y = (float(number) for number in points[0]) if len(points) == 1 else (math.inf, math.inf)
        scores.append(float(box[0] <= x <= box[2] and box[1] <= y <= box[3]))
    return scores


def _detections(value: Any) -> list[tuple[str, Box]] | None:
    """Label and box of each detection: a JSON list of ``{"bbox_2d": […], "label": …}``."""
    if isinstance(value, str):
        try:
            value = json.loads(re.sub(r"^```(?:json)?|```$", "", (last_answer(value) or value).strip()))
        except (json.JSONDecodeError, RecursionError):
            return None
    if not isinstance(value, list):
        return None
    found: list[tuple[str, Box]] = []
    for item in value:
        corners = item.get("bbox_2d", item.get("bbox")) if isinstance(item, dict) else None
        good = isinstance(corners, list) and all(type(n) in (int, float) and math.isfinite(n) for n in corners)
        box = _box(corners) if good else None
        if box is None:
            return None
        found.append((str(item.get("label", "")), box))
    return found


@reward_facts(low=0.0, high=1.0)
def detection_map(
    completions: list[str], answer: list[Any], thresholds: Sequence[float] = (0.5,)
) -> list[float | None]:
    """Mean average precision of a list of detections, over labels and thresholds.

    Detections rank in the order in which they are written; each true box is matched once.

    Args:
        completions: A JSON list of ``{"bbox_2d": [x1, y1, x2, y2], "label": "dog"}`` in the last ``<answer>``.
        answer: The true list, in the same form; None: does not apply.
        thresholds: Overlap from which a detection is right; ``[0.5, 0.55, …, 0.95]`` is COCO's mAP.

    Returns:
        0 to 1; 0 where the answer is no such list; 1 where there is nothing to find and nothing was.

    Source: COCO's average precision (all points), as ``map`` of VLM-R1.

    Example:
        >>> truth = [{"bbox_2d": [0, 0, 10, 10], "label": "dog"}, {"bbox_2d": [20, 0, 30, 10], "label": "dog"}]
        >>> detection_map(['<answer>[{"bbox_2d": [0, 0, 10, 10], "label": "dog"}]</answer>', "none"], [truth, truth])
        [0.5, 0.0]
    """
    scores: list[float | None] = []
    for text, truth in zip(completions, answer, strict=True):
        gold = None if truth is None else _detections(truth)
        if truth is not None and gold is None:
            raise ValueError(f"the truth {truth!r:.80} is not a list of boxes with labels")
        given = _detections(last_answer(text) or "")
        if gold is None or given is None:
            scores.append(None if truth is None else 0.0)
        elif not gold:
            scores.append(float(not given))
        else:
            labels = sorted({label for label, _ in [*gold, *given]})
            values = [_precision(given, gold, label, t) for label in labels for t in thresholds]
            scores.append(sum(values) / len(values))
    return scores


def _precision(given: list[tuple[str, Box]], gold: list[tuple[str, Box]], label: str, threshold: float) -> float:
    """Average precision of one label: the mean, over true boxes, of the best precision at their recall."""
    left = [box for name, box in gold if name == label]
    total = len(left)
    hits: list[bool] = []
    for name, box in given:
        if name == label:
            best = max(left, key=lambda other: _overlap(box, other), default=None)
            hits.append(best is not None and _overlap(box, best) >= threshold)
            if hits[-1] and best is not None:
                left.remove(best)
    precisions = [sum(hits[: rank + 1]) / (rank + 1) for rank in range(len(hits))]
    return sum(max(precisions[rank:]) for rank, hit in enumerate(hits) if hit) / total if total else 0.0
