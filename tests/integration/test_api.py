"""The notebook face on small whole runs."""

from __future__ import annotations

import io
import json
import threading

import pytest
from rich.console import Console

import mmgrpo
from mmgrpo.cli import main
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.observe.sinks import read_rows

QUIET = Console(file=io.StringIO())


def test_a_run_needs_no_yaml_and_no_other_file(sections, tmp_path):
    given = sections()
    del given["rewards"]
    run = mmgrpo.train(rewards=[lambda completions: [float(len(t)) for t in completions]], console=QUIET, **given)
    assert run.steps == 3
    assert run.path == tmp_path / "runs" / "run"
    assert mmgrpo.load_config(run.path / "config.yaml").rollout.num_generations == 3


def test_a_second_run_of_the_name_gets_a_folder_of_its_own(train):
    assert train().path.name == "run"
    assert train().path.name == "run-2"


def test_the_folder_of_a_run_holds_what_the_documentation_says(train):
    run = train(eval={})
    assert {"config.yaml", "run.json", "metrics.jsonl", "completions", "checkpoints", "evaluations"} == {
        p.name for p in run.path.iterdir()
    }
    policy = run.path / "checkpoints" / "step-3" / "policy"
    assert {"config.json", "model.safetensors", "tokenizer.json", "processor_config.json", "chat_template.jinja"} <= {
        p.name for p in policy.iterdir()
    }
    (start,) = json.loads((run.path / "run.json").read_text())
    assert start["device"] == "cpu" and "torch" in start["packages"]


def test_the_phases_are_timed_and_the_step_is_their_sum(train):
    row = train().metrics()[-1]
    phases = {name: value for name, value in row.items() if name.startswith("seconds/")}
    assert {"data", "rollout", "reward", "update", "sync"} <= {name.split("/")[1] for name in phases}
    assert all(value >= 0 for value in phases.values())
    assert row["step_time"] == pytest.approx(sum(phases.values()))
    assert row["peak_memory_bytes"] > 2**20
    assert row["num_tokens"] > 0


def test_evaluations_are_rows_of_their_own_and_the_callback_sees_them(train):
    seen = []
    run = train(eval={"eval_steps": 2}, on_step=lambda step, metrics: seen.append("eval/accuracy" in metrics))
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    assert all("reward" in row and "eval/accuracy" not in row for row in run.metrics())
    assert [row["step"] for row in run.eval_metrics()] == [0, 2, 3]
    written = read_rows(run.path / "metrics.jsonl")  # one file, in the order of time
    kinds = [(row["step"], "reward" in row, "eval/accuracy" in row) for row in written]
    assert kinds == [
        (0, False, True),
        (1, True, False),
        (2, True, False),
        (2, False, True),
        (3, True, False),
        (3, False, True),
    ]
    assert seen == [False, True, False]


def test_figures_of_an_evaluations_completions_are_no_figures_of_a_step(train):
    plain = train("plain").metrics()
    evaluated = train("evaluated", eval={"eval_steps": 1}).metrics()
    name = "sampling/removed_probability"
    assert [row[name] for row in plain] == [row[name] for row in evaluated]


def test_a_run_and_its_reports_are_one_line_in_a_notebook(train):
    run = train(eval={"sampled": False})
    assert repr(run).startswith(f"<Run {run.path}: 3 steps, held-out accuracy 0.")
    assert repr(run.after).startswith("<Report of step 3, 4 rows: accuracy greedy 0.")
    assert len(repr(run.after)) < 100


def test_a_finished_run_generates_evaluates_and_tells_its_samples(train):
    run = train(eval={"limit": 3})
    assert run.after.greedy.rows == 3
    assert len(run.samples()) == 4
    assert run.evaluate().greedy.rows == 3
    assert run.evaluate(limit=2).greedy.rows == 2
    assert (
        run.evaluate([{"image": run.samples()[0].media[0].source, "problem": "?", "solution": "1"}]).greedy.rows == 1
    )
    sample = run.samples()[0]
    assert run.generate(sample) == run.generate(sample)
    assert len(run.generate(sample, count=3)) == 3
    row = {"image": sample.media[0].source, "problem": "How many objects are there?", "solution": "3"}
    assert run.generate(row) == run.generate(sample)
    assert run.generate(sample, temperature=1.0, count=2) == run.generate(sample, count=2)
    assert run.facts()["steps"] == "3"


def test_a_run_without_held_out_rows_says_what_to_do(train):
    run = train(data={"eval": None})
    with pytest.raises(ConfigError, match=r"data\.eval"):
        run.evaluate()
    assert len(run.samples()) == 40


