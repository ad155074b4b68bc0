"""Answers and rewards that people met in the field; the row of the list is in each test's name."""

import asyncio
import concurrent.futures
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward.answers import last_answer, normalise, read_answer, same_answer, to_number
from mmgrpo.reward.loading import load_reward
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum
from mmgrpo.running.step_metrics import reward_metrics


def shipped(spec: str, **args):
    return load_reward(f"rewards/{spec}", base=Path(), args=args).function


COUNT = shipped("clevr_counting.py:count_accuracy")


def tag(text):
    return f"<think>hm</think><answer>{text}</answer>"


FORM = shipped("format.py:think_answer")
PROSE = "There are 10 objects. 1. Cylinders (1) 2. Spheres (5): 3 large and 2 small ..."


def test_a01_a_sub_count_in_prose_is_never_taken_for_the_answer():
    logged = {}
    texts = [PROSE, f"{PROSE} <answer>10</answer>", f"{PROSE} <answer>2</answer>"]
    assert COUNT(completions=texts, answer=[10] * 3, log_metric=logged.__setitem__) == [0.0, 1.0, 0.0]
    assert logged == {"parse_failure/count_accuracy": pytest.approx(1 / 3)}


def test_a04_a_doubled_closing_tag_fails_the_form_and_does_not_reach_the_answer():
    text = "<think>\nt\n</think>\n<answer>\n333\n</answer>\n</answer>"
    assert FORM(completions=[text]) == [0.0]
    assert last_answer(text) == "333"
    assert COUNT(completions=[text], answer=[333]) == [1.0]


def test_a06_a_left_over_end_token_does_no_harm():
    text = "<think>x</think><answer>2</answer>"
    assert FORM(completions=[text, f"{text}<|im_end|>", f"{text}<|im_end|>\n"]) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("text", [r"\boxed{42}", r"\fbox{42}", "**42**", "`42`", "$42$", r"$\boxed{42}$"])
def test_a08_wrappers_are_taken_off_together(text):
    assert COUNT(completions=[f"<answer>{text}</answer>"], answer=[42]) == [1.0]


def test_a09_nothing_is_guessed_unless_the_mode_says_so():
    text = "it may be 3, 4, 5, 6, 7"
    assert COUNT(completions=[text], answer=[5]) == [0.0]
    assert COUNT(completions=[text], answer=[5], mode="boxed") == [0.0]
    assert COUNT(completions=[text], answer=[7], mode="last_number") == [1.0]


@pytest.mark.parametrize(
    ("text", "number"), [("$29.00", 29), ("1,800", 1800), ("72.", 72), ("20%", 20), ("5 objects", 5)]
)
def test_a11_units_and_trailing_zeros_do_not_matter(text, number):
    assert to_number(text) == number
    assert COUNT(completions=[f"<answer>{text}</answer>"], answer=[number]) == [1.0]


def test_a11_a_hedge_is_no_number():
    assert to_number("~7") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("五", 5), ("十", 10), ("十二", 12), ("二十一", 21), ("两", 2), ("\uff17", 7), ("seven", 7), ("twenty-one", 21),
     ("\u0667", 7)],
)  # fmt: skip
def test_a12_numerals_of_other_scripts_count_when_asked_for(text, number):
    completion = f"<answer>{text}</answer>"
    assert COUNT(completions=[completion], answer=[number], numerals=["words", "zh", "fullwidth"]) == [1.0]
    assert COUNT(completions=[completion], answer=[number]) == [0.0]


def test_a12_a_superscript_is_no_digit():
    assert to_number("²", ["words", "zh", "fullwidth"]) is None


def test_a14_none_and_nan_are_left_out():
    def r1(completions):
        return [1, 0, None, 1]

    def r2(completions):
        return [float("nan")] * 4

    scored = RewardSum.from_config([], Path(), [r1, r2])
    with pytest.warns(UserWarning, match="sample s0"):
        [group] = scored.score([pasted_group(["a", "b", "c", "d"], id="s0")])
    totals = group.totals.tolist()
    assert totals[:2] == [1.0, 0.0] and totals[3] == 1.0
    assert math.isnan(totals[2])
    assert group.rewards["r2"].isnan().all()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a14_advantages_stay_finite(scale):
    import torch

    from mmgrpo.grpo.advantages import group_advantages

    totals = torch.tensor([1.0, 0.0, math.nan, 1.0], dtype=torch.float64)
    advantages = group_advantages(totals, torch.zeros(4, dtype=torch.long), scale=scale)
    assert advantages.isfinite().all()
    assert advantages[2] == 0.0


@pytest.mark.parametrize(
    ("value", "right"), [("0.5", None), (True, 1.0), (math.inf, None), (-math.inf, None), (0.5, 0.5)]
)
def test_a14_text_and_infinity_are_refused_by_name_and_true_is_one(value, right):
    def odd(completions):
        return [value, 0.0]

    scorer = RewardSum.from_config([], Path(), [odd])
    groups = [pasted_group(["a", "b"], id="s0")]
    if right is None:
        with pytest.raises(RewardError, match="odd"):
            scorer.score(groups)
    else:
        assert scorer.score(groups)[0].totals.tolist() == [right, 0.0]


def test_a16_the_reasoning_is_never_read():
    assert COUNT(completions=["<think>12</think><answer>5</answer>"], answer=[12]) == [0.0]
    for mode in ("tag", "boxed", "last_number"):
        assert read_answer(r"<think>12 \boxed{12} <answer>12</answer></think>", mode) is None


