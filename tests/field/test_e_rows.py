"""Field cases E01 and E04: evaluations of a run, of a checkpoint and of a bare model."""

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

import mmgrpo
from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows

DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data"))
QUIET = Console(file=io.StringIO())


def test_e01_three_rows_with_batch_1_one_generation_and_greedy_work(train):
    run = train(
        data={"eval": {"synthetic": "counting", "rows": 3, "seed": 2}},
        eval={"batch_size": 1, "num_generations": 1, "sampled": False, "eval_steps": 1},
    )
    assert run.after.greedy.rows == 3
    assert run.after.sampled is None
    assert [row["step"] for row in run.eval_metrics()] == [0, 1, 2, 3]


def without_seconds(report):
    return {**report.summary(), "seconds": 0, "step": 0}, report.greedy_rows, report.sampled_rows


def test_e04_the_same_number_comes_twice_from_the_run_and_from_its_folder(train):
    run = train(eval={"num_generations": 2})
    assert without_seconds(run.evaluate()) == without_seconds(run.after)
    again = [mmgrpo.evaluate(run.path, console=QUIET) for _ in range(2)]
    assert without_seconds(again[0]) == without_seconds(again[1])
    assert again[0].greedy_rows == run.after.greedy_rows
    assert again[0].sampled_rows == run.after.sampled_rows
    assert again[0].settings["data_sha256"] == run.after.settings["data_sha256"]


def test_e04_the_results_file_holds_all_that_pins_the_number(train):
    run = train(eval={}, model={"max_pixels": 50176}, data={"template": {"system": "Count.", "user": "{{ prompt }}!"}})
    (summary,) = [json.loads(f.read_text()) for f in (run.path / "evaluations").glob("step_000003.json")]
    settings = summary["settings"]
    assert settings["template"].items() >= {"system": "Count.", "user": "{{ prompt }}!"}.items()
    assert settings["max_pixels"] == 50176
    assert (settings["temperature"], settings["max_completion_length"], settings["seed"]) == (1.0, 6, 1234)
    assert settings["metric"] == "letters"
    assert settings["reward_settings"][0]["fn"].endswith("dense.py:letters")
    assert "<answer>" in settings["well_formed"]
    assert len(settings["data_sha256"]) == 64
    assert settings["rows"] == 4
    lines = [json.loads(line) for line in (run.path / "evaluations" / "step_000003.jsonl").read_text().splitlines()]
    assert {line["way"] for line in lines} == {"greedy", "sampled"}
    assert {"id", "answer", "texts", "rewards", "correct", "media"} <= set(lines[0])


def test_e04_a_checkpoint_in_the_middle_is_evaluated_as_it_was_then(train):
    run = train(eval={"eval_steps": 2}, train={"num_steps": 4, "save_steps": 2})
    then = mmgrpo.evaluate(run.path / "checkpoints" / "step-2", console=QUIET)
    assert then.step == 2
    logged = next(row for row in run.eval_metrics() if row["step"] == 2)
    assert then.metrics()["eval/rewards/letters/mean"] == logged["eval/rewards/letters/mean"]
    told = {name: value for name, value in logged.items() if name != "step"}
    assert then.metrics() == pytest.approx(
        told, rel=0, abs=0, nan_ok=True
    )  # of nothing well-formed there is no number


@pytest.mark.skipif(not (DATA / "clevr").is_dir(), reason=f"{DATA}/clevr is not here")
def test_e04_the_200_super_clevr_questions_have_whole_numbers_from_3_to_10_as_truth():
    (file,) = (DATA / "clevr").glob("superclevr_test200*.jsonl")
    rows = open_rows(Files(path=str(file.absolute())), base=Path())
    columns = Columns(prompt="question", image=None, answer="ground_truth")
    samples = Samples(rows, columns=columns, template=Template())
    truths = [mmgrpo.to_number(mmgrpo.read_ground_truth(sample.answer)) for sample in samples]
    assert len(truths) == 200
    assert {int(t) for t in truths} == set(range(3, 11))
    assert all(t == int(t) for t in truths)
