import pytest

from mmgrpo.checks.step_checks import RewardCoverageCheck
from mmgrpo.errors import RewardError

NAN = float("nan")
STEP = {"optimizer_steps": 1}


def test_prompts_in_a_row_without_a_total_stop_the_run_with_names_and_an_example(make_scored):
    check = RewardCoverageCheck(limit=3)
    check.observe([make_scored("a", [NAN, NAN]), make_scored("b", [NAN, NAN], answer=7)], STEP)
    with pytest.raises(RewardError, match=r"last 3 prompts[^$]*rewards r; for example sample c[^$]*'text 0 of c'"):
        check.observe([make_scored("c", [NAN, NAN])], STEP)


def test_one_total_is_enough_to_go_on(make_scored):
    check = RewardCoverageCheck(limit=2)
    for _ in range(5):
        check.observe([make_scored("a", [NAN, NAN])], STEP)
        check.observe([make_scored("b", [NAN, 0.0]), make_scored("c", [NAN, NAN])], STEP)
    check.finish()


def test_a_short_run_without_any_total_ends_in_an_error(make_scored):
    check = RewardCoverageCheck()
    check.observe([make_scored("a", [NAN, NAN])], STEP)
    with pytest.raises(RewardError, match="No reward applies to any completion"):
        check.finish()


def test_a_run_that_ends_on_prompts_without_a_total_is_no_error_if_there_were_others(make_scored):
    check = RewardCoverageCheck()
    check.observe([make_scored("a", [1.0, 0.0])], STEP)
    check.observe([make_scored("b", [NAN, NAN])], STEP)
    check.finish()


def test_a_resumed_run_knows_what_was_before(make_scored):
    before, after = RewardCoverageCheck(limit=3), RewardCoverageCheck(limit=3)
    before.observe([make_scored("a", [NAN, NAN]), make_scored("b", [NAN, NAN])], STEP)
    after.load_state(before.state())
    with pytest.raises(RewardError, match="last 3 prompts"):
        after.observe([make_scored("c", [NAN, NAN])], STEP)


def test_a_run_without_steps_is_no_error():
    RewardCoverageCheck().finish()


def test_a_run_without_any_optimizer_step_is_told_at_its_end(make_scored):
    check = RewardCoverageCheck()
    check.observe([make_scored("a", [1.0, 1.0])], {"optimizer_steps": 0})
    resumed = RewardCoverageCheck()
    resumed.load_state(check.state())
    resumed.observe([make_scored("b", [1.0, 1.0])], {"optimizer_steps": 0})
    with pytest.warns(UserWarning, match=r"not one optimizer step was taken[^$]*all of 2 steps"):
        resumed.finish()
    resumed.observe([make_scored("b", [1.0, 0.0])], STEP)
    resumed.finish()