def test_a19_a_missing_column_is_found_before_training_with_the_list():
    def f(completions, answer, **kw):
        return [0.0] * len(completions)

    def strict(completions, truth):
        return [0.0] * len(completions)

    RewardSum.from_config([], Path(), [f]).check_columns(["problem", "colour"])
    with pytest.raises(ConfigError, match=r"truth(.|\n)*colour, problem"):
        RewardSum.from_config([], Path(), [strict]).check_columns(["problem", "colour"])


def test_a19_every_column_arrives_and_both_forms_work():
    seen = {}

    def many(completions, answer, **kw):
        seen.update(kw)
        return [0.0] * len(completions)

    def single(completion, truth):
        return float(completion == truth)

    scorer = RewardSum.from_config([], Path(), [many, single])
    [group] = scorer.score([pasted_group(["3", "4"], answer=3, truth="3", colour="red")])
    assert seen["colour"] == ["red", "red"]
    assert group.rewards["single"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("functions", "weights"), [(3, 1), (2, 3)])
def test_a20_unequal_lists_are_refused_with_both_lengths(functions, weights):
    rewards = [lambda completions: [0.0] * len(completions) for _ in range(functions)]
    with pytest.raises(ConfigError, match=rf"{weights} weights") as error:
        RewardSum.from_config([], Path(), rewards, weights=[1.0] * weights)
    assert f"{functions} reward functions" in str(error.value)


def test_a22_a_reward_that_never_moves_is_visible_step_by_step():
    scorer = RewardSum.from_config([], Path(), [COUNT])
    for step in range(20):
        [group] = scorer.score([pasted_group(["no tags"] * 4, answer=3)], step=step)
        assert group.rewards["count_accuracy"].tolist() == [0.0] * 4
        assert reward_metrics([group])["rewards/count_accuracy/group_std"] == 0.0
        assert scorer.metrics()["parse_failure/count_accuracy"].value == 1.0


def test_a23_a_near_miss_earns_part_of_the_credit():
    soft = shipped("clevr_counting.py:soft_count")
    texts = ["<answer>98</answer>", "<answer>100</answer>", "<answer>300</answer>", "none"]
    assert soft(completions=texts, answer=[100] * 4) == [0.98, 1.0, 0.0, 0.0]
    assert soft(completions=["<answer>0</answer>", "<answer>1</answer>"], answer=[0, 0]) == [1.0, 0.0]


def test_a24_a_truth_of_two_numbers_stays_two_numbers():
    assert same_answer("2, 3", "2, 3")
    assert not same_answer("3", "2, 3")
    assert normalise(normalise("2, 3")) == "2, 3"


@given(st.text())
def test_a24_normalising_is_idempotent(text):
    assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize(
    ("given_", "truth", "right"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\frac{1}{3}}", r"\frac{1}{2}", 0.0),
        (r"\boxed{\text{E}}", "E", 1.0),
        (r"\boxed{{42}}", "42", 1.0),
        (r"\boxed{4", "4", 0.0),
        (r"\boxed{0.5}", "1/2", 1.0),
        (r"\boxed{x + 1}", "1 + x", 1.0),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1.0),
        (r"<think>\boxed{42}</think> no", "42", 0.0),
        (tag("7"), "<answer>7</answer>", 1.0),
        (tag("7"), None, None),
    ],
)
def test_a07_maths_answers_are_read_to_their_last_brace(given_, truth, right):
    pytest.importorskip("math_verify", reason="needs the extra math")
    assert shipped("maths.py:math_accuracy")(completions=[given_], answer=[truth]) == [right]


TEXTS = [r"\boxed{\frac{1}{2}}", r"\boxed{3}", r"\boxed{\sqrt{8}}", "none"]
TRUTHS = ["0.5", "4", r"2\sqrt{2}", "1"]


def test_a17_maths_scores_are_the_same_in_threads_and_loops():
    pytest.importorskip("math_verify", reason="needs the extra math")
    f = shipped("maths.py:math_accuracy")
    logged = {}

    def score():
        return f(completions=TEXTS, answer=TRUTHS, log_metric=logged.__setitem__)

    main = score()
    assert main == [1.0, 0.0, 1.0, 0.0]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: score(), range(8))) == [main] * 8

    async def inside():
        return score(), await asyncio.to_thread(score)

    assert asyncio.run(inside()) == (main, main)
    assert logged["math_accuracy/errors"] == 0.0
    assert logged["math_accuracy/parse_failure"] == 0.25


def test_a17_an_internal_error_is_counted_and_shown(monkeypatch):
    math_verify = pytest.importorskip("math_verify", reason="needs the extra math")

    def broken(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr(math_verify, "verify", broken)
    logged = {}
    f = shipped("maths.py:math_accuracy")
    assert f(completions=[r"\boxed{3}"], answer=["4"], log_metric=logged.__setitem__) == [0.0]
    assert logged["math_accuracy/errors"] == 1.0


def test_a21_what_counts_as_correct_is_a_key_and_is_logged(tmp_path):
    (tmp_path / "soft.py").write_text("def f(completions): return [float(c) for c in completions]\n")
    logged = {}

    def score(**args):
        f = shipped("length.py:CosineLength", max_length=10, accuracy=f"{tmp_path}/soft.py:f", **args)
        return f(completions=["0.65", "0.75"], completion_ids=[[], []], log_metric=logged.__setitem__)

    assert score() == [-0.5, -0.5]
    assert score(correct_at=0.7) == [-0.5, 1.0]
    assert score(correct_at=0.65) == [1.0, 1.0]
    assert logged == {"cosine_length/correct_at": 0.65}
