"""Answers and ground truths as people and files really write them; the row of the list is in each test's name."""
# ruff: noqa: E501, RUF001  (tables of pairs; full-width characters are meant)

import unicodedata
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.reward.answers import ANSWER_MARKS
from mmgrpo.reward.loading import load_reward


def shipped(spec: str, **args):
    return load_reward(f"rewards/{spec}", base=Path(), args=args).function


def tag(text):
    return f"<think>hm</think><answer>{text}</answer>"


DIFFERENT = [
    # algebra and superscripts
    ("2x", "2y"), ("2x", "2"), ("2x", "2n"), ("2m", "2"), ("2ab", "2"), ("3²", "3"), ("3^2", "3"), ("x²", "x³"),
    ("x²", "x2"), ("2π", "2"), ("2pi", "2"), ("3!", "3"), ("√3", "3"), ("3i", "3"), ("2x + 1", "2x"), ("3'", "3"),
    ("2 x", "2"), ("5e", "5"), ("3 k", "3"),
    # clock times and dates
    ("5 pm", "5 am"), ("5pm", "5am"), ("5 pm", "5"), ("5 o'clock", "5"), ("5:30", "5"), ("3 May", "3 June"),
    ("3 May", "3"), ("May 3", "3"), ("3rd", "3"), ("1st", "1"), ("3 BC", "3 AD"), ("3 noon", "3"), ("3/4/2024", "3/4"),
    # hedges and denials
    ("3 at least", "3"), ("3 is wrong", "3"), ("3 or so", "3"), ("3 maybe", "3"), ("3 perhaps", "3"), ("3+", "3"),
    ("3?", "3"), ("about 3", "3"), ("~3", "3"), ("≥3", "3"), (">3", "3"), ("3 or more", "3"), ("3 not", "3"),
    ("3 plus", "3"), ("3 minus", "3"), ("3 at most", "3"), ("3 approximately", "3"), ("3 I think", "3"), ("3 no", "3"),
    ("3 cubes or 4 cubes", "3"), ("3 to 5", "3"), ("3-5", "3"), ("3 false", "3"), ("3 of 5", "3"), ("3 always", "3"),
    ("3 less", "3"), ("3 more", "3"), ("3 more cubes", "3"), ("3 others", "3"), ("3 guesses", "3"),
    # scales and multiples
    ("2 dozen", "2"), ("2 dozens", "2"), ("2 dozen eggs", "2"), ("2 thousand", "2"), ("2k", "2"), ("2K", "2"),
    ("2 million", "2"), ("2 million people", "2"), ("2M", "2"), ("2 pairs", "2"), ("2 hundred", "2"), ("3 halves", "3"),
    ("2 scores", "2"), ("3 tenths", "3"), ("3 times", "3"), ("3x", "3"), ("$5 million", "$5"), ("2 squared", "2"),
    ("5 per", "5"), ("2 threes", "2"), ("2 and a half", "2"), ("2万", "2"), ("3倍", "3"), ("3个多", "3"), ("3点", "3"),
    ("3月", "3"), ("3 上午", "3 下午"), ("3 上午", "3"), ("3个以上", "3"), ("3个不对", "3"), ("3对", "3"),
    # other units, nouns and colours
    ("5 cm", "5 m"), ("5 kg", "5 g"), ("5 m", "5 m²"), ("5 m²", "5 m³"), ("5 m/s", "5 km/h"), ("5 m/s", "5 m"),
    ("5 s", "5 min"), ("$5", "€5"), ("$5", "5 cents"), ("60°C", "60°F"), ("60°", "60%"), ("5%", "5°"),
    ("3 red cubes", "3 blue cubes"), ("3 cubes", "3 spheres"), ("3 cats", "3 dogs"), ("3 red", "3 blue"),
    ("3 red", "3"), ("3 hours", "3 days"), ("3个红球", "3个蓝球"), ("5米", "5厘米"), ("$20%", "20"),
    # several numbers, and texts
    ("2, 3", "3"), ("2 3", "2"), ("3 4", "3"), ("3 three", "3"), ("red", "blue"), ("(1, 2)", "1, 2, 3"), ("x", "y"),
    ("is 3", "3"), ("three", "3"), ("五", "5"), ("３", "3"),
]  # fmt: skip
SAME = [
    # numbers
    ("3", "3.0"), ("1,800", "1800"), ("-2", "\u22122"), ("1/2", "0.5"), (r"\frac{1}{2}", "0.5"), (r"\frac12", "1/2"),
    (r"-\frac{1}{2}", "-0.5"), ("007", "7"), ("1e3", "1000"), (".5", "0.5"),
    # units that one side leaves out, or that both have
    ("60°", "60"), ("145°", "145°"), ("145°", "145 degrees"), (r"145^\circ", "145°"), (r"145^{\circ}", "145"),
    (r"$145^{\circ}$", "145°"), (r"60\degree", "60°"), ("5€", "€5"), ("5€", "5 euros"), ("5 dollars", "$5"), ("$5", "5"),
    ("US$5", "$5"), ("-$5", "-5"), ("20%", "20"), (r"20\%", "20 percent"), ("5cm", "5 cm"), ("5 cm", "5 centimetres"),
    ("5 cm", "5"), ("5cm", "5"), ("5 m", "5m"), ("5 m", "5"), ("5 cm²", "5 cm^2"), ("5 cm²", "5 square centimeters"),
    (r"5\,\text{cm}^2", "5 cm²"), (r"5 \mathrm{ cm}", "5 cm"), ("5 km/h", "5 kmh"), ("5 miles per hour", "5 mph"),
    ("3 m/s²", "3 m/s^2"), ("90 min.", "90 minutes"), ("2 hrs", "2 hours"), ("12 years old", "12"), ("12岁", "12"),
    ("5 kg", "5公斤"), ("60度", "60°"), ("30 fps", "30 frames per second"), ("1/2 kg", "0.5 kg"), ("36.6 °C", "36.6°C"),
    # nouns of counting
    ("5 objects", "5"), ("5 red cubes", "5"), ("1 cube", "1"), ("1 cube", "1 cubes"), ("3 people", "3"),
    ("3 giraffes", "3"), ("3 small metal spheres", "3"), ("3 boxes", "3 box"), ("3 puppies", "3"), ("3 children", "3"),
    ("3个", "3"), ("3 个", "3"), ("3个立方体", "3"), ("5个物体", "5个"), ("3명", "3"), ("3 sides", "3"), ("3 Cubes.", "3"),
    # marks that are not letters
    (r"3 \text{ objects}", "3"), (r"3\ \text{objects}", "3"), ("**3** objects", "3"), ("**3** red cubes", "3"),
    ("3\u200b", "3"), ("\ufeff3", "3"), ("3\u00a0cubes", "3"), ("re\u200bd", "red"), ("soft\u00ad", "soft"),
    ("\uff32\uff45\uff44", "Red"), ("\uff08B\uff09", "(B)"), ("B\u3002", "B"), ("it\u2019s", "it's"),
    ("\u201cred\u201d", "red"), (unicodedata.normalize("NFD", "café"), "CAFÉ"), ("x²", "x^2"), ("x^{2}", "x²"),
    (r"\boxed{\text{red}}", "Red"), ("RED.", "red"), ("2x", "2X"), ("5 pm", "5 PM"), ("2 dozen", "2 Dozen"),
    *((f"{start}3{end}", "3") for start, end in ANSWER_MARKS),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_a102_what_stands_beside_a_number_is_never_swallowed(first, second):
    assert not mmgrpo.same_answer(first, second)
    assert not mmgrpo.same_answer(second, first)
    assert shipped("exact.py:exact_answer")(completions=[tag(first)], answer=[second]) == [0.0]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_a103_the_same_answer_in_another_writing_is_the_same(first, second):
    assert mmgrpo.same_answer(first, second)
    assert mmgrpo.same_answer(second, first)
    assert shipped("exact.py:exact_answer")(completions=[tag(first)], answer=[second]) == [1.0]
    for text in (first, second):
        assert mmgrpo.same_answer(text, text)
        assert mmgrpo.normalise(mmgrpo.normalise(text)) == mmgrpo.normalise(text)
