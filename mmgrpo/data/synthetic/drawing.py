"""Small images of single objects: ray-cast once in numpy, kept, and pasted many times.

The camera is orthographic here (perspective only scales a sprite), x points right, y away from the viewer, z up.
This module knows no scene: where an object stands and what hides it is the layout's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Shape = Literal["sphere", "cube", "cylinder"]
Material = Literal["rubber", "metal"]

COLORS: dict[str, tuple[int, int, int]] = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}
"""The eight CLEVR colours. Source: Johnson et al., CLEVR, arXiv:1612.06890, dataset generator's properties."""

HALF_HEIGHT: dict[str, float] = {"sphere": 1.0, "cube": 0.8, "cylinder": 0.85}
"""Height of an object's centre above the floor, in units of its radius."""

PITCH = math.radians(38.0)
"""How far the camera looks down."""

_VIEW = np.array([0.0, math.cos(PITCH), -math.sin(PITCH)])
_RIGHT = np.array([1.0, 0.0, 0.0])
_UP = np.array([0.0, math.sin(PITCH), math.cos(PITCH)])
_KEY = np.array([-0.55, -0.45, 0.85]) / math.sqrt(0.55**2 + 0.45**2 + 0.85**2)
_FILL = np.array([0.75, -0.5, 0.3]) / math.sqrt(0.75**2 + 0.5**2 + 0.3**2)
_LAMP = np.array([-0.4, -0.68, -0.6]) / math.sqrt(0.4**2 + 0.68**2 + 0.6**2)  # what metal sides mirror
_BACK_LAMP = np.array([-0.3, 0.75, 0.75]) / math.sqrt(0.3**2 + 2 * 0.75**2)  # what metal tops mirror
_FLOOR = np.array([186.0, 184.0, 181.0])

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprite:
    """One object, drawn, and where its centre lies in the drawing."""

    image: Image.Image
    """RGB."""
    alpha: Image.Image
    """L, antialiased coverage."""
    solid: NDArray[np.bool_]
    """Pixels that the object covers at least by half: what visibility is counted in."""
    area: int
    """Number of solid pixels."""
    box: tuple[int, int, int, int]
    """Left, top, right and bottom of the solid pixels, right and bottom exclusive."""
    shadow: Image.Image
    """L, darkness on the floor around the object."""
    center: tuple[int, int]
    """Pixel of the object's centre in ``image``."""
    shadow_center: tuple[int, int]
    """Pixel of the object's centre in ``shadow``."""


@lru_cache(maxsize=4096)
def sprite(shape: Shape, color: str, material: Material, half_pixels: int, turn: int) -> Sprite:
    """Draw one object, or return the drawing made before.

    Args:
        shape: Sphere, cube or cylinder.
        color: A name in :data:`COLORS`.
        material: Rubber is dull; metal mirrors its surroundings and has a bright highlight.
        half_pixels: Radius in half pixels, so that sizes have half-pixel steps.
        turn: Rotation about the vertical axis in degrees; only a cube shows it.

    Returns:
        The sprite, shared: do not draw into it.
    """
    alpha, shade, gleam = _relief(shape, material, half_pixels, turn)
    solid = alpha >= 0.5
    columns, rows = np.flatnonzero(solid.any(axis=0)), np.flatnonzero(solid.any(axis=1))
    shadow = _shadow(shape, half_pixels)
    return Sprite(
        image=Image.fromarray(_bytes(np.array(COLORS[color], dtype=float) * shade[..., None] + gleam[..., None])),
        alpha=Image.fromarray(_bytes(alpha * 255)),
        solid=solid,
        area=int(solid.sum()),
        box=(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1),
        shadow=shadow,
        center=(alpha.shape[1] // 2, alpha.shape[0] // 2),
        shadow_center=(shadow.width // 2, shadow.height // 2),
    )


@lru_cache(maxsize=16)
def floor(image_size: int) -> Image.Image:
    """Draw the empty floor: a little darker far away and towards the corners.

    Args:
        image_size: Width and height in pixels.

    Returns:
        An RGB image, shared: copy it before drawing.
    """
    line = (np.arange(image_size) + 0.5) / image_size * 2 - 1
    across, down = np.meshgrid(line, line)
    brightness = 1.02 + 0.05 * down - 0.07 * (across**2 + down**2)
    return Image.fromarray(_bytes(brightness[..., None] * _FLOOR))


def _bytes(values: Array) -> NDArray[np.uint8]:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


@lru_cache(maxsize=1024)
def _relief(shape: Shape, material: Material, half_pixels: int, turn: int) -> tuple[Array, Array, Array]:
    """Cast rays at an object: coverage of each pixel, share of its colour that is seen, and white added to it."""
    radius = half_pixels / 2
    sub = 5 if radius < 12 else 3  # rays per pixel and axis
    side = 2 * math.ceil(radius * 1.25 + 0.5) + 1
    line = ((np.arange(side * sub) + 0.5) / sub - side / 2) / radius
    across, up = np.meshgrid(line, -line)
    start = across[..., None] * _RIGHT + up[..., None] * _UP
    hit, normal = _CASTS[shape](start, turn)
    shade, gleam = _lit(material, normal, start)
    hits = _per_pixel(hit.astype(float), sub)
    some = np.maximum(hits, 1e-9)
    return hits / sub**2, _per_pixel(shade * hit, sub) / some, _per_pixel(gleam * hit, sub) / some


def _per_pixel(rays: Array, sub: int) -> Array:
    side = len(rays) // sub
    return rays.reshape(side, sub, side, sub).sum(axis=(1, 3))


def _sphere(start: Array, turn: int) -> tuple[Array, Array]:
    square = (start**2).sum(-1)
    depth = np.sqrt(np.maximum(1 - square, 0))
    return square <= 1, start - depth[..., None] * _VIEW


def _cube(start: Array, turn: int) -> tuple[Array, Array]:
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    rotate = np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])
    origin, ray = start @ rotate.T, rotate @ _VIEW
    ray = np.where(np.abs(ray) < 1e-9, 1e-9, ray)
    half = HALF_HEIGHT["cube"]
    enter = (-np.sign(ray) * half - origin) / ray
    leave = (np.sign(ray) * half - origin) / ray
    hit = enter.max(-1) <= leave.min(-1)
    normal = np.eye(3)[enter.argmax(-1)] * -np.sign(ray)
    return hit, normal @ rotate


