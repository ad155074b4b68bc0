"""Lidar scans and radar returns as pictures: a worked example of a media adapter.

A scan is an array of N points with four numbers each: x (forward), y (left) and z (up) in metres, and the strength of
the return, 0 to 1 (or 0 to 255). Files are KITTI's ``.bin`` (float32, no header) or ``.npy``. Two views are drawn:

- the bird's-eye view looks down on the ground: red is the height of the highest point of a cell, green its strongest
  return, blue how many points it holds;
- the range view is what the sensor saw as it turned: columns are directions, rows are elevations, red is nearness,
  green strength, blue height.

Use it from a YAML:

    data:
      adapters:
        - {fn: examples/lidar_adapter.py:Radar}
        - {fn: examples/lidar_adapter.py:Lidar, args: {view: both, reach_metres: 40}}

``python examples/lidar_adapter.py FOLDER ROWS`` writes scans of a yard with posts, and rows that ask how many.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from mmgrpo import Decoded, Media, MediaError


class Lidar:
    """Reads point clouds as pictures."""

    kind = "image"

    def __init__(
        self,
        *,
        view: str = "both",
        reach_metres: float = 50.0,
        size: int = 224,
        height_metres: tuple[float, float] = (-3.0, 3.0),
        elevation_degrees: tuple[float, float] = (-25.0, 5.0),
    ) -> None:
        """Choose what is drawn.

        Args:
            view: "birdseye", "range", or "both", one above the other.
            reach_metres: Half the side of the square that the bird's-eye view shows; farther points are left out of
                it, and are black in the range view.
            size: Width of the picture, and height of the bird's-eye view, in pixels.
            height_metres: Heights drawn as 0 and as full red (blue in the range view).
            elevation_degrees: Lowest and highest direction of the range view.
        """
        if view not in ("birdseye", "range", "both"):
            raise ValueError(f"view must be birdseye, range or both, not {view!r}")
        self.view, self.reach, self.size = view, float(reach_metres), int(size)
        self.heights, self.elevations = height_metres, elevation_degrees

    def reads(self, media: Media) -> bool:
        """Take point cloud files, by their ending."""
        return isinstance(media.source, Path) and media.source.suffix.lower() in (".bin", ".npy")

    def decode(self, media: Media) -> Decoded:
        """Draw a scan."""
        points = read_points(media)
        views = []
        if self.view != "range":
            views.append(self.birdseye(points))
        if self.view != "birdseye":
            views.append(self.range_view(points))
        return Decoded(kind="image", data=Image.fromarray(np.concatenate(views)), name=media.name)

    def birdseye(self, points: np.ndarray) -> np.ndarray:
        """Look down: forward is up, left is left.

        Args:
            points: ``[N, 4]``.

        Returns:
            uint8 ``[size, size, 3]``.
        """
        cells = np.floor((self.reach - points[:, :2]) / (2 * self.reach) * self.size).astype(int)
        inside = ((cells >= 0) & (cells < self.size)).all(axis=1)
        row, column = cells[inside].T
        place = row * self.size + column
        height = _scaled(points[inside, 2], *self.heights)
        many = np.bincount(place, minlength=self.size**2)
        picture = np.stack(
            [_highest(place, height, self.size**2), _highest(place, points[inside, 3], self.size**2), _density(many)],
            axis=-1,
        )
        return _bytes(picture.reshape(self.size, self.size, 3))

    def range_view(self, points: np.ndarray) -> np.ndarray:
        """Look around: the middle column is forward, the top row is up.

        Args:
            points: ``[N, 4]``.

        Returns:
            uint8 ``[size / 4, size, 3]``.
        """
        rows, low, high = self.size // 4, *self.elevations
        distance = np.linalg.norm(points[:, :3], axis=1)
        elevation = np.degrees(np.arcsin(points[:, 2] / np.maximum(distance, 1e-6)))
        column = ((0.5 - np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi)) * self.size).astype(int) % self.size
        row = np.floor((high - elevation) / (high - low) * rows).astype(int)
        seen = (row >= 0) & (row < rows) & (distance > 0) & (distance < self.reach)
        place = (row * self.size + column)[seen]
        near = 1 - distance[seen] / self.reach
        nearest = np.lexsort((near, place))  # of each place, the nearest point comes last and is what is drawn
        picture = np.zeros((rows * self.size, 3))
        height = _scaled(points[seen, 2], *self.heights)
        picture[place[nearest]] = np.stack([near, points[seen, 3], height], axis=-1)[nearest]
        return _bytes(picture.reshape(rows, self.size, 3))


class Radar:
    """Reads radar returns as a bird's-eye picture: x, y (metres), radial speed (metres per second), strength.

    Red comes nearer, blue goes away, green is the strength; each return is drawn as a dot.
    """

    kind = "image"

    def __init__(self, *, reach_metres: float = 50.0, size: int = 224, fastest: float = 20.0, dot: int = 2) -> None:
        """Choose what is drawn.

        Args:
            reach_metres: Half the side of the square that is shown.
            size: Width and height of the picture, in pixels.
            fastest: Speed that is drawn as full red or blue.
            dot: Pixels around the middle of a return.
        """
        self.reach, self.size, self.fastest, self.dot = float(reach_metres), int(size), float(fastest), int(dot)

    def reads(self, media: Media) -> bool:
        """Take files that end in ``.radar.npy`` or ``.radar.bin``."""
        return isinstance(media.source, Path) and media.source.name.lower().endswith((".radar.npy", ".radar.bin"))

    def decode(self, media: Media) -> Decoded:
        """Draw the returns."""
        returns = read_points(media)
        picture = np.zeros((self.size, self.size, 3))
        cells = np.floor((self.reach - returns[:, :2]) / (2 * self.reach) * self.size).astype(int)
        for (row, column), speed, strength in zip(cells, returns[:, 2], returns[:, 3], strict=True):
            if not (0 <= row < self.size and 0 <= column < self.size):
                continue
            share = np.clip(speed / self.fastest, -1, 1)
            colour = (max(0.0, -share), 0.3 + 0.7 * strength, max(0.0, share))
            spot = picture[
                max(0, row - self.dot) : row + self.dot + 1, max(0, column - self.dot) : column + self.dot + 1
            ]
            np.maximum(spot, colour, out=spot)
        return Decoded(kind="image", data=Image.fromarray(_bytes(picture)), name=media.name)


def read_points(media: Media) -> np.ndarray:
    """Read a file of points.

    Args:
        media: Its source is a path.

    Returns:
        float32 ``[N, 4]``; strengths from 0 to 1. Points that are not finite (no return) are left out.

    Raises:
        MediaError: Not such a file, or without a point.
    """
    path = Path(media.source)
    try:
        if path.suffix.lower() == ".npy":
            points = np.load(path, allow_pickle=False)
        else:
            points = np.fromfile(path, np.float32).reshape(-1, 4)
    except (OSError, ValueError, EOFError) as error:
        raise MediaError(
            f"This is not a file of points, x y z strength as float32.\n  where: {path}\n  got: {error}"
        ) from error
    if points.ndim != 2 or points.shape[1] < 4 or points.dtype.kind not in "fiu":
        raise MediaError(f"Points need four numbers each.\n  where: {path}\n  got: shape {list(points.shape)}")
    points = points[:, :4].astype(np.float32)
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        raise MediaError(f"A file holds no point.\n  where: {path}")
    if points[:, 3].max() > 1:
        points[:, 3] /= 255
    points[:, 3] = points[:, 3].clip(0, 1)
    return points


def _scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return ((values - low) / (high - low)).clip(0.02, 1)  # a point at the bottom is still not black


def _highest(place: np.ndarray, values: np.ndarray, cells: int) -> np.ndarray:
    found = np.zeros(cells)
    np.maximum.at(found, place, values)
    return found


def _density(many: np.ndarray) -> np.ndarray:
    return np.minimum(1.0, np.log1p(many) / np.log(64))


def _bytes(picture: np.ndarray) -> np.ndarray:
    return np.rint(picture.clip(0, 1) * 255).astype(np.uint8)


def make_scan(posts: int, seed: int, *, reach: float = 20.0, beams: int = 24, steps: int = 720) -> np.ndarray:
    """Scan a flat yard with posts on it, by casting rays.

    Args:
        posts: How many; they stand apart, at different distances, and none hides another.
        seed: Which yard.
        reach: Farthest post, in metres.
        beams: Rays above one another.
        steps: Rays around.

    Returns:
        float32 ``[N, 4]``: the returns of ground and posts.
    """
    random = np.random.default_rng(seed)
    directions = (np.arange(posts) + random.uniform(0.2, 0.8, posts)) * 2 * np.pi / max(posts, 1)
    distances = random.uniform(4, reach - 1, posts)
    turn, rise = np.meshgrid(np.linspace(-np.pi, np.pi, steps, endpoint=False), np.radians(np.linspace(-24, 4, beams)))
    ground = np.where(rise < -0.02, 1.7 / np.tan(np.maximum(-rise, 0.02)), np.inf)
    nearest, strength = ground.copy(), np.full_like(ground, 0.2)
    for direction, distance in zip(directions, distances, strict=True):
        off = (turn - direction + np.pi) % (2 * np.pi) - np.pi
        level = 1.7 + distance * np.tan(rise)
        hit = (np.abs(off) * distance < 0.4) & (level > 0) & (level < 3.0) & (distance < nearest)
        nearest[hit], strength[hit] = distance, 0.9
    seen = nearest < reach * 1.4
    flat, up = nearest[seen], rise[seen]
    points = [flat * np.cos(turn[seen]), flat * np.sin(turn[seen]), flat * np.tan(up), strength[seen]]
    noise = random.normal(0, 0.02, (len(flat), 4)) * (1, 1, 1, 0)
    return (np.stack(points, axis=1) + noise).astype(np.float32)


def write_rows(folder: Path, rows: int, *, seed: int = 0, most: int = 6) -> Path:
    """Write scans and the rows that ask how many posts stand in them.

    Args:
        folder: Where to.
        rows: How many.
        seed: Which yards.
        most: Largest count.

    Returns:
        The file of the rows.
    """
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(rows):
        count = 1 + i % most
        make_scan(count, seed * 1_000_003 + i).tofile(folder / "scans" / f"{i}.bin")
        answer = f"<answer>{count}</answer>"
        lines.append(
            json.dumps({"image": f"scans/{i}.bin", "problem": "How many posts stand here?", "solution": answer})
        )
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "train.jsonl"


if __name__ == "__main__":
    print(write_rows(Path(sys.argv[1]), int(sys.argv[2])))
