"""What people see of evaluations; the row of the list is in each test's name."""

import io
import json
import math

import pytest
from rich.console import Console

from mmgrpo.evaluation.suites import answer_mode, has_answer
from mmgrpo.reward.loading import load_reward

BOXED = '''
def boxed_letters(completions, mode="boxed"):
    """Right or wrong by chance; the answer stands in a box."""
    return [float(sum(map(ord, text)) % 2) for text in completions]
'''


@pytest.mark.parametrize(("args", "mode"), [({}, "tag"), ({"mode": "boxed"}, "boxed")])
def test_w29_the_form_is_the_one_that_the_reward_reads(args, mode, tmp_path):
    reward = load_reward("rewards/clevr_counting.py:count_accuracy", base=tmp_path, args=args).function
    assert answer_mode(reward) == mode
    assert has_answer("<answer>3</answer>", answer_mode(reward)) == (mode == "tag")
    assert has_answer(r"so \boxed{3}", answer_mode(reward)) == (mode == "boxed")


def test_w29_a_reward_that_names_no_form_is_content_with_a_tag_or_a_box():
    mode = answer_mode(lambda completions: [0.0])
    assert mode is None
    assert has_answer("<answer>3</answer>", mode) and has_answer(r"\boxed{3}", mode) and not has_answer("3", mode)


def test_w29_0_of_0_is_a_dash_and_a_null(train, tmp_path):
    (tmp_path / "boxed.py").write_text(BOXED)
    console = Console(file=io.StringIO(), width=100)
    run = train(
        rewards=[{"fn": f"{tmp_path / 'boxed.py'}:boxed_letters"}],
        eval={"at_start": False, "sampled": False},
        train={"num_steps": 1},
        console=console,
    )
    assert math.isnan(run.after.greedy.accuracy_well_formed)
    summary = json.loads((run.path / "evaluations" / "step_000001.json").read_text())
    assert summary["greedy"]["accuracy_well_formed"] is None
    assert summary["settings"]["well_formed"] == r"the last \boxed{} behind the reasoning"
    line = next(line for line in console.file.getvalue().splitlines() if "among well-formed" in line)
    assert line.split()[-1] == "-"


def test_w05_a_run_that_is_stopped_shows_the_newest_evaluation_with_its_step(train):
    console = Console(file=io.StringIO(), width=100)
    run = train(
        eval={"sampled": False, "eval_steps": 1},
        train={"num_steps": 4},
        on_step=lambda step, metrics: step < 2,
        console=console,
    )
    assert run.after is None and run.stopped
    text = console.file.getvalue()
    head = next(line for line in text.splitlines() if "change" in line)
    assert head.split() == ["step", "0", "step", "2", "change"]
    row = next(line for line in text.splitlines() if line.startswith("mean of letters, greedy"))
    assert "±" in row
