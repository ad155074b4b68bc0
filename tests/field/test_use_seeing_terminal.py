"""What people see on the terminal; the row of the list is in each test's name."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from mmgrpo.observe.progress import Progress
from mmgrpo.observe.tables import results_table
from mmgrpo.observe.text import Stderr

STEP = {
    "loss": -6.6e-09, "reward": 0.652, "accuracy": 0.25, "completions/mean_length": 60.0, "learning_rate": 1e-6,
}  # fmt: skip
SENTENCE = "sampling: temperature 1, nothing cut off; the checkpoint's own generation defaults are not used"


def terminal(width):
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_w21_lines_break_between_words_and_the_bar_keeps_its_step_count(width):
    console = terminal(width)
    now = iter(range(0, 10_000, 90))
    with Progress(log_steps=100, console=console, clock=lambda: float(next(now))) as progress:
        progress.say(SENTENCE)
        with progress.phase("GRPO", 400) as advance:
            advance(STEP)
            progress._bars.refresh()
    lines = console.file.getvalue().replace("\r", "\n").splitlines()
    said = [line for line in lines if line.strip()]
    assert all(len(line.split("\x1b[2K")[-1]) <= width for line in said)
    words = set(SENTENCE.split())
    assert words <= {word for line in said for word in line.split("\x1b[2K")[-1].split()}
    assert any(
        line.split("\x1b[2K")[-1].startswith("GRPO") and "1/400" in line and "left" in line and "loss" in line
        for line in said
    )


def test_w21_a_path_longer_than_the_terminal_is_never_cut():
    console = terminal(80)
    path = "/data/" + "x" * 200
    Progress(console=console).say(f"Continue: mmgrpo train --resume {path}")
    assert path in console.file.getvalue()


def test_w21_the_table_keeps_its_numbers_whole_at_80():
    console = terminal(80)
    name = "accuracy among well-formed, a suite with a long name, sampled"
    console.print(results_table({name: 0.5}, before={name: 0.25}, errors={name: 0.021}, heads=("step 0", "step 400")))
    assert "+0.250 ± 0.021" in console.file.getvalue()
    assert max(map(len, console.file.getvalue().splitlines())) <= 80


def test_w26_a_metric_that_a_step_does_not_have_is_a_dash_and_never_an_older_one():
    console = Console(file=io.StringIO(), width=100)
    with Progress(log_steps=1, console=console) as progress, progress.phase("GRPO", 3) as advance:
        advance({"reward": 0.5, "accuracy": 0.75})
        advance({"reward": float("nan")})
        advance({"reward": 0.25, "accuracy": 0.5})
    lines = console.file.getvalue().splitlines()
    assert [line.split("  ")[1:3] for line in lines] == [
        ["reward 0.500", "accuracy 0.750"],
        ["reward -", "accuracy -"],
        ["reward 0.250", "accuracy 0.500"],
    ]


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [None, "broken", "closed"])
def test_t07_a_screen_that_is_gone_ends_nothing(stream, monkeypatch):
    target = None if stream is None else Broken() if stream == "broken" else io.StringIO()
    if stream == "closed":
        target.close()
    monkeypatch.setattr(sys, "stderr", target)
    with Progress(log_steps=1) as progress, progress.phase("GRPO", 2) as advance:
        progress.say("nobody reads this")
        advance({"reward": 0.5})
        advance({"reward": 0.5})
    assert Stderr().write("x") == 1


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_t07_a_mistake_is_still_told_by_the_exit_code(redirect):
    done = subprocess.run(
        f"{sys.executable} -m mmgrpo no-such-command {redirect}", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 2
