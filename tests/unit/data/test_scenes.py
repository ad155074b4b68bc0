"""Scenes: seeded, countable, and described truly."""

from __future__ import annotations

import json
import time
from collections import Counter

import numpy as np
import pytest

from mmgrpo.data.synthetic.drawing import COLORS, floor, sprite
from mmgrpo.data.synthetic.layout import ObjectKind, PlacedObject, visible_shares
from mmgrpo.data.synthetic.scenes import render_scene, scene_rows
from mmgrpo.errors import DatasetError


def test_same_seed_and_index_give_the_same_bytes_in_any_order():
    forward = {i: render_scene(5, i).image.tobytes() for i in range(12)}
    sprite.cache_clear()
    backward = {i: render_scene(5, i).image.tobytes() for i in reversed(range(12))}
    assert forward == backward
    assert len(set(forward.values())) == 12


def test_other_seeds_give_other_scenes():
    pictures = {render_scene(seed, i).image.tobytes() for seed in range(20) for i in range(20)}
    assert len(pictures) == 400


def test_counts_are_uniform_over_the_range():
    seen = Counter(len(render_scene(0, i, min_objects=2, max_objects=5).objects) for i in range(2000))
    assert sorted(seen) == [2, 3, 4, 5]
    # Chi-square with 3 degrees of freedom: 16.3 is the 0.1 % point.
    assert sum((n - 500) ** 2 / 500 for n in seen.values()) < 16.3


def test_no_objects_is_an_empty_floor():
    scene = render_scene(0, 0, min_objects=0, max_objects=0)
    assert scene.objects == ()
    assert scene.image.tobytes() == floor(56).tobytes()


@pytest.mark.parametrize("max_hidden", [0.0, 0.25, 0.4])
def test_no_object_is_hidden_beyond_its_share(max_hidden: float):
    for i in range(60):
        scene = render_scene(1, i, min_objects=8, max_objects=8, max_hidden=max_hidden)
        assert all(1 - max_hidden <= thing.visible <= 1 for thing in scene.objects)


def test_visible_shares_are_those_of_the_pixels():
    ball, block = sprite("sphere", "red", "rubber", 12, 0), sprite("cube", "blue", "metal", 16, 30)
    kind = ObjectKind(shape="sphere", color="red", size="small", material="rubber", turn=0)
    far = PlacedObject(kind=kind, position=(0, 1, 0), radius=1, depth=9, sprite=ball, corner=(20, 18))
    near = PlacedObject(kind=kind, position=(0, 0, 0), radius=1, depth=8, sprite=block, corner=(24, 20))
    own = {(y + 18, x + 20) for y, x in np.argwhere(ball.solid)}
    covered = own & {(y + 20, x + 24) for y, x in np.argwhere(block.solid)}
    assert 0 < len(covered) < len(own)
    assert visible_shares([far, near], 56) == [1 - len(covered) / len(own), 1.0]


def test_objects_are_listed_from_far_to_near_and_the_nearest_is_whole():
    for i in range(10):
        objects = render_scene(2, i, min_objects=8, max_objects=8).objects
        assert [t.depth for t in objects] == sorted((t.depth for t in objects), reverse=True)
        assert objects[-1].visible == 1


def test_scenes_do_have_partly_hidden_objects():
    shares = [t.visible for i in range(40) for t in render_scene(2, i, min_objects=8, max_objects=8).objects]
    assert sum(share < 1 for share in shares) > 20


def test_objects_stay_inside_the_picture_and_large_enough_to_count():
    for i in range(200):
        for thing in render_scene(3, i, min_objects=8, max_objects=8).objects:
            left, top, right, bottom = thing.box
            assert 0 <= left < right <= 56
            assert 0 <= top < bottom <= 56
            assert right - left >= 5
            assert bottom - top >= 5


def test_farther_objects_are_higher_up_and_smaller():
    things = [t for i in range(300) for t in render_scene(4, i).objects if t.shape == "sphere" and t.size == "large"]
    far = [t for t in things if t.position[1] > 1.5]
    near = [t for t in things if t.position[1] < -1.0]
    assert max(t.box[3] for t in far) < min(t.box[3] for t in near)
    assert np.mean([t.box[2] - t.box[0] for t in far]) < 0.85 * np.mean([t.box[2] - t.box[0] for t in near])


def test_every_look_appears():
    things = [t for i in range(300) for t in render_scene(6, i).objects]
    assert {t.shape for t in things} == {"sphere", "cube", "cylinder"}
    assert {t.color for t in things} == set(COLORS)
    assert {t.size for t in things} == {"small", "large"}
    assert {t.material for t in things} == {"rubber", "metal"}


def test_metal_shines_and_rubber_does_not():
    dull, bright = (sprite("sphere", "blue", m, 24, 0) for m in ("rubber", "metal"))
    peak = [int(np.asarray(s.image)[s.solid].min(axis=-1).max()) for s in (dull, bright)]
    assert peak[1] > peak[0] + 60


def test_shadow_darkens_the_floor_beside_the_object():
    scene = render_scene(0, 0, min_objects=1, max_objects=1)
    left, top, right, bottom = scene.objects[0].box
    outside = np.ones((56, 56), dtype=bool)
    outside[top - 1 : bottom + 1, left - 1 : right + 1] = False
    change = np.asarray(floor(56), dtype=int) - np.asarray(scene.image, dtype=int)
    assert change[outside].max() > 15
    assert change[outside].min() >= 0


def test_crowds_that_cannot_fit_are_refused():
    with pytest.raises(DatasetError, match="do not fit"):
        render_scene(0, 0, image_size=16, min_objects=60, max_objects=60)


def test_a_scene_is_drawn_in_two_milliseconds():
    for i in range(300):
        render_scene(9, i)  # draws the sprites
    start = time.process_time()
    for i in range(300, 500):
        render_scene(9, i)
    assert (time.process_time() - start) / 200 < 0.002


def test_rows_have_the_columns_of_r1v_and_a_graph_for_json():
    rows = scene_rows(4, seed=3)
    row = rows[2]
    assert tuple(row) == rows.columns
    assert row["solution"] == f"<answer> {row['count']} </answer>"
    assert row["count"] == len(row["scene"]["objects"])
    assert row["id"] == "scene-3-2"
    json.dumps(row["scene"])


def test_rows_are_lazy_and_bounded():
    rows = scene_rows(10**9)
    assert len(rows) == 10**9
    assert rows[-1]["id"] == f"scene-0-{10**9 - 1}"
    with pytest.raises(IndexError):
        rows[10**9]


def test_a_slice_is_a_list_of_rows():
    assert [row["id"] for row in scene_rows(5)[1:3]] == ["scene-0-1", "scene-0-2"]
