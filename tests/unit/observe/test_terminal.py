"""Progress, tables and text on the terminal."""

import io

from rich.console import Console

from mmgrpo.observe.progress import Progress
from mmgrpo.observe.tables import parameters_table, print_facts, results_table
from mmgrpo.observe.text import duration, printable


def screen(**options):
    return Console(file=io.StringIO(), width=100, **options)


def ticks(step=1.0):
    now = [-step]

    def clock():
        now[0] += step
        return now[0]

    return clock


def test_without_a_terminal_there_is_one_line_every_few_steps():
    console = screen()
    with Progress(log_steps=5, console=console, clock=ticks()) as progress, progress.phase("GRPO", 12) as advance:
        for step in range(12):
            advance({"reward": step / 10, "completions/mean_length": 6.25, "unseen": 1.0})
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "GRPO 5/12  reward 0.400  length 6.250  1.0 s/step  7.0 s left",
        "GRPO 10/12  reward 0.900  length 6.250  1.0 s/step  2.0 s left",
        "GRPO 12/12  reward 1.100  length 6.250  1.0 s/step",
    ]


def test_progress_switched_off_prints_no_bar_on_a_terminal():
    console = screen(force_terminal=True, color_system=None)
    with (
        Progress(show=False, log_steps=1, console=console, clock=ticks()) as progress,
        progress.phase("GRPO", 1) as advance,
    ):
        advance()
    assert console.file.getvalue() == "GRPO 1/1  1.0 s/step\n"


def test_a_terminal_shows_a_bar_with_the_time_left():
    console = screen(force_terminal=True, color_system=None)
    with (
        Progress(log_steps=100, console=console, clock=ticks(2.0)) as progress,
        progress.phase("warm start", 60) as advance,
    ):
        for _ in range(10):
            advance({"loss": 0.5})
        progress._bars.refresh()
    shown = console.file.getvalue()
    assert "warm start" in shown
    assert "10/60" in shown
    assert "1:40 left" in shown
    assert "loss 0.500" in shown


def test_a_resumed_phase_counts_from_where_it_was_and_times_only_its_own_steps():
    console = screen()
    with (
        Progress(log_steps=1, console=console, clock=ticks()) as progress,
        progress.phase("GRPO", 10, done=8) as advance,
    ):
        advance()
    assert console.file.getvalue() == "GRPO 9/10  1.0 s/step  1.0 s left\n"


def test_a_phase_may_advance_by_many_and_print_only_at_its_end():
    console = screen()
    with (
        Progress(log_steps=1, console=console, clock=ticks(0.0)) as progress,
        progress.phase("evaluation", 500, unit="row", every=0) as advance,
    ):
        advance(by=256)
        advance({"accuracy": 0.5}, by=244)
    assert console.file.getvalue() == "evaluation 500/500  accuracy 0.500\n"


def test_slow_steps_without_a_bar_give_a_sign_of_life_every_half_minute():
    console = screen()
    with (
        Progress(console=console, clock=ticks(20.0)) as progress,
        progress.phase("evaluation", 100, unit="row", every=0) as advance,
    ):
        for _ in range(5):
            advance(by=10)
    assert [line.split("  ")[0] for line in console.file.getvalue().splitlines()] == [
        "evaluation 20/100",
        "evaluation 40/100",
    ]


def test_what_is_said_is_printed_as_it_stands():
    console = screen(force_terminal=True)
    Progress(console=console).say("[red]no\x1b[31m\nsecond \ud83d line")
    assert console.file.getvalue() == "[red]no\\x1b[31m\nsecond \\ud83d line\n"


def test_results_are_laid_out_before_after_and_change():
    console = screen()
    table = results_table(
        {"greedy accuracy": 0.5, "accuracy, 3 objects": 0.75, "rows": 500},
        before={"greedy accuracy": 0.3, "gone": 0.1},
        errors={"greedy accuracy": 0.021},
    )
    console.print(table)
    print_facts(console, {"run folder": "/a/rather/long/path/" + "x" * 100})
    shown = console.file.getvalue()
    assert "+0.200 ± 0.021" in shown
    assert "accuracy, 3 objects" in shown
    assert "500" in shown
    assert "run folder: /a/rather/long/path/" + "x" * 100 in shown
    row = next(line for line in shown.splitlines() if line.startswith("gone"))
    assert row.split() == ["gone", "0.100", "-"]


def test_results_without_a_start_have_one_column():
    console = screen()
    console.print(results_table({"accuracy [bold]x[/bold]": 0.5}))
    assert "accuracy [bold]x[/bold]   0.500" in console.file.getvalue()
    assert "before" not in console.file.getvalue()


def test_parameters_are_summed():
    console = screen()
    console.print(parameters_table({"language": (750_000, 1_000_000), "vision": (0, 500_000)}))
    shown = console.file.getvalue()
    assert "75.0 %" in shown
    assert [line.split() for line in shown.splitlines()][-1] == ["all", "750,000", "1,500,000", "50.0", "%"]


def test_long_text_keeps_its_ends():
    assert printable("a" * 50 + "b" * 50, limit=11) == "aaaaa…bbbbb"
    assert printable("\u202ereversed") == "\\u202ereversed"


def test_durations():
    assert [duration(value) for value in (0, 59.94, 60, 3599.7)] == ["0.0 s", "59.9 s", "1:00", "1:00:00"]
