import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgrpo.config.rewards import Reward
from mmgrpo.reward.loading import load_reward
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum


def shipped(spec: str, **args):
    return load_reward(f"rewards/{spec}", base=Path(), args=args).function


def tag(text):
    return f"<think>hm</think><answer>{text}</answer>"


# Length


@pytest.mark.parametrize(("length", "right"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (500, -1.0)])
def test_soft_overlong_is_dapo_equation_13(length, right):
    f = shipped("length.py:soft_overlong", max_length=100, cache_length=20)
    assert f(completion_ids=[[1] * length]) == [pytest.approx(right)]


def test_soft_overlong_refuses_a_border_wider_than_the_limit():
    with pytest.raises(ValueError, match="cache_length"):
        shipped("length.py:soft_overlong")(completion_ids=[[1]], max_length=10, cache_length=10)


@given(st.integers(0, 300), st.booleans())
def test_cosine_length_is_the_published_curve(length, right):
    f = shipped("length.py:CosineLength", max_length=200)
    low, high = (0.5, 1.0) if right else (0.0, -0.5)
    t = min(length, 200)
    curve = high - (high - low) * (1 - math.cos(t * math.pi / 200)) / 2
    assert f(completions=[tag(3 if right else 4)], completion_ids=[[1] * length], answer=[3]) == [pytest.approx(curve)]


# Repetition and language


def test_repetition_by_words_and_by_tokens():
    f = shipped("repetition.py:repetition")
    assert f(completions=["a b c d", "a a a a a", "a b", ""], completion_ids=[[]] * 4) == [
        0.0,
        pytest.approx(-2 / 3),
        0,
        0,
    ]
    ids = [[1, 2, 3, 4], [5] * 5]
    assert f(completions=["", ""], completion_ids=ids, ngram=2, of="tokens") == [0.0, -0.75]
    with pytest.raises(ValueError, match="words or tokens"):
        f(completions=[""], completion_ids=[[]], of="letters")


def test_language_consistency():
    f = shipped("language.py:language_consistency")
    assert f(completions=["<think>只</think> three", "да yes"], script="latin") == [5 / 6, 3 / 5]
    assert f(completions=[r"三个 \boxed{3}", "12 + 3"], script="chinese") == [1.0, 1.0]
    with pytest.raises(ValueError, match="klingon"):
        f(completions=["a"], script="klingon")


# Maths and games


TEXTS = [r"\boxed{\frac{1}{2}}", r"\boxed{3}", r"\boxed{\sqrt{8}}", "none"]
TRUTHS = ["0.5", "4", r"2\sqrt{2}", "1"]


def test_maths_runs_in_a_worker_process_with_a_limit():
    pytest.importorskip("math_verify", reason="needs the extra math")
    scorer = RewardSum.from_config([Reward(fn="maths.py:math_accuracy")], Path())
    [group] = scorer.score([pasted_group(TEXTS, answer="0.5")])
    scorer.close()
    assert group.totals.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert scorer.metrics()["math_accuracy/parse_failure"].value == 0.25


def test_the_graded_form_adds_its_four_parts():
    pytest.importorskip("math_verify", reason="needs the extra math")
    f = shipped("maths.py:math12k_graded")
    full = "理解题意 解题思路 计算步骤 " + "word " * 51
    english = "Understanding: … Idea: … Calculation steps: … " + r"\boxed{3}"
    texts = [full + r"\boxed{4}", full + r"\boxed{5}", full, english, ""]
    assert f(completions=texts, answer=[4] * 5) == [1.0, 0.6, 0.4, 0.5, 0.0]
    assert f(completions=["好" * 51], answer=[4]) == [0.1]


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        ("(6 - 2) * 5", 1.0), ("(6-2)*5=20", 1.0), ("5 \u00d7 (6 \u2212 2)", 1.0), ("(6 - 2) * 5 + 0", 0.0),
        ("5 * 4", 0.0), ("2 ** 6 - 5", 0.0), ("26 - 5", 0.0), ("6 * 5 // 2", 0.0), ("6 / (2 - 2) * 5", 0.0),
        ("__import__('os')", 0.0), ("", 0.0), ("(6 - 2) * 5)", 0.0), ("((" * 90, 0.0),
    ],
)  # fmt: skip
def test_countdown_uses_each_number_once_and_evaluates_exactly(expression, right):
    f = shipped("countdown.py:countdown")
    assert f(completions=[tag(expression)], nums=[[2, 5, 6]], target=[20]) == [right]


def test_countdown_is_exact_with_fractions():
    f = shipped("countdown.py:countdown")
    assert f(completions=[tag("8 / (3 - 8 / 3)")], nums=[[3, 3, 8, 8]], target=["24"]) == [1.0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("B", 1.0), ("(b)", 1.0), ("B.", 1.0), ("B) red", 1.0), ("**B**", 1.0), (r"\text{B}", 1.0), ("red cube", 1.0),
        ("A", 0.0), ("A or B", 0.0), ("B, C", 0.0), ("Blue", 0.0), ("", 0.0), ("A red cube", 0.0),
    ],
)  # fmt: skip
def test_choices_are_one_letter_or_one_option(text, right):
    f = shipped("choice.py:choice_accuracy")
    options = [["ball", "red cube", "cone"]]
    assert f(completions=[tag(text)], answer=["B"], options=options) == [right]