def test_rewards_in_worker_processes_work_behind_the_run_too_and_go_with_it(train, reward_file):
    run = train(rewards=[{"fn": reward_file, "workers": 1}], eval={})
    again = run.evaluate()
    assert again.greedy_rows == run.after.greedy_rows
    run.close()


def test_a_run_that_fails_leaves_no_worker_process_behind(train, reward_file, monkeypatch):
    from mmgrpo.reward.score import RewardSum

    closed = []
    honest = RewardSum.close
    monkeypatch.setattr(RewardSum, "close", lambda self: closed.append(honest(self)))
    with pytest.raises(ZeroDivisionError):
        train(rewards=[{"fn": reward_file, "workers": 1}], on_step=lambda step, metrics: 1 // 0)
    assert closed == [None]


def test_training_and_evaluation_write_no_bars_of_other_libraries(train, capfd):
    run = train()
    mmgrpo.evaluate(run.path, console=QUIET)
    assert capfd.readouterr().err == ""


def test_a_bare_model_is_evaluated_on_a_dataset_file_and_on_a_file_of_rows(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = {
        "rollout.max_completion_length": 4,
        "eval.batch_size": 2,
        "train.output_dir": str(tmp_path / "runs" / "e"),
    }
    report = mmgrpo.evaluate(
        "tiny:qwen2_5_vl", data="datasets_configs/scenes_counting.yaml", overrides=short, limit=2, console=QUIET
    )
    assert report.greedy.rows == 2
    assert report.settings["metric"] == "count_accuracy"
    train().samples()[0].media[0].source.save(tmp_path / "a.png")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"image": "a.png", "problem": "?", "solution": "3"}) + "\n")
    report = mmgrpo.evaluate("tiny:qwen2_5_vl", data="rows.jsonl", overrides=short, console=QUIET)
    assert [row.answer for row in report.greedy_rows] == ["3"]


def test_bare_models_are_evaluated_into_one_folder_that_keeps_what_differs(train, tmp_path):
    rows = [{"image": train().samples()[0].media[0].source, "problem": "?", "solution": "3"}]

    def evaluate(length):
        changes = {"rollout.max_completion_length": length, "train.output_dir": str(tmp_path / "e" / "{name}")}
        mmgrpo.evaluate("tiny:qwen2_5_vl", data=rows, overrides=changes, console=QUIET)

    for length in (4, 4, 5, 4):
        evaluate(length)
    assert [path.name for path in (tmp_path / "e").iterdir()] == ["eval-tiny-qwen2_5_vl"]
    found = (tmp_path / "e" / "eval-tiny-qwen2_5_vl" / "evaluations").glob("*.json")
    lengths = [json.loads(path.read_text())["settings"]["max_completion_length"] for path in found]
    assert sorted(lengths) == [4, 5]


def test_an_evaluation_that_fails_leaves_no_folder(tmp_path):
    changes = {"train.output_dir": str(tmp_path / "e" / "{name}")}

    def fails(completions, answer):
        raise ValueError("no")

    rows = [{"problem": "?", "solution": "3"}]
    with pytest.raises(RewardError):
        mmgrpo.evaluate("tiny:qwen2_5_vl", data=rows, rewards=[fails], overrides=changes, console=QUIET)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("asked", [5, None, ["hello"]])
def test_what_the_policy_cannot_be_asked_is_told(asked, train):
    with pytest.raises(ConfigError, match=r"cannot be asked this[^$]*run\.samples"):
        train().generate(asked)


def test_the_policy_may_be_asked_a_text(train):
    run = train()
    assert len(run.generate("hello", count=2)) == 2
    for wrong in ({"count": 0}, {"count": True}, {"temperature": -1}, {"temperature": "hot"}):
        with pytest.raises(ConfigError, match="out of range"):
            run.generate("hello", **wrong)
    with pytest.raises(ConfigError, match="at least 1"):
        run.evaluate(limit=0)


def test_a_dataset_file_wins_over_the_rows_of_the_run(train, tmp_path):
    run = train(eval={})
    file = tmp_path / "other.yaml"
    file.write_text(
        "eval: {synthetic: counting, rows: 2, seed: 9, min_objects: 2, max_objects: 2}\n"
        "template: {user: 'Other words: {{ prompt }}'}\n"
    )
    report = mmgrpo.evaluate(run.path, data=file, console=QUIET)
    assert [(row.id, row.answer) for row in report.greedy_rows] == [("scene-9-0", "2"), ("scene-9-1", "2")]
    assert report.settings["template"]["user"] == "Other words: {{ prompt }}"
    file.write_text("train: {synthetic: counting, rows: 2, seed: 9}\n")
    with pytest.raises(ConfigError, match=r"no rows(.|\n)*data\.eval"):
        mmgrpo.evaluate(run.path, data=file, console=QUIET)


