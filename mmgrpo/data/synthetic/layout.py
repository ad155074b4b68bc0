"""Where objects stand: a floor seen in perspective, and a placement in which every object can be counted.

Visibility is measured with the objects' own masks. This module draws nothing and knows no colours of the floor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mmgrpo.data.synthetic.drawing import COLORS, HALF_HEIGHT, PITCH, Material, Shape, Sprite, sprite
from mmgrpo.errors import DatasetError, explain

OBJECT_SIZES: dict[str, float] = {"small": 0.47, "large": 0.74}
"""Radius by size name, in floor units; the floor is about six units wide."""

_SHAPES: tuple[Shape, ...] = ("sphere", "cube", "cylinder")
_MATERIALS: tuple[Material, ...] = ("rubber", "metal")
_TURNS = (0, 15, 30, 45, 60, 75)
_DISTANCE = 9.5
_WIDTH = 6.2
_FAR = 3.0
_GAP = 0.12
_TRIES = 60
_SMALLEST_RADIUS = 1.5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """What an object looks like, wherever it stands."""

    shape: Shape
    color: str
    size: str
    material: Material
    turn: int
    """Rotation about the vertical axis, in degrees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedObject:
    """One object in its place on the floor and in the image."""

    kind: ObjectKind
    position: tuple[float, float, float]
    """Centre: x to the right, y away from the viewer, z up, in floor units."""
    radius: float
    """In floor units."""
    depth: float
    """Distance from the camera along its axis, in floor units."""
    sprite: Sprite
    corner: tuple[int, int]
    """Pixel of the sprite's upper left corner."""


def draw_kind(rng: random.Random) -> ObjectKind:
    """Draw the looks of one object; every combination is equally likely.

    Args:
        rng: Random numbers; only ``rng.random()`` is called, whose stream Python keeps between versions.
    """
    return ObjectKind(
        shape=_pick(rng, _SHAPES),
        color=_pick(rng, tuple(COLORS)),
        size=_pick(rng, tuple(OBJECT_SIZES)),
        material=_pick(rng, _MATERIALS),
        turn=_pick(rng, _TURNS),
    )


def arrange_objects(
    kinds: Sequence[ObjectKind], rng: random.Random, *, image_size: int, max_hidden: float
) -> list[PlacedObject]:
    """Place objects so that none is cut by the frame, touches another or is hidden too much.

    Crowded scenes shrink all their objects together until they fit.

    Args:
        kinds: The objects.
        rng: Random numbers.
        image_size: Width and height of the image, in pixels.
        max_hidden: Largest share of an object's own pixels that nearer objects may cover.

    Returns:
        The objects from far to near.

    Raises:
        DatasetError: So many objects do not fit into so small an image.
    """
    shrink = 1.0
    while shrink * OBJECT_SIZES["small"] * image_size / _WIDTH > _SMALLEST_RADIUS:
        placed: list[PlacedObject] = []
        for kind in kinds:
            fitting = _fit(kind, placed, rng, image_size=image_size, shrink=shrink, max_hidden=max_hidden)
            if fitting is None:
                break
            placed = fitting
        else:
            return placed
        shrink *= 0.94
    raise DatasetError(
        explain(
            f"{len(kinds)} objects do not fit into an image of {image_size} pixels",
            fix="Raise image_size or max_hidden, or lower max_objects.",
        )
    )


def visible_shares(placed: Sequence[PlacedObject], image_size: int) -> list[float]:
    """Measure which share of each object's own pixels is not covered by nearer ones.

    Args:
        placed: Objects from far to near.
        image_size: Width and height of the image, in pixels.

    Returns:
        One share from 0 to 1 for each object.
    """
    owner = np.zeros((image_size, image_size), dtype=np.intp)
    for label, thing in enumerate(placed, start=1):
        _window(owner, thing)[thing.sprite.solid] = label
    seen = np.bincount(owner.ravel(), minlength=len(placed) + 1)
    return [int(seen[label]) / thing.sprite.area for label, thing in enumerate(placed, start=1)]


def _pick(rng: random.Random, choices: Sequence[_T]) -> _T:
    return choices[int(rng.random() * len(choices))]


def _window(owner: NDArray[np.intp], thing: PlacedObject) -> NDArray[np.intp]:
    left, top = thing.corner
    height, width = thing.sprite.solid.shape
    return owner[top : top + height, left : left + width]


def _fit(
    kind: ObjectKind,
    placed: list[PlacedObject],
    rng: random.Random,
    *,
    image_size: int,
    shrink: float,
    max_hidden: float,
) -> list[PlacedObject] | None:
    """Try places for one more object; None when there is none."""
    for _ in range(_TRIES):
        new = _stand(kind, rng, image_size=image_size, shrink=shrink)
        if new is None or any(_touch(new, old) for old in placed):
            continue
        together = sorted([*placed, new], key=lambda thing: -thing.depth)
        if not any(_overlap(new, old) for old in placed):
            return together
        if min(visible_shares(together, image_size)) >= 1 - max_hidden:
            return together
    return None


def _stand(kind: ObjectKind, rng: random.Random, *, image_size: int, shrink: float) -> PlacedObject | None:
    """Put one object somewhere on the floor; None when the frame would cut it."""
    radius = OBJECT_SIZES[kind.size] * shrink
    height = radius * HALF_HEIGHT[kind.shape]
    away = (rng.random() * 2 - 1) * _FAR
    depth = _DISTANCE + away * math.cos(PITCH) - height * math.sin(PITCH)
    scale = image_size / _WIDTH * _DISTANCE / depth  # pixels per floor unit at this depth
    across = (rng.random() * 2 - 1) * (image_size / 2 / scale - radius)
    step = max(1, round(image_size / 112))  # in half pixels: bounds the number of sprites of large images
    half_pixels = max(3, round(2 * radius * scale / step) * step)
    drawn = sprite(kind.shape, kind.color, kind.material, half_pixels, kind.turn if kind.shape == "cube" else 0)
    right = image_size / 2 + across * scale
    down = image_size * 0.46 - (away * math.sin(PITCH) + height * math.cos(PITCH)) * scale
    corner = (round(right) - drawn.center[0], round(down) - drawn.center[1])
    rows, columns = drawn.solid.shape
    if min(corner) < 0 or corner[0] + columns > image_size or corner[1] + rows > image_size:
        return None
    return PlacedObject(
        kind=kind, position=(across, away, height), radius=radius, depth=depth, sprite=drawn, corner=corner
    )


def _touch(a: PlacedObject, b: PlacedObject) -> bool:
    return math.dist(a.position[:2], b.position[:2]) < a.radius + b.radius + _GAP


def _overlap(a: PlacedObject, b: PlacedObject) -> bool:
    (ax, ay), (bx, by) = a.corner, b.corner
    (ah, aw), (bh, bw) = a.sprite.solid.shape, b.sprite.solid.shape
    return ax < bx + bw and bx < ax + aw and ay < by + bh and by < ay + ah
