import json
from pathlib import Path

import pytest
from PIL import Image

from mmgrpo.reward.loading import load_reward


def shipped(spec: str, **args):
    return load_reward(f"rewards/{spec}", base=Path(), args=args).function


def tag(text):
    return f"<answer>{text}</answer>"


def test_box_iou_in_the_units_that_models_write():
    picture = Image.new("RGB", (480, 320))
    f = shipped("boxes.py:box_iou")
    truth = [[48, 32, 240, 160]]
    assert f(completions=[tag("[48, 32, 240, 160]")], answer=truth, images=[[picture]]) == [1.0]
    thousand = tag('{"bbox_2d": [100, 100, 500, 500]}')
    assert f(completions=[thousand], answer=truth, images=[[picture]], unit="thousand") == [pytest.approx(1.0)]
    model = tag(f"[{48 * 476 / 480}, {32 * 308 / 320}, {240 * 476 / 480}, {160 * 308 / 320}]")
    [score] = f(completions=[model], answer=truth, images=[[picture]], unit="model")
    assert score == pytest.approx(1.0)


def test_resizing_equals_the_rule_of_qwen_vl():
    from qwen_vl_utils.vision_process import smart_resize

    resized = __import__("mmgrpo").load_plugin("boxes.py", beside=__file__).resized
    for width, height in [(480, 320), (30, 40), (2000, 3000), (640, 480), (100, 90)]:
        for limits in [(3136, 12845056), (56 * 56, 100 * 28 * 28)]:
            h, w = smart_resize(height, width, factor=28, min_pixels=limits[0], max_pixels=limits[1])
            assert resized(width, height, min_pixels=limits[0], max_pixels=limits[1]) == (0.0, 0.0, w, h)


@pytest.mark.parametrize(
    "text", ["none", tag("none"), tag("[1,2,3]"), tag("[0,0,1,1] [0,0,10,10]"), tag("[10,10,0,0]")]
)
def test_not_exactly_one_box_earns_nothing(text):
    assert shipped("boxes.py:box_iou")(completions=[text], answer=[[0, 0, 10, 10]], images=[[]]) == [0.0]


def test_a_truth_that_is_no_box_is_an_error():
    for name in ("box_iou", "point_in_box"):
        columns = {"images": [[]]} if name == "box_iou" else {}
        with pytest.raises(ValueError, match="is not a box"):
            shipped(f"boxes.py:{name}")(completions=[tag("[0,0,1,1]")], answer=["a dog"], **columns)


def test_vlm_r1_counts_an_overlap_of_one_pixel_as_none():
    f = shipped("boxes.py:vlm_r1_iou")
    texts = [tag("[0, 0, 10, 10]"), tag("[0, 0, 11, 10]"), tag("[0, 0, 12, 10]"), tag("[-1, 0, 12, 10]")]
    assert f(completions=texts, answer=[[10, 0, 20, 10]] * 4) == [0.0, 0.0, pytest.approx(2 / 20), 0.0]