def test_rows_named_on_the_command_line_start_from_the_working_folder(train, tmp_path, monkeypatch, capsys):
    run = train(eval={})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run.samples()[0].media[0].source.save(elsewhere / "a.png")
    (elsewhere / "rows.jsonl").write_text(json.dumps({"image": "a.png", "problem": "?", "solution": "3"}) + "\n")
    assert main(["eval", str(run.path), "--data", "rows.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["greedy"]["rows"] == 1


def test_a_working_folder_with_a_configuration_is_not_taken_for_the_run(train, tmp_path, monkeypatch):
    run = train(eval={})
    monkeypatch.chdir(run.path)
    short = {"rollout.max_completion_length": 4, "train.output_dir": str(tmp_path / "runs" / "e")}
    data = [{"image": run.samples()[0].media[0].source, "problem": "?", "solution": "1"}]
    report = mmgrpo.evaluate("tiny:qwen2_5_vl", data=data, overrides=short, console=QUIET)
    assert report.settings["model"] == "tiny:qwen2_5_vl"
    assert mmgrpo.evaluate(".", console=QUIET).greedy_rows == run.after.greedy_rows


def test_adapters_are_evaluated_from_their_folder_and_merged(train, tmp_path):
    run = train(model={"tune": "lora"}, eval={})
    assert mmgrpo.evaluate(run.path, console=QUIET).greedy_rows == run.after.greedy_rows
    merged = mmgrpo.api.merge(run.path, tmp_path / "merged")
    plain = mmgrpo.evaluate(
        merged, config=run.path / "config.yaml", overrides=["train.output_dir=" + str(tmp_path / "e")], console=QUIET
    )
    assert [row.texts for row in plain.greedy_rows] == [row.texts for row in run.after.greedy_rows]


def test_the_number_of_steps_follows_from_the_epochs_and_the_rows_that_can_be_read(train, tmp_path):
    rows = [{"problem": f"Say {n}.", "solution": str(n)} for n in range(5)]
    data = {"columns": {"image": None}, "eval": None}
    run = train(train_rows=rows, data=data, train={"num_steps": None, "num_epochs": 2})
    assert run.steps == 5


def test_rewards_that_can_be_written_down_are_part_of_the_configuration(train, reward_file, capsys):
    run = train(rewards=[{"fn": reward_file, "weight": 0.5}, "rewards/format.py:think_answer"], eval={})
    stored = mmgrpo.load_config(run.path / "config.yaml").rewards
    assert [(r.fn, r.weight) for r in stored] == [(reward_file, 0.5), ("rewards/format.py:think_answer", 1.0)]
    assert main(["train", "--resume", str(run.path)]) == 0
    report = mmgrpo.evaluate(run.path, rewards=["rewards/format.py:think_answer"], console=QUIET)
    assert report.settings["rewards"] == ["think_answer"]


def test_functions_and_specs_may_be_mixed(train, reward_file):
    def half(completions):
        return [0.5] * len(completions)

    run = train(rewards=[half, reward_file], checks={"constant_reward_steps": 0})
    assert {"rewards/half/mean", "rewards/letters/mean"} <= set(run.metrics()[0])


def test_rows_to_evaluate_on_that_are_given_are_evaluated_on(train):
    rows = [{"problem": f"Say {n}.", "solution": str(n)} for n in range(3)]
    changes = {"train_rows": rows, "eval_rows": rows[:2], "data": {"train": None, "eval": None}}
    run = train(**changes)
    assert run.after.greedy.rows == 2
    assert train("limited", **changes, eval={"limit": 1, "sampled": False}).after.greedy.rows == 1


def test_nothing_is_made_ahead_any_more_behind_a_run_whether_it_ends_or_fails(train):
    def names():
        return [thread.name for thread in threading.enumerate() if "mmgrpo" in thread.name]

    train(data={"prefetch": 2})
    assert names() == []
    with pytest.raises(ZeroDivisionError):
        train(data={"prefetch": 2}, on_step=lambda step, metrics: 1 // 0)
    assert names() == []


def test_a_reward_is_told_the_steps_done(train):
    seen = []

    def watch(completions, trainer_state):
        seen.append(trainer_state.global_step)
        return [float(len(text)) for text in completions]

    train(rewards=[watch], eval=None)
    assert seen == [0, 1, 2]


def test_a_mistyped_run_is_told_apart_from_missing_rows():
    with pytest.raises(ConfigError, match=r"This is no run folder(.|\n)*runs/mistyped"):
        mmgrpo.evaluate("runs/mistyped")
