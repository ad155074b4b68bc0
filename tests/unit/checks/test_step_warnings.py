"""The checks of every step: one clear warning per kind of trouble, with an example, and none where all is well."""

import json
import math
import warnings

import pytest

from mmgrpo.checks.step_checks import StepWarnings
from mmgrpo.config.checks import Checks

N = 4
SETTINGS = Checks(constant_reward_steps=N)


def warned(check, steps):
    """Texts of the warnings of these steps, each a pair of groups and metrics."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scored, metrics in steps:
            check.observe(scored, metrics)
    return [str(w.message) for w in caught]


def quiet(make_scored, **more):
    return [make_scored("a", [0.0, 1.0], **more), make_scored("b", [1.0, 0.0], **more)]


def test_a_run_that_learns_is_not_warned_of(make_scored):
    assert warned(StepWarnings(SETTINGS), [(quiet(make_scored), {})] * 50) == []
    assert warned(StepWarnings(SETTINGS), [([], {})]) == []


def test_a22_a_constant_reward_is_told_once_with_an_example(make_scored):
    step = [make_scored("a", [0.0, 0.0], texts=["three", "\x1b[31mfour"])]
    check = StepWarnings(SETTINGS)
    assert warned(check, [(step, {})] * (N - 1)) == []
    (text,) = warned(check, [(step, {})] * 30)
    assert text.startswith(f"Reward r has been constant at 0 for {N} steps.")
    assert "'three'" in text


def test_g03_an_example_shows_control_characters_as_escapes_and_is_cut(make_scored):
    step = [make_scored("a", [0.0, 0.0], texts=["\x1b[31m\x00" + "x" * 500, "y"])]
    (text,) = warned(StepWarnings(SETTINGS), [(step, {})] * N)
    assert "\x1b" not in text and "\x00" not in text
    assert "\\x1b[31m\\x00" in text
    assert len(text) < 700


def test_a_reward_that_moves_now_and_then_is_not_constant(make_scored):
    def step(value):
        return [make_scored("a", [value, value + 1.0])], {}

    flat, other = [make_scored("a", [0.0, 0.0]), make_scored("b", [1.0, 0.0])], {}
    assert warned(StepWarnings(SETTINGS), [step(0.0), (flat, other)] * 20) == []


def test_a_reward_that_cancels_in_every_group_is_told_although_it_varies(make_scored):
    step = [
        make_scored("a", [0.0, 1.0], rewards={"colour": [3.0, 3.0], "right": [0.0, 1.0]}),
        make_scored("b", [0.0, 1.0], rewards={"colour": [5.0, 5.0], "right": [0.0, 1.0]}),
    ]
    (text,) = warned(StepWarnings(SETTINGS), [(step, {})] * 30)
    assert text.startswith("Reward colour has the same value for every completion of a group")
    assert "for example 'text 0 of a'" in text


def test_one_group_that_differs_is_enough(make_scored):
    flat = [make_scored("a", [1.0, 1.0]), make_scored("b", [2.0, 2.0])]
    mixed = [make_scored("a", [1.0, 1.0]), make_scored("b", [2.0, 3.0])]
    check = StepWarnings(SETTINGS)
    assert warned(check, [(flat, {})] * (N - 1) + [(mixed, {})] + [(flat, {})] * (N - 1)) == []


def test_groups_that_are_flat_in_total_are_told_although_every_reward_varies(make_scored):
    step = [make_scored("a", [1.0, 1.0], rewards={"x": [0.0, 1.0], "y": [1.0, 0.0]})]
    (text,) = warned(StepWarnings(SETTINGS), [(step, {})] * 30)
    assert text.startswith(f"No group has had two different totals for {N} steps")


def test_values_that_do_not_apply_are_looked_past(make_scored):
    nan = math.nan
    step = [make_scored("a", [0.0, 1.0], rewards={"right": [0.0, 1.0], "never": [nan, nan]})]
    assert warned(StepWarnings(SETTINGS), [(step, {})] * 30) == []
    constant = [make_scored("a", [0.0, 1.0], rewards={"right": [0.0, 1.0], "x": [nan, 2.0]})]
    (text,) = warned(StepWarnings(SETTINGS), [(constant, {})] * 30)
    assert "Reward x has been constant at 2" in text


@pytest.mark.parametrize(("cut", "warns"), [(1, False), (2, False), (3, True), (4, True)])
def test_r13_more_than_half_truncated_is_told(cut, warns, make_scored):
    step = [make_scored("a", [0.0, 1.0, 0.0, 1.0], finish=["length"] * cut + ["stop"] * (4 - cut))]
    texts = warned(StepWarnings(SETTINGS), [(step, {})] * 3)
    assert len(texts) == warns
    if warns:
        assert f"{25 * cut} % of the completions hit the length limit" in texts[0]
        assert "max_completion_length" in texts[0]


def test_l09_a_step_whose_completions_are_all_masked_is_told(make_scored):
    step = [make_scored("a", [0.0, 1.0], finish=["length", "length"])]
    texts = warned(StepWarnings(Checks(truncated_share=1.0), masks_truncated=True), [(step, {})] * 3)
    assert [t for t in texts if "is left out of the loss" in t] == texts
    assert len(texts) == 1
    assert warned(StepWarnings(Checks(truncated_share=1.0)), [(step, {})]) == []


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"sampling/sampling_logp_difference/mean": 0.03}, "drift away"),
        ({"sampling/sampling_logp_difference/mean": 0.02}, None),
        ({"sampling/removed_probability": 0.02}, "2.0 % of the probability"),
        ({"sampling/removed_probability": 0.01}, None),
        ({}, None),
    ],
)
def test_drift_and_cut_sampling_are_told_past_their_bounds(metrics, told, make_scored):
    texts = warned(StepWarnings(SETTINGS), [(quiet(make_scored), metrics)] * 3)
    assert len(texts) == (told is not None)
    assert told is None or told in texts[0]


def test_each_can_be_switched_off(make_scored):
    off = Checks(constant_reward_steps=0, truncated_share=1.0, drift_logprobs=1e9)
    step = [make_scored("a", [0.0, 0.0], finish=["length", "length"])]
    assert warned(StepWarnings(off), [(step, {"sampling/sampling_logp_difference/mean": 5.0})] * 60) == []


def test_a_resumed_run_goes_on_counting_and_does_not_repeat_itself(make_scored):
    step = [make_scored("a", [0.0, 0.0])]
    first = StepWarnings(SETTINGS)
    assert warned(first, [(step, {})] * (N - 1)) == []
    second = StepWarnings(SETTINGS)
    second.load_state(json.loads(json.dumps(first.state())))
    assert len(warned(second, [(step, {})])) == 1
    third = StepWarnings(SETTINGS)
    third.load_state(json.loads(json.dumps(second.state())))
    assert warned(third, [(step, {})] * 10) == []