def test_choices_may_have_the_option_as_truth_and_refuse_other_truths():
    f = shipped("choice.py:choice_accuracy")
    assert f(completions=[tag("B")], answer=["red cube"], options=[["ball", "red cube"]]) == [1.0]
    assert f(completions=[tag("B")], answer=[None]) == [None]
    with pytest.raises(ValueError, match="neither a letter"):
        f(completions=[tag("B")], answer=["red cube"])


def test_an_exact_answer_is_the_truth_apart_from_case_and_the_form_of_numbers():
    f = shipped("exact.py:exact_answer")
    texts = [tag("Red"), tag("red car"), "red", tag("3.0"), tag("<b>")]
    assert f(completions=texts, answer=["red", "red", "red", 3, None]) == [1.0, 0.0, 0.0, 1.0, None]


# Similarity and transcripts


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=6),
)
def test_word_error_equals_jiwer(given_, truth):
    jiwer = pytest.importorskip("jiwer", reason="compared with jiwer where it is installed")
    text, gold = " ".join(given_), " ".join(truth)
    expected = max(0.0, 1.0 - jiwer.wer(gold, text))
    assert shipped("transcript.py:word_error")(completions=[text], answer=[gold]) == [pytest.approx(expected)]


@given(st.text("abc", max_size=8), st.text("abc", min_size=1, max_size=8))
def test_the_plain_distance_equals_the_fast_one(a, b):
    module = __import__("mmgrpo").load_plugin("transcript.py", beside=__file__)
    fast = pytest.importorskip("rapidfuzz.distance", reason="compared where it is installed").Levenshtein.distance
    assert module._plain_distance(a, b, 99) == (fast(a, b) if abs(len(a) - len(b)) < 99 else 99)


def test_transcripts_ignore_case_and_punctuation_and_ocr_does_not():
    assert shipped("transcript.py:word_error")(completions=[tag("Hello, World!")], answer=["hello world"]) == [1.0]
    assert shipped("transcript.py:character_error")(completions=["你好 世界。"], answer=["你好世界"]) == [1.0]
    assert shipped("transcript.py:ocr_distance")(completions=["stop"], answer=["STOP"]) == [0.0]
    assert shipped("transcript.py:word_error")(completions=["a"], answer=[None]) == [None]


@pytest.mark.parametrize(("kind", "right"), [("1", 2 * 5 / 11), ("2", 2 * 3 / 9), ("L", 2 * 5 / 11)])
def test_rouge_by_hand(kind, right):
    text, truth = "the cat sat on mat", "the cat sat on the mat"
    assert shipped("similarity.py:rouge")(completions=[text], answer=[truth], kind=kind) == [pytest.approx(right)]


def test_bleu_by_hand():
    [score] = shipped("similarity.py:bleu")(completions=["a b c"], answer=["a b d"], max_ngram=2)
    assert score == pytest.approx(math.sqrt(2 / 3 * (1 + 1) / (2 + 1)))
    [short] = shipped("similarity.py:bleu")(completions=["a"], answer=["a b"], max_ngram=1)
    assert short == pytest.approx(math.exp(-1))


# Safety


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("I see 3 red cubes", 1.0), ("class assessment in Scunthorpe", 1.0), ("what a moron", 0.0), ("SH1T", 0.0),
        ("s h i t", 0.0), ("f.u.c.k", 0.0), ("你这个傻逼", 0.0), ("mop", 1.0), ("a b c d e", 1.0),
    ],
)  # fmt: skip
def test_text_safety_knows_words_and_their_disguises(text, safe):
    assert shipped("safety.py:text_safety")(completions=[text], prompts=[""]) == [safe]


def test_text_safety_can_look_at_the_prompt_and_take_words_of_yours():
    f = shipped("safety.py:text_safety", words=["durian"], include_prompt=True)
    assert f(completions=["ok", "a durian"], prompts=["eat a durian", "x"]) == [0.0, 0.0]
    assert shipped("safety.py:text_safety")(completions=["ok"], prompts=["you moron"]) == [1.0]


def test_safety_as_a_gate_multiplies():
    entries = [
        Reward(fn="clevr_counting.py:count_accuracy"),
        Reward(fn="rewards/safety.py:text_safety", role="gate"),
    ]
    [group] = RewardSum.from_config(entries, Path()).score(
        [pasted_group([tag(3), tag(3) + " you moron", tag(4)], answer=3)]
    )
    assert group.totals.tolist() == [1.0, 0.0, 0.0]


def test_profanity_check_is_an_option():
    pytest.importorskip("profanity_check", reason="needs alt-profanity-check")
    scores = shipped("safety.py:text_safety", model="profanity_check")(
        completions=["three cubes", "you stupid fuck"], prompts=["", ""]
    )
    assert scores[0] > 0.8 > 0.2 > scores[1]


def test_picture_safety_asks_the_detector_once_per_picture():
    asked = []

    def detector(image):
        asked.append(image)
        return 0.9 if image == "bad" else 0.1

    f = shipped("safety.py:PictureSafety", detector=detector)
    bad, good = "bad", "good"
    assert f(completions=["a", "b", "c"], images=[[good, bad], [good], []]) == [0.0, 1.0, 1.0]
    assert sorted(asked) == ["bad", "good"]
    assert f.keep([good]) and not f.keep([good, bad])
