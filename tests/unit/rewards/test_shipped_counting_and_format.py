import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgrpo.reward.loading import load_reward


def shipped(spec: str, **args):
    return load_reward(f"rewards/{spec}", base=Path(), args=args).function


@pytest.mark.parametrize("truth", ["<answer> 3 </answer>", "3", 3, "3.0", 3.0])
@pytest.mark.parametrize(("text", "right"), [("<answer>3</answer>", 1.0), ("<answer>4</answer>", 0.0), ("3", 0.0)])
def test_count_accuracy_reads_every_way_to_write_the_truth(truth, text, right):
    assert shipped("clevr_counting.py:count_accuracy")(completions=[text], answer=[truth]) == [right]


def test_counting_does_not_apply_without_a_truth_and_refuses_one_that_is_no_number():
    for name in ("count_accuracy", "soft_count"):
        f = shipped(f"clevr_counting.py:{name}")
        assert f(completions=["<answer>3</answer>", "3"], answer=[None, None]) == [None, None]
        with pytest.raises(ValueError, match="is not a number"):
            f(completions=["<answer>3</answer>"], answer=["red"])


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "\n", " ", "3", "text", "<|im_end|>"]
COMPLETIONS = st.lists(st.sampled_from(TAGS), max_size=12).map("".join)


@given(COMPLETIONS)
def test_bit_exact_forms_equal_the_published_patterns(text):
    swift = re.match(r"^<think>.*?</think>\s*<answer>.*?</answer>(?![\s\S])", text, re.DOTALL | re.MULTILINE)
    r1v = re.fullmatch(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL)
    trl = re.match(r"^<think>(?!.*<think>)(.*?)</think>.*$", text, re.DOTALL | re.MULTILINE)
    assert shipped("format.py:swift_format")(completions=[text]) == [float(bool(swift))]
    assert shipped("format.py:r1v_format")(completions=[text]) == [float(bool(r1v))]
    assert shipped("format.py:trl_think_format")(completions=[text]) == [float(bool(trl))]


@given(COMPLETIONS)
def test_the_strict_form_is_never_kinder_than_the_published_one(text):
    if shipped("format.py:think_answer")(completions=[text]) == [1.0]:
        trimmed = re.sub(r"(\s|<\|im_end\|>)+\Z", "", text).strip()
        assert shipped("format.py:r1v_format")(completions=[trimmed]) == [1.0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>a</think><answer>3</answer>", 1.0), ("<think></think>\n<answer>3</answer>\n", 1.0),
        ("\n<think>a</think> <answer>3</answer>", 1.0), ("<think>a</think> so <answer>3</answer>", 0.0),
        ("<think>a</think><answer> </answer>", 0.0), ("<think>a</think><answer>3", 0.0), ("", 0.0),
        ("<think>a</think></think><answer>3</answer>", 0.0), ("x<think>a</think><answer>3</answer>", 0.0),
    ],
)  # fmt: skip
def test_think_answer(text, right):
    assert shipped("format.py:think_answer")(completions=[text]) == [right]


@pytest.mark.parametrize(
    ("text", "right"),
    [("<answer>3</answer>", 1.0), (" <answer>3</answer>\n", 1.0), ("<think>a</think><answer>3</answer>", 0.0),
     ("<answer></answer>", 0.0), ("<answer>3</answer>3", 0.0), ("3", 0.0)],
)  # fmt: skip
def test_answer_only(text, right):
    assert shipped("format.py:answer_only")(completions=[text]) == [right]


@pytest.mark.parametrize(
    ("text", "truth", "right"),
    [
        ("<answer>3</answer>", "<answer> 3 </answer>", 1.0), ("<answer>3</answer> <answer>4</answer>", "3", 1.0),
        ("<answer>\n3</answer>", "<answer>3</answer>", 0.0), ("3", "<answer>3</answer>", 1.0), ("4", "3", 0.0),
    ],
)  # fmt: skip
def test_the_letters_half_of_r1v(text, truth, right):
    f = shipped("clevr_counting.py:r1v_accuracy")
    assert f(completions=[text], solution=[truth], verify=False) == [right]


def test_r1v_with_math_verify_also_credits_numbers_outside_the_tag():
    pytest.importorskip("math_verify", reason="the first half of R1-V's rule needs the extra math")
    f = shipped("clevr_counting.py:r1v_accuracy")
    assert f(completions=["There are 3.", "<answer>\n3</answer>", "4"], solution=["3", "3", "3"]) == [1.0, 1.0, 0.0]