def _cylinder(start: Array, turn: int) -> tuple[Array, Array]:
    radius, half = 0.85, HALF_HEIGHT["cylinder"]
    top_at = (half - start[..., 2]) / _VIEW[2]
    top = start + top_at[..., None] * _VIEW
    on_top = top[..., 0] ** 2 + top[..., 1] ** 2 <= radius**2
    room = radius**2 - start[..., 0] ** 2
    side_at = (-start[..., 1] - np.sqrt(np.maximum(room, 0))) / _VIEW[1]
    side = start + side_at[..., None] * _VIEW
    on_side = (room >= 0) & (np.abs(side[..., 2]) <= half)
    normal = np.where(on_top[..., None], np.array([0.0, 0.0, 1.0]), side / radius * np.array([1.0, 1.0, 0.0]))
    return on_top | on_side, normal


_CASTS: dict[str, Any] = {"sphere": _sphere, "cube": _cube, "cylinder": _cylinder}


def _lit(material: Material, normal: Array, spot: Array) -> tuple[Array, Array]:
    """Shade a surface: how much of the object's own colour is seen, and how much white (0 to 255) is added."""
    view = _VIEW * 2.5 + spot  # rays spread, or each face of a metal cube would be one flat colour
    view = view / np.linalg.norm(view, axis=-1, keepdims=True)
    key, fill = np.maximum(normal @ _KEY, 0), np.maximum(normal @ _FILL, 0)
    half = _KEY - view
    half = half / np.linalg.norm(half, axis=-1, keepdims=True)
    gloss = np.maximum((normal * half).sum(-1), 0)
    facing = np.maximum(-(normal * view).sum(-1), 0)
    rim = 0.72 + 0.28 * np.minimum(facing * 2.2, 1)  # darker edges keep touching objects apart
    if material == "rubber":
        return (0.48 + 0.72 * key + 0.14 * fill) * rim, 22 * gloss**10
    mirrored = view - 2 * (normal * view).sum(-1, keepdims=True) * normal
    sky = np.clip(0.45 + 0.9 * mirrored[..., 2], 0, 1)
    lamp = np.maximum(mirrored @ _LAMP, 0) ** 16 + np.maximum(mirrored @ _BACK_LAMP, 0) ** 30
    shade = (0.26 + 0.42 * key + 0.12 * fill + 0.42 * sky) * rim
    return shade, 30 * sky**3 + 105 * lamp + 200 * gloss**45


@lru_cache(maxsize=1024)
def _shadow(shape: Shape, half_pixels: int) -> Image.Image:
    """Darkness that an object throws on the floor, away from the key light, with a soft edge."""
    radius = half_pixels / 2
    side = 2 * math.ceil(radius * 2.6) + 1
    line = (np.arange(side) + 0.5 - side / 2) / radius
    across, up = np.meshgrid(line, -line)
    # The floor lies at z = -height below the centre; every pixel of the shadow sees one floor point.
    height = HALF_HEIGHT[shape]
    away = (up + height * math.cos(PITCH)) / math.sin(PITCH)
    reach = np.array([-_KEY[0], -_KEY[1]]) / _KEY[2] * height * 1.1
    along = np.clip((across * reach[0] + away * reach[1]) / (reach @ reach), 0, 1)
    distance = np.hypot(across - along * reach[0], away - along * reach[1])
    cast = np.clip((1.25 - distance) / 0.75, 0, 1)
    cast = cast * cast * (3 - 2 * cast) * (1 - 0.45 * along)
    return Image.fromarray(_bytes(cast * 0.5 * 255))
