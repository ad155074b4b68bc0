"""Counting rows: a scene, the question how many objects it shows, and the true answer.

The columns are those of R1-V (``image``, ``problem``, ``solution``), so configurations carry over to real data.
"""

from __future__ import annotations

from mmgrpo.data.lazy import Row, Rows
from mmgrpo.data.synthetic.scenes import render_scene

QUESTION = "How many objects are there?"


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
            "problem": QUESTION,
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
        image_size: Width and height of the pictures, in pixels.
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
