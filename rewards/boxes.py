"""Boxes and points in an image: intersection over union, hits, and mean average precision."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from mmgrpo import last_answer, marked_answers, read_ground_truth, reward_facts

Box = tuple[float, float, float, float]
_NUMBER = r"\s*(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*"
_BOX = re.compile(r"\[" + ",".join([_NUMBER] * 4) + r"\]")
_CORNERS = re.compile(r"\(" + _NUMBER + "," + _NUMBER + r"\)\s*,\s*\(" + _NUMBER + "," + _NUMBER + r"\)")
_POINT = re.compile(r"[\[(]" + ",".join([_NUMBER] * 2) + r"[\])]")

UNITS = ("pixels", "model", "thousand", "family")
FAMILY_UNITS = {
    **dict.fromkeys(("qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "thousand"),
    **dict.fromkeys(("qwen3_omni_moe", "glm4v", "glm4v_moe", "glm46v", "internvl"), "thousand"),
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_omni"), "model"),
}
"""The frame in which each family was taught to write coordinates, by transformers' ``model_type``."""
_FACTORS = dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe"), 32)


def _overlap(a: Box, b: Box) -> float:
    """Intersection over union of two boxes ``x1, y1, x2, y2``."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    inter = max(0.0, width) * max(0.0, height)
    union = sum(max(0.0, x2 - x1) * max(0.0, y2 - y1) for x1, y1, x2, y2 in (a, b)) - inter
    return inter / union if union > 0 else 0.0


def _answer(text: str) -> str:
    """What a completion names: its last ``<answer>``, else what stands between its family's own marks."""
    answer = last_answer(text)
    return " ".join(marked_answers(text)) if answer is None else answer


def _box(value: Any) -> Box | None:
    """A box from four numbers, or from text that holds exactly one: ``[x1, y1, x2, y2]`` or ``(x1, y1), (x2, y2)``."""
    if isinstance(value, str):
        boxes = [*_BOX.findall(value), *_CORNERS.findall(value)]
        value = boxes[0] if len(boxes) == 1 else None
    if isinstance(value, dict):
        value = value.get("bbox_2d", value.get("bbox"))
    if not isinstance(value, Sequence) or len(value) != 4:
        return None
    try:
        x1, y1, x2, y2 = (float(number) for number in value)
    except (TypeError, ValueError, OverflowError):
        return None
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 and math.isfinite(x1 + y1 + x2 + y2) else None


def _true_box(value: Any) -> Box:
    box = _box(read_ground_truth(value))
    if box is None:
        raise ValueError(f"the ground truth {value!r:.80} is not a box [x1, y1, x2, y2]")
    return box


def _scaled(box: Box, x: float, y: float) -> Box:
    return (box[0] * x, box[1] * y, box[2] * x, box[3] * y)


