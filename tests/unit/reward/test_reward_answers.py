import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgrpo.reward.answers import (
    after_reasoning,
    last_answer,
    last_boxed,
    normalise,
    read_answer,
    read_ground_truth,
    same_answer,
    strip_end,
    to_number,
)
from mmgrpo.reward.quantities import NUMERALS, from_words, from_zh

SCRAPS = ["3", "1,800", "$", "**", "\\boxed{", "}", "{", "%", ".", " ", "\\frac{1}{2}", "<answer>", "</answer>"]
SCRAPS += ["<think>", "</think>", "seven", "二十一", "\uff17", "`", "-", "/", "²", "\x00", "e", "_", "'", "\\$"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>3</answer>", "3"),
        ("<think><answer>12</answer></think><answer>5</answer>", "5"),
        ("reason</think><answer>3</answer>", "3"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1</answer> and <answer>2", "1"),
        ("<answer><answer>4</answer></answer>", "4"),
        ("<answer></answer>", ""),
        ("<think>still <answer>3</answer>", None),
        ("<answer>3</answer><think>x</think>", None),
        ("</answer>3<answer>", None),
        ("3", None),
        ("", None),
    ],
)
def test_last_answer_is_the_last_whole_tag_behind_the_reasoning(text, answer):
    assert last_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\fbox{42}", "42"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{4", None),
        (r"<think>\boxed{1}</think> 2", None),
        (r"\boxed{\{1\}}", r"\{1\}"),
    ],
)
def test_last_boxed_matches_braces(text, answer):
    assert last_boxed(text) == answer


def test_last_number_is_only_read_when_asked_for():
    text = "between 1,200 and 3.5"
    assert read_answer(text, "last_number") == "3.5"
    assert read_answer(text, "tag") is None
    assert read_answer("v2x", "last_number") is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("3.0", "3"), ("1,800", "1800"), ("$29.00", "29"), ("20%", "20"), (r"20\%", "20"), ("**42**", "42"),
        (r"\boxed{42}", "42"), (r"\boxed{{42}}", "42"), ("$42$", "42"), ("`42`", "42"), ("72.", "72"), ("-7", "-7"),
        ("\u22127", "-7"), ("+7", "7"), ("0.50", "0.5"), (".5", "0.5"), ("-0.25", "-0.25"),
        ("1/3", "1/3"), ("2/4", "0.5"),
        (r"\frac{1}{2}", "0.5"), ("1e3", "1000"), ("5 objects", "5"), (r"\text{E}", "E"), ("2, 3", "2, 3"),
        ("18,00", "18,00"), ("$1$ or $2$", "$1$ or $2$"), ("{1} {2}", "{1} {2}"), ("007", "7"), ("~7", "~7"),
    ],
)  # fmt: skip
def test_normalise_gives_one_plain_form(text, plain):
    assert normalise(text) == plain


@pytest.mark.parametrize(
    "text", ["2, 3", "~7", "about 7", "3 or 4", "2 plus two", "²", "1e999", "", "-", "nan", "inf"]
)
def test_what_is_not_one_number_is_no_number(text):
    assert to_number(text) is None


@given(st.one_of(st.text(), st.lists(st.sampled_from(SCRAPS)).map("".join)))
def test_normalising_twice_changes_nothing(text):
    once = normalise(text, NUMERALS)
    assert normalise(once, NUMERALS) == once
    assert normalise(normalise(text)) == normalise(text)


@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(-(10**9), 10**9)))
def test_a_number_survives_writing_and_reading(number):
    read = to_number(f"{number:.4f}")
    assert read == pytest.approx(round(number, 4), abs=1e-4, rel=1e-9) if abs(number) < 1e30 else True


@given(st.integers(0, 999_999_999))
def test_english_words_read_back(number):
    assert from_words(_in_words(number)) == number


def _in_words(n: int) -> str:
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    ones += "seventeen eighteen nineteen"
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    if n < 20:
        return ones.split()[n]
    if n < 100:
        return tens[n // 10 - 2] + (f"-{_in_words(n % 10)}" if n % 10 else "")
    for size, name in ((10**6, "million"), (10**3, "thousand"), (100, "hundred")):
        if n >= size:
            return f"{_in_words(n // size)} {name}" + (f" {_in_words(n % size)}" if n % size else "")
    raise AssertionError


def test_words_that_do_not_make_a_number_are_refused():
    assert [from_words(t) for t in ("three four", "twenty ten", "hundred", "and", "", "one two hundred")] == [None] * 6


def test_chinese_numbers():
    written = {"三百二十": 320, "一千零一": 1001, "三万五千": 35000, "一亿": 10**8, "十": 10, "二十一": 21}
    assert {text: from_zh(text) for text in written} == written
    assert to_number("五个物体", ["zh"]) == 5
    assert from_zh("五个") is None


def test_reasoning_is_cut_off():
    assert after_reasoning("a</think>b</think>c") == "c"
    assert after_reasoning("<think>a") == ""


def test_strip_end_removes_end_tokens_only_at_the_end():
    assert strip_end("a<|im_end|> b</s>\n<|endoftext|>\n") == "a<|im_end|> b"
    assert strip_end("a") == "a"


def test_truths_written_as_completions_are_read():
    assert read_ground_truth("<answer> 3 </answer>") == "3"
    assert read_ground_truth(r"so \boxed{7}") == "7"
    assert read_ground_truth(3) == 3


def test_same_answer_ignores_case_of_choices():
    assert same_answer("(b)", "(B)")
    assert not same_answer("2, 3", "3")


@given(st.lists(st.sampled_from(SCRAPS), max_size=300).map("".join))
def test_readers_never_raise(text):
    for mode in ("tag", "boxed", "last_number"):
        read_answer(text, mode)
    to_number(text, NUMERALS)


@pytest.mark.parametrize("numerals", [["wrods"], "words"])
def test_a_way_of_writing_numbers_that_nobody_reads_is_refused(numerals):
    with pytest.raises(ValueError, match="words, zh, fullwidth"):
        to_number("seven", numerals)
