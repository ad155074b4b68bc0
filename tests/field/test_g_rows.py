"""Field rows G: what a run shows and writes. (G04 stands with the notebook tests.)"""

import io
import json
import sys
import types

import pytest
import torch
from rich.console import Console

from mmgrpo.observe.completions import CompletionsWriter
from mmgrpo.observe.progress import Progress
from mmgrpo.observe.sinks import JsonlSink, Sinks, read_rows
from mmgrpo.observe.trackers import RunName, open_tracker
from mmgrpo.types import Completion, Group, Prompt, Sample, ScoredGroup

NASTY = ["[red]", "\x1b[31m", "emoji 🎈", "half \ud83d", "nul \x00", "[/red] \u202e \r\n"]


def test_g02_resuming_from_step_3_with_an_evaluation_there_loses_no_row_and_steps_never_fall(tmp_path):
    first = Sinks([JsonlSink(tmp_path / "m.jsonl")])
    for step in range(1, 6):
        first.log(step, {"reward": step / 10})
    first.close()  # stopped here; the last checkpoint is that of step 3

    resumed = Sinks([JsonlSink(tmp_path / "m.jsonl", last_step=3)])
    resumed.log(3, {"eval/accuracy": 0.5})
    for step in range(4, 7):
        resumed.log(step, {"reward": step / 10})
    resumed.log(6, {"eval/accuracy": 0.75})
    resumed.close()

    rows = read_rows(tmp_path / "m.jsonl")
    steps = [row["step"] for row in rows]
    assert steps == [1, 2, 3, 3, 4, 5, 6, 6]
    assert [row["reward"] for row in rows if "reward" in row] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert [row["step"] for row in read_rows(tmp_path / "m.replaced.jsonl")] == [4, 5]


def test_g02_without_a_network_the_tracker_is_dropped_and_the_run_goes_on(tmp_path, monkeypatch):
    module = types.ModuleType("wandb")

    def init(**options):
        raise ConnectionError("no network")

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.warns(RuntimeWarning, match="wandb failed"):
        tracker = open_tracker("wandb", RunName(name="r", folder=tmp_path))
    sinks = Sinks([JsonlSink(tmp_path / "m.jsonl"), tracker])
    sinks.log(1, {"x": 1.0})
    sinks.close()
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1, "x": 1.0}]


def scored(texts):
    prompt = Prompt(
        sample=Sample(id="a\ud83d", messages=()), text="[b]?", token_ids=torch.tensor([1]), model_inputs={}
    )
    one = torch.ones(1)
    completions = tuple(
        Completion(
            token_ids=torch.tensor([1]),
            rollout_logprobs=-one,
            loss_mask=one.bool(),
            text=text,
            status="stop",
            policy_version=0,
        )
        for text in texts
    )
    totals = torch.zeros(len(texts), dtype=torch.float64)
    return ScoredGroup(group=Group(prompt=prompt, completions=completions), totals=totals, rewards={"r": totals})


def test_g03_completions_of_any_text_are_valid_utf8_json(tmp_path):
    path = CompletionsWriter(tmp_path, limit=len(NASTY)).write(1, [scored(NASTY)], [[0.0] * len(NASTY)])
    rows = [json.loads(line) for line in path.read_bytes().decode("utf-8").splitlines()]
    texts = [row["completion"] for row in rows]
    assert texts == [*NASTY[:3], "half \\ud83d", *NASTY[4:]]
    assert all(row["sample"] == "a\\ud83d" for row in rows)


def test_g03_the_terminal_shows_any_text_readably():
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=80, force_terminal=True)
    progress = Progress(console=console)
    for text in NASTY:
        progress.say(text)
    console.file.flush()
    shown = console.file.buffer.getvalue().decode("utf-8")
    assert "\x1b[31m" not in shown
    assert "\x00" not in shown
    assert "[red]\n" in shown
    assert "\\x1b[31m" in shown
    assert "emoji 🎈" in shown