def test_point_in_box():
    f = shipped("boxes.py:point_in_box")
    texts = [tag("(5, 5)"), tag("[5, 5]"), tag("click (5, 5) or (6, 6)"), tag("(11, 5)"), "(5, 5)"]
    assert f(completions=texts, answer=[[0, 0, 10, 10]] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_average_precision_by_hand():
    def item(x, label="dog"):
        return {"bbox_2d": [x, 0, x + 10, 10], "label": label}

    truth = [item(0), item(20), item(40, "cat")]
    lists = [
        truth,
        [item(100), item(0), item(20), item(40, "cat")],
        [item(0), item(0), item(40, "cat")],
        [item(0, "cat")],
        [],
    ]
    f = shipped("boxes.py:detection_map")
    scores = f(completions=[tag(json.dumps(found)) for found in lists], answer=[truth] * 5)
    dog_late = (2 / 3 + 2 / 3) / 2
    assert scores == pytest.approx([1.0, (dog_late + 1) / 2, (0.5 + 1) / 2, 0.0, 0.0])
    assert f(completions=[tag("[]"), tag("dog"), tag('[{"bbox_2d": [0, 0, 1e999, 1]}]')], answer=[[], [], []]) == [
        1,
        0,
        0,
    ]


def test_temporal_iou():
    f = shipped("video.py:temporal_iou")
    texts = [tag("4 to 8"), tag("from 4.0s to 8.0s"), tag("4-6, 6-8"), tag("0 to 4"), tag("8 to 4"), "4 to 8"]
    assert f(completions=texts, answer=[[4, 8]] * 6) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    strict = f(completions=[tag("2 to 6")], answer=["4 to 8"], duration_seconds=[10])
    assert strict == [pytest.approx(1 / 3 * 0.8 * 0.8)]
    with pytest.raises(ValueError, match="no moment"):
        f(completions=[tag("1 to 2")], answer=["later"])


def test_video_r1_judges_each_row_by_its_type():
    f = shipped("video.py:video_r1")
    rows = [
        ("B", "B", "multiple choice", 1.0), ("3.1415", "3.14", "numerical", 1.0), ("3", "3.0", "numerical", 0.0),
        ("stop", "stop", "OCR", 1.0), ("a cat sat", "a cat sat", "free-form", 1.0), ("8", "10", "regression", 0.8),
    ]  # fmt: skip
    texts, answers, kinds, right = zip(*rows, strict=True)
    scores = f(completions=[tag(t) for t in texts], answer=list(answers), problem_type=list(kinds))
    assert scores == pytest.approx(right)
    assert f(completions=list(texts), answer=list(answers), problem_type=list(kinds)) == [0.0] * 6
    with pytest.raises(ValueError, match="riddle"):
        f(completions=["a"], answer=["a"], problem_type=["riddle"])


def test_the_frame_order_bonus_needs_both_versions_and_an_advantage():
    f = shipped("video.py:FrameOrderBonus")
    pair, shuffled = ["v", "v", "w", "w", "x", None], [False, True, False, True, False, False]
    texts = [tag(3), tag(4), tag(4), tag(3), tag(3), tag(3)]
    scores = f(completions=texts, pair=pair, shuffled=shuffled, answer=[3] * 6)
    assert scores == [0.3, 0.0, 0.0, 0.0, None, None]


def test_crops_filters_and_drawings():
    picture = Image.new("RGB", (64, 64), "red")
    crop, adjust, svg = (shipped(f"render.py:{n}") for n in ("crop", "adjust", "svg"))
    assert crop(completion=tag("[-5, 0, 20, 100]"), images=[picture]).size == (20, 64)
    for text in ("none", tag("[0,0,3,3]"), tag("[9,9,1,1]"), tag("[1.2.3, 0, 9, 9]")):
        assert crop(completion=text, images=[picture]) is None
    assert adjust(completion=tag('{"color": 0}'), images=[picture]).getpixel((0, 0))[0] < 100
    for text in ('{"zoom": 1}', '{"color": 9}', '{"color": true}', "[]", "{}", "red"):
        assert adjust(completion=tag(text), images=[picture]) is None
    shapes = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="40px" height="40"><g>'
        '<circle cx="20" cy="20" r="9" fill="blue"/>'
        '<line x1="0" y1="0" x2="39" y2="0" stroke="red"/><polygon points="0,30 5,39 0,39" fill="green"/></g></svg>'
    )
    drawn = svg(completion=tag(shapes), images=[])
    assert [drawn.getpixel(at) for at in ((20, 20), (10, 0), (1, 37), (39, 39))] == [
        (0, 0, 255), (255, 0, 0), (0, 128, 0), (255, 255, 255),
    ]  # fmt: skip
    bad = ["<svg><rect></svg>", '<svg width="1e9" height="1"></svg>', '<svg><rect width="a"/></svg>']
    bad += ['<svg><!ENTITY a "b"></svg>', '<svg width="9" height="9"><rect width="5" height="5" fill="no"/></svg>']
    for text in bad:
        assert svg(completion=text, images=[]) is None