def resized(width: int, height: int, *, factor: int = 28, min_pixels: int = 3136, max_pixels: int = 12845056) -> Box:
    """Size of an image as Qwen-VL models see it, written as the box ``0, 0, width, height``.

    Sides are multiples of ``factor``, the area lies between the two limits, and the shape is kept.

    Args:
        width: Of the image, in pixels.
        height: Of the image, in pixels.
        factor: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL.
        min_pixels: Smallest area.
        max_pixels: Largest area.

    Returns:
        The whole image as a box in the model's pixels.

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


class _Frame:
    """The frame in which a policy writes coordinates; brings boxes into pixels of the original image."""

    def __init__(
        self, unit: str, family: str | None, *, factor: int | None, min_pixels: int | None, max_pixels: int | None
    ) -> None:
        if unit not in UNITS:
            raise ValueError(f"unit {unit!r} is not one of {', '.join(UNITS)}")
        if unit == "family" and family not in FAMILY_UNITS:
            raise ValueError(
                f"unit family needs args.family, one of {', '.join(FAMILY_UNITS)}; got {family!r}. For other families "
                "say the unit"
            )
        self.unit = FAMILY_UNITS[str(family)] if unit == "family" else unit
        limits = {"factor": factor or _FACTORS.get(str(family)), "min_pixels": min_pixels, "max_pixels": max_pixels}
        self.limits = {key: value for key, value in limits.items() if value is not None}
        if any(value < 1 for value in self.limits.values()):
            raise ValueError(f"factor, min_pixels and max_pixels are at least 1; got {self.limits}")

    def pixels(self, box: Box, images: Sequence[Any]) -> Box:
        """A box that the policy wrote, in pixels of the first image as it is stored."""
        if self.unit == "pixels":
            return box
        if not images:
            raise ValueError(f"unit {self.unit} needs the image of the row for its size, and the row has none")
        width, height = images[0].size
        side_x, side_y = (1000.0, 1000.0) if self.unit == "thousand" else resized(width, height, **self.limits)[2:]
        return _scaled(box, width / side_x, height / side_y)


@reward_facts(low=0.0, high=1.0)
def box_iou(
    completions: list[str],
    answer: list[Any],
    images: list[list[Any]],
    unit: str = "pixels",
    family: str | None = None,
    factor: int | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> list[float | None]:
    """Intersection over union of the one box in the answer with the true box.

    Args:
        completions: What the policy wrote: ``[x1, y1, x2, y2]`` or ``(x1, y1), (x2, y2)`` in the last ``<answer>``,
            alone or inside JSON, or between Qwen2-VL's ``<|box_start|>`` and ``<|box_end|>``.
        answer: The true box in pixels of the original image, a list or text; None: does not apply.
        images: Images, for their sizes.
        unit: What the policy's numbers count: ``pixels`` of the original image, ``model`` (pixels after Qwen-VL's
            resizing, as VLM-R1 rescales them), ``thousand`` (thousandths of width and height), or ``family`` (what
            the model's family was taught: thousandths for Qwen2-VL, Qwen3-VL, GLM-V and InternVL, the model's pixels
            for Qwen2.5-VL).
        family: For ``family``: its ``model_type``.
        factor: For ``model``: sides are multiples of this; the family's, else 28.
        min_pixels: For ``model``: the run's ``model.min_pixels``; 3136 where it has none.
        max_pixels: For ``model``: the run's ``model.max_pixels``; 12,845,056 where it has none.

    Returns:
        0 to 1; 0 where there is not exactly one box.

    Source: VLM-R1, arXiv:2504.07615, section 3.

    Example:
        >>> box_iou(["<answer>[0, 0, 10, 10]</answer>", "<answer>none</answer>"], [[0, 0, 10, 20]] * 2, [[], []])
        [0.5, 0.0]
    """
    frame = _Frame(unit, family, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
    scores: list[float | None] = []
    for text, value, row in zip(completions, answer, images, strict=True):
        if read_ground_truth(value) is None:
            scores.append(None)
            continue
        true_box, box = _true_box(value), _box(_answer(text))
        scores.append(0.0 if box is None else _overlap(frame.pixels(box, row), true_box))
    return scores


@reward_facts(low=0.0, high=1.0)
def vlm_r1_iou(
    completions: list[str],
    answer: list[Any],
    images: list[list[Any]] | None = None,
    unit: str = "pixels",
    family: str | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> list[float | None]:
    """VLM-R1's own rule, to compare with its runs.

    The first whole-number box of the first ``<answer>`` counts; an overlap of at most one pixel counts as none.

    Args:
        completions: What the policy wrote.
        answer: The true box, a list or ``<answer>[x1, y1, x2, y2]</answer>``; None: does not apply.
        images: Images, for their sizes.
        unit: As in ``box_iou``; ``pixels`` is for boxes that are already in one unit.
        family: As in ``box_iou``.
        min_pixels: As in ``box_iou``.
        max_pixels: As in ``box_iou``.

    Returns:
        0 to 1.

    Source: ``iou_reward`` of VLM-R1 (github.com/om-ai-lab/VLM-R1).

    Example:
        >>> vlm_r1_iou(["<answer>[0, 0, 10, 10]</answer>", "<answer>[0.5, 0, 10, 10]</answer>"], [[0, 0, 10, 20]] * 2)
        [0.5, 0.0]
    """
    frame = _Frame(unit, family, factor=None, min_pixels=min_pixels, max_pixels=max_pixels)
    scores: list[float | None] = []
    for text, value, row in zip(completions, answer, images or [[]] * len(completions), strict=True):
        if read_ground_truth(value) is None:
            scores.append(None)
            continue
        true_box = _true_box(value)
        tag = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
        match = re.search(r"\[(\d{1,12}),\s*(\d{1,12}),\s*(\d{1,12}),\s*(\d{1,12})\]", tag.group(1)) if tag else None
        x1, y1, x2, y2 = (float(number) for number in match.groups()) if match else (0.0, 0.0, 0.0, 0.0)
        box = frame.pixels((x1, y1, x2, y2), row) if match else (x1, y1, x2, y2)
        touching = all(min(box[i + 2], true_box[i + 2]) - max(box[i], true_box[i]) > 1 for i in (0, 1))
        scores.append(_overlap(box, true_box) if touching else 0.0)
    return scores


@reward_facts(low=0.0, high=1.0)
def point_in_box(
    completions: list[str],
    answer: list[Any],
    images: list[list[Any]] | None = None,
    unit: str = "pixels",
    family: str | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> list[float | None]:
    """1 where the one point in the answer lies in the true box, else 0: for clicks and pointing.

    Args:
        completions: What the policy wrote: ``(x, y)`` or ``[x, y]`` in the last ``<answer>``.
        answer: The true box, in pixels of the original image; None: does not apply.
        images: Images, for their sizes.
        unit: As in ``box_iou``.
        family: As in ``box_iou``.
        min_pixels: As in ``box_iou``.
        max_pixels: As in ``box_iou``.

    Returns:
        0 or 1.

    Source: the grounding metric of GUI agents, for example ScreenSpot (arXiv:2401.10935).

    Example:
        >>> point_in_box(["<answer>(5, 5)</answer>", "<answer>(50, 5)</answer>"], [[0, 0, 10, 10]] * 2)
        [1.0, 0.0]
    """
    frame = _Frame(unit, family, factor=None, min_pixels=min_pixels, max_pixels=max_pixels)
    scores: list[float | None] = []
    for text, value, row in zip(completions, answer, images or [[]] * len(completions), strict=True):
        if read_ground_truth(value) is None:
            scores.append(None)
            continue
        box, points = _true_box(value), _POINT.findall(_answer(text))
        if len(points) == 1:
            x, y = (float(number) for number in points[0])
            x, y, _, _ = frame.pixels((x, y, x, y), row)
            scores.append(float(box[0] <= x <= box[2] and box[1] <= y <= box[3]))
        else:
            scores.append(0.0)
    return scores


def _detections(value: Any) -> list[tuple[str, Box]] | None:
    """Label and box of each detection: a JSON list of ``{"bbox_2d": […], "label": …}``."""
    if isinstance(value, str):
        try:
            value = json.loads(re.sub(r"^```(?:json)?|```$", "", value.strip()))
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list):
        return None
    detections: list[tuple[str, Box]] = []
    for item in value:
        corners = item.get("bbox_2d", item.get("bbox")) if isinstance(item, dict) else None
        numbers = isinstance(corners, list) and all(type(n) in (int, float) for n in corners)
        box = _box(corners) if numbers else None
        if box is None:
            return None
        detections.append((str(item.get("label") or "").strip(), box))
    return detections


@reward_facts(low=0.0, high=1.0)
def detection_map(
    completions: list[str],
    answer: list[Any],
    images: list[list[Any]] | None = None,
    thresholds: Sequence[float] = (0.5,),
    unit: str = "pixels",
    family: str | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> list[float | None]:
    """Mean average precision of a list of detections, over labels and thresholds.

    Detections rank in the order in which they are written; each true box is matched once.

    Args:
        completions: A JSON list of ``{"bbox_2d": [x1, y1, x2, y2], "label": "dog"}`` in the last ``<answer>``.
        answer: The true list, in the same form and in pixels of the original image; None: does not apply.
        images: Images, for their sizes.
        thresholds: Overlap from which a detection is right; ``[0.5, 0.55, …, 0.95]`` is COCO's mAP.
        unit: As in ``box_iou``.
        family: As in ``box_iou``.
        min_pixels: As in ``box_iou``.
        max_pixels: As in ``box_iou``.

    Returns:
        0 to 1; 0 where the answer is no such list; 1 where there is nothing to find and nothing was.

    Source: COCO's average precision (all points), as ``map`` of VLM-R1.

    Example:
        >>> true = [{"bbox_2d": [0, 0, 10, 10], "label": "dog"}, {"bbox_2d": [20, 0, 30, 10], "label": "dog"}]
        >>> detection_map(['<answer>[{"bbox_2d": [0, 0, 10, 10], "label": "dog"}]</answer>', "none"], [true, true])
        [0.5, 0.0]
    """
    if not thresholds or not all(0 < t <= 1 for t in thresholds):
        raise ValueError(f"thresholds are overlaps above 0 and at most 1; got {thresholds!r:.80}")
    frame = _Frame(unit, family, factor=None, min_pixels=min_pixels, max_pixels=max_pixels)
    scores: list[float | None] = []
    for text, value, row in zip(completions, answer, images or [[]] * len(completions), strict=True):
        ground_truth = read_ground_truth(value)
        true_boxes = None if ground_truth is None else _detections(ground_truth)
        if ground_truth is not None and true_boxes is None:
            raise ValueError(f"the ground truth {value!r:.80} is not a list of boxes with labels")
        detections = _detections(_answer(text))
        if true_boxes is None or detections is None:
            scores.append(None if true_boxes is None else 0.0)
        elif not true_boxes:
            scores.append(float(not detections))
        else:
            detections = [(label, frame.pixels(box, row)) for label, box in detections[:_MOST]]
            labels = sorted({label for label, _ in [*detections, *true_boxes]})
            values = [_precision(detections, true_boxes, label, t) for label in labels for t in thresholds]
            scores.append(sum(values) / len(values))
    return scores


_MOST = 1000
"""How many detections of one answer are looked at: enough for any image, and a bound on time."""


def _precision(
    detections: list[tuple[str, Box]], true_boxes: list[tuple[str, Box]], label: str, threshold: float
) -> float:
    """Average precision of one label: the mean, over true boxes, of the best precision at their recall."""
    left = [box for name, box in true_boxes if name == label]
    total = len(left)
    hits: list[bool] = []
    for name, box in detections:
        if name == label:
            best = max(left, key=lambda other: _overlap(box, other), default=None)
            hits.append(best is not None and _overlap(box, best) >= threshold)
            if hits[-1] and best is not None:
                left.remove(best)
    precisions = [sum(hits[: rank + 1]) / (rank + 1) for rank in range(len(hits))]
    return sum(max(precisions[rank:]) for rank, hit in enumerate(hits) if hit) / total if total else 0.0
