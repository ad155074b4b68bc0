"""CLEVR-like images with their scene graph: a few solids on a floor, to count, to name, to relate.

A scene is a function of its seed and index alone, so rows can be drawn in any order and made again at any time. The
columns of the counting rows are those of R1-V (``image``, ``problem``, ``solution``), so configurations carry over to
real data.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any

from PIL import Image

from mmgrpo.data.rows import Row, Rows
from mmgrpo.data.synthetic.drawing import floor
from mmgrpo.data.synthetic.layout import PlacedObject, arrange_objects, draw_kind, visible_shares

COUNT_QUESTION = "How many objects are there?"


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneObject:
    """One object of a scene, as it stands and as it is seen."""

    shape: str
    """sphere, cube or cylinder."""
    color: str
    """gray, red, blue, green, brown, purple, cyan or yellow."""
    size: str
    """small or large."""
    material: str
    """rubber or metal."""
    turn: int
    """Rotation about the vertical axis, in degrees."""
    position: tuple[float, float, float]
    """Centre: x to the right, y away from the viewer, z up, in floor units."""
    depth: float
    """Distance from the camera along its axis, in floor units; larger is farther away."""
    box: tuple[int, int, int, int]
    """Left, top, right and bottom of its own pixels (right and bottom exclusive), whatever stands before it."""
    visible: float
    """Share of its own pixels that nothing hides, from 0 to 1."""


_FACTS = tuple(field.name for field in fields(SceneObject))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An image and what is in it."""

    image: Image.Image
    """RGB, square."""
    objects: tuple[SceneObject, ...]
    """From far to near."""

    def graph(self) -> dict[str, Any]:
        """Return the objects as plain dictionaries, ready for JSON."""
        return {
            "image_size": self.image.width,
            "objects": [{name: getattr(thing, name) for name in _FACTS} for thing in self.objects],
        }


def render_scene(
    seed: int,
    index: int,
    *,
    image_size: int = 56,
    min_objects: int = 1,
    max_objects: int = 8,
    max_hidden: float = 0.4,
) -> Scene:
    """Make one scene.

    Args:
        seed: Scenes of different seeds are different.
        index: Number of the scene under this seed; scenes do not depend on each other.
        image_size: Width and height of the image, in pixels.
        min_objects: Smallest number of objects.
        max_objects: Largest number of objects; every number of the range is equally likely.
        max_hidden: Largest share of an object's own pixels that others may hide.

    Returns:
        The image and its objects.

    Raises:
        DatasetError: So many objects do not fit into so small an image.

    Source: the kind of scene is that of CLEVR, arXiv:1612.06890, section 3.

    Example:
        >>> scene = render_scene(0, 3, image_size=48, min_objects=2, max_objects=2)
        >>> scene.image.size, len(scene.objects)
        ((48, 48), 2)
    """
    rng = random.Random(f"scene {seed} {index}")
    count = min_objects + int(rng.random() * (max_objects - min_objects + 1))
    kinds = [draw_kind(rng) for _ in range(count)]
    placed = arrange_objects(kinds, rng, image_size=image_size, max_hidden=max_hidden)
    shares = visible_shares(placed, image_size)
    objects = tuple(_describe(thing, share) for thing, share in zip(placed, shares, strict=True))
    return Scene(image=_paint(placed, image_size), objects=objects)


def _paint(placed: list[PlacedObject], image_size: int) -> Image.Image:
    image = floor(image_size).copy()
    for thing in placed:  # all shadows first: they fall on the floor, never on an object
        drawn = thing.sprite
        left = thing.corner[0] + drawn.center[0] - drawn.shadow_center[0]
        top = thing.corner[1] + drawn.center[1] - drawn.shadow_center[1]
        image.paste((38, 36, 40), (left, top), drawn.shadow)
    for thing in placed:
        image.paste(thing.sprite.image, thing.corner, thing.sprite.alpha)
    return image


def _describe(thing: PlacedObject, visible: float) -> SceneObject:
    left, top = thing.corner
    own = thing.sprite.box
    x, y, z = (round(value, 4) for value in thing.position)
    return SceneObject(
        shape=thing.kind.shape,
        color=thing.kind.color,
        size=thing.kind.size,
        material=thing.kind.material,
        turn=thing.kind.turn,
        position=(x, y, z),
        depth=round(thing.depth, 4),
        box=(left + own[0], top + own[1], left + own[2], top + own[3]),
        visible=round(visible, 4),
    )


class SceneRows(Rows):
    """Lazy counting rows; a scene is drawn when its row is read, and not kept."""

    def __init__(
        self, count: int, *, seed: int, image_size: int, min_objects: int, max_objects: int, max_hidden: float
    ) -> None:
        """Promise ``count`` rows; the other arguments are those of :func:`render_scene`."""
        self._count, self._seed = count, seed
        self._image_size, self._max_hidden = image_size, max_hidden
        self._min_objects, self._max_objects = min_objects, max_objects
        self.name = f"scenes of seed {seed}"
        self.columns = ("id", "image", "problem", "solution", "count", "scene")
        self.generated = True

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Row:
        """Draw scene ``index`` and put the question."""
        scene = render_scene(
            self._seed,
            index,
            image_size=self._image_size,
            min_objects=self._min_objects,
            max_objects=self._max_objects,
            max_hidden=self._max_hidden,
        )
        count = len(scene.objects)
        return {
            "id": self.id(index),
            "image": scene.image,
            "problem": COUNT_QUESTION,
            "solution": f"<answer> {count} </answer>",
            "count": count,
            "scene": scene.graph(),
        }

    def where(self, index: int) -> str:
        """Name the seed and the scene."""
        return f"{self.name}, scene {index}"

    def id(self, index: int) -> str:
        """Name the scene by seed and number, so that rows of two seeds never share a name."""
        return f"scene-{self._seed}-{index}"


def scene_rows(
    count: int,
    *,
    seed: int = 0,
    image_size: int = 56,
    min_objects: int = 1,
    max_objects: int = 8,
    max_hidden: float = 0.4,
) -> SceneRows:
    """Make counting rows, drawn one by one as they are read.

    Args:
        count: How many rows.
        seed: Scenes of different seeds are different: give training and evaluation seeds of their own.
        image_size: Width and height of the images, in pixels.
        min_objects: Smallest count.
        max_objects: Largest count; every count of the range is equally likely.
        max_hidden: Largest share of an object's own pixels that others may hide.

    Returns:
        Rows with the columns id, image, problem, solution, count and scene.

    Example:
        >>> row = scene_rows(10, min_objects=3, max_objects=3)[0]
        >>> row["problem"], row["solution"], row["count"]
        ('How many objects are there?', '<answer> 3 </answer>', 3)
    """
    return SceneRows(
        count,
        seed=seed,
        image_size=image_size,
        min_objects=min_objects,
        max_objects=max_objects,
        max_hidden=max_hidden,
    )
