"""Bad input: one message that names the place and the way out, exit code 2, and nothing that was saved is lost."""

from __future__ import annotations

import errno
import json
import warnings

import pytest
import torch
from PIL import Image

from mmgrpo.cli import main
from mmgrpo.training.manifest import complete_checkpoints

ANSWERED = "def r(completions, answer): return "


@pytest.fixture
def tell(yaml_file, capsys):
    """Train from a YAML on the command line; give exit code and what was said after the run's own lines."""

    def run(**changes):
        file = yaml_file(**changes)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            code = main(["train", str(file)])
        return code, capsys.readouterr().err

    return run


def message_of(told):
    """The one message: from its first line to the end."""
    assert told.count("mmgrpo: ") == 1, told
    assert "Traceback" not in told
    return told[told.index("mmgrpo: ") :]


@pytest.fixture
def rows_file(tmp_path):
    """Write rows beside a good picture, a broken one and a huge text."""
    Image.new("RGB", (56, 56), "red").save(tmp_path / "good.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "good.png").read_bytes()[:40])

    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return {"data": {"train": {"path": str(path)}, "eval": None}}

    return write


GOOD = {"image": "good.png", "problem": "How many?", "solution": "3"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ["empty", "rows.jsonl"]),
        (
            [{**GOOD, "image": "broken.png"}],
            ["1 of 1 rows have media that cannot be read", "broken.png", "rows.jsonl"],
        ),
        ([GOOD, {**GOOD, "image": "gone.png"}], ["1 of 2 rows", "gone.png", "rows.jsonl:2"]),
        ([{**GOOD, "problem": None}], ["prompt", "rows.jsonl:1"]),
    ],
)
def test_rows_that_cannot_be_used_are_named_before_anything_is_loaded(rows, expected, rows_file, tell, monkeypatch):
    monkeypatch.setattr("mmgrpo.assemble.load_policy", None)
    code, told = tell(**rows_file(rows))
    assert code == 2
    for text in expected:
        assert text in message_of(told)


@pytest.mark.parametrize("key", ["prompt", "image", "answer", "id"])
def test_a_column_that_is_not_there_is_named_with_those_there_are(key, rows_file, tell, monkeypatch):
    monkeypatch.setattr("mmgrpo.assemble.load_policy", None)
    changes = rows_file([GOOD])
    changes["data"]["columns"] = {key: "nothing"}
    code, told = tell(**changes)
    assert code == 2
    message = message_of(told)
    for text in ("no column 'nothing'", f"data.columns.{key}", "rows.jsonl", "problem", "solution"):
        assert text in message


def test_a_file_that_is_not_there_is_named_with_its_whole_path(tell, tmp_path, monkeypatch):
    monkeypatch.setattr("mmgrpo.assemble.load_policy", None)
    code, told = tell(data={"train": {"path": "nowhere.jsonl"}, "eval": None})
    assert code == 2
    assert str(tmp_path / "nowhere.jsonl") in message_of(told)


def test_a_prompt_that_is_too_long_is_told_with_its_sizes_and_never_cut(rows_file, tell):
    changes = rows_file([GOOD])
    changes["data"]["max_prompt_tokens"] = 12
    code, told = tell(**changes)
    assert code == 2
    message = message_of(told)
    assert "limit is 12, of which 4 are for the image" in message
    assert "data.max_prompt_tokens" in message


def test_a_prompt_that_is_too_long_can_be_left_out(rows_file, tell):
    changes = rows_file([GOOD, {**GOOD, "problem": "How many? " * 60}, GOOD])
    changes["data"] |= {"max_prompt_tokens": 120, "on_long_prompt": "skip"}
    code, told = tell(**changes)
    assert code == 0, told
    assert "Row left out: A prompt is too long" in told
    assert "rows.jsonl:2" in told


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def r(completions): raise KeyError('cat')", ["Reward r raised KeyError", "reward.py:1", "scene-1-"]),
        ("def r(completions): return [1.0]", ["wrong number of values", "6, one per completion", "got: 1"]),
        ("def r(completions): return ['0.5'] * len(completions)", ["Reward r returned text", "scene-1-", "'0.5'"]),
        ("def r(completions): return [float('inf')] * len(completions)", ["an infinite number", "scene-1-"]),
        ("def r(completions): return 1.0", ["Reward r returned ", "a list of one number"]),
        ("def r(completions, colour): return [0.0] * len(completions)", ["asks for colour", "problem", "solution"]),
        ("def other(completions): return []", ["reward.py", "other"]),
        ("def r(completions: return []", ["reward.py", "line 1"]),
        ("import not_installed_anywhere\ndef r(completions): return []", ["not_installed_anywhere", "reward.py"]),
    ],
)
def test_a_reward_that_breaks_its_contract_is_named(source, expected, tell, tmp_path):
    (tmp_path / "reward.py").write_text(source)
    code, told = tell(rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}])
    assert code == 2
    for text in expected:
        assert text in message_of(told)


@pytest.mark.parametrize("value", ["None", "float('nan')"])
@pytest.mark.parametrize("steps", [1, 3, 12])
def test_a_run_in_which_no_reward_ever_applies_ends_in_one_error(value, steps, tell, tmp_path):
    (tmp_path / "reward.py").write_text(f"def r(completions): return [{value}] * len(completions)")
    code, told = tell(rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}], train={"num_steps": steps})
    assert code == 2
    message = message_of(told)
    for text in ("No reward applies to any completion", "rewards r", "sample scene-1-", "mmgrpo rewards try"):
        assert text in message
    logged = (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(logged) <= 7  # 16 prompts in a row end the run, 2 of them in a step
    assert not (tmp_path / "runs" / "run" / "checkpoints").exists()


def test_a_reward_that_stops_applying_in_the_middle_stops_the_run(tell, tmp_path):
    (tmp_path / "reward.py").write_text(
        "def r(completions, trainer_state):\n"
        "    late = trainer_state.global_step >= 2\n"
        "    return [None if late else float(len(text)) for text in completions]\n"
    )
    code, told = tell(rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}], train={"num_steps": 30, "save_steps": 2})
    assert code == 2
    assert "the last 16 prompts" in message_of(told)
    assert len((tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()) == 9


TRUTHLESS = [{"prompt": "How many?"}, {"prompt": "What?", "answer": None}, {"prompt": "Why?"}]


@pytest.mark.parametrize("columns", ["answer", "solution"])
@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("where", ["train", "eval"])
def test_rows_without_any_truth_are_told_before_weights_are_loaded(
    where, command, columns, rows_file, yaml_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("mmgrpo.assemble.load_policy", None)
    (tmp_path / "reward.py").write_text(f"def r(completions, {columns}): return [0.0] * len(completions)")
    rows_file(TRUTHLESS)
    changes = {"data": {where: {"path": str(tmp_path / "rows.jsonl")}}}
    file = yaml_file(rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}], **changes)
    assert main([command, str(file)]) == 2
    message = message_of(capsys.readouterr().err)
    for text in ("Reward r asks for answer", "None in all 3 rows", "rows.jsonl", "data.columns.answer", "answer=None"):
        assert text in message
    assert not (tmp_path / "runs").exists()


def test_one_row_of_many_without_a_truth_does_not_apply_and_is_warned_of_once(rows_file, tell, tmp_path):
    (tmp_path / "reward.py").write_text(
        "def r(completions, answer):\n"
        "    return [None if a is None else float(len(c)) for c, a in zip(completions, answer)]\n"
    )
    rows = [{"prompt": "How many?", "answer": None}, *[{"prompt": f"{n}?", "answer": n} for n in range(3)]]
    code, told = tell(**rows_file(rows), rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}], train={"num_steps": 4})
    assert code == 0
    assert told.count("No reward applies to 3 of 6 completions") == 1


def test_an_evaluation_that_judges_no_row_has_no_accuracy_instead_of_zero(tell, tmp_path):
    (tmp_path / "reward.py").write_text(
        "def r(completions, answer, trainer_state, group):\n"
        "    return [None if len(set(group)) == 4 else float(len(c)) for c in completions]\n"
    )
    code, told = tell(rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}], eval={}, train={"save_best": "eval/accuracy"})
    assert code == 0
    assert told.count("applies to none of the 4 held-out rows") == 2  # before and after
    found = json.loads((tmp_path / "runs" / "run" / "evaluations" / "step_000000.json").read_text())
    assert found["greedy"]["accuracy"] is None
    assert found["greedy"]["rewards"] == {"r": None}
    assert "mean of r, greedy" in told


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eval": {"metric": "acuracy"}}, ["eval.metric names no reward", "letters", "acuracy"]),
        ({"train": {"save_best": "eval/accuracy"}}, ["train.save_best", "eval: {}"]),
        ({"train": {"num_steps": None}}, ["train.num_steps or train.num_epochs"]),
        ({"rewards": []}, ["There are no rewards"]),
        ({"eval": {}, "data": {"eval": None}}, ["There are no rows", "data.eval"]),
        ({"model": {"name": "tiny:nothing"}}, ["No such tiny model", "tiny:qwen2_5_vl"]),
        ({"model": {"name": "/nowhere/at/all", "sizes": None}}, ["model.name", "/nowhere/at/all"]),
        ({"warm_start": {"data": {"path": "gone.jsonl"}, "num_steps": 1}}, ["gone.jsonl"]),
        (
            {"warm_start": {"data": {"synthetic": "counting", "rows": 9}, "target": "{{ nothing }}", "num_steps": 1}},
            ["warm_start.target", "nothing"],
        ),
    ],
)
def test_choices_that_do_not_fit_are_told(changes, expected, tell):
    code, told = tell(**changes)
    assert code == 2
    for text in expected:
        assert text in message_of(told)


@pytest.mark.parametrize("name", ["eval/acc", "accuracy", "eval/sampled/accuracy"])
def test_a_wrong_name_under_save_best_is_told_before_weights_are_loaded(name, tell, tmp_path):
    code, told = tell(eval={"sampled": False}, train={"save_best": name})
    assert code == 2
    assert "eval/accuracy" in message_of(told)
    assert not (tmp_path / "runs").exists()


def test_a_wrong_reward_under_save_best_is_told_after_the_first_evaluation_not_after_the_run(tell, tmp_path):
    code, told = tell(eval={}, train={"save_best": "eval/rewards/letter/mean", "save_steps": 1})
    assert code == 2
    assert "eval/rewards/letters/mean" in message_of(told)
    assert not (tmp_path / "runs" / "run" / "checkpoints").exists()


def test_one_bad_picture_may_be_skipped_counted_and_named(rows_file, tell, tmp_path):
    rows = [GOOD, {**GOOD, "image": "broken.png"}, GOOD]
    changes = rows_file(rows)
    changes["data"]["on_bad_media"] = "skip"
    code, told = tell(**changes)
    assert code == 0
    assert "rows.jsonl:2" in told
    assert "rows left out, because their media cannot be read: 1" in told


def test_a_failed_start_leaves_no_folder_behind(tell, tmp_path):
    (tmp_path / "reward.py").write_text("def r(completions): raise ValueError('no')")
    codes = [tell()[0], *(tell(rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}])[0] for _ in range(2))]
    assert codes == [0, 2, 2]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def full_disk(*arguments, **more):
    raise OSError(errno.ENOSPC, "No space left on device", "state.pt")


def test_a_full_disk_at_a_checkpoint_is_one_message_and_loses_nothing(tell, tmp_path, monkeypatch, capsys):
    saves = []
    honest = torch.save

    def save(*arguments, **more):
        saves.append(1)
        return full_disk() if len(saves) == 2 else honest(*arguments, **more)

    monkeypatch.setattr(torch, "save", save)
    code, told = tell(train={"num_steps": 4, "save_steps": 1})
    assert code == 2
    message = message_of(told)
    folder = tmp_path / "runs" / "run"
    assert "checkpoint of step 2 could not be written" in message
    assert str(folder / "checkpoints" / "step-1") in message
    assert "Free disk space" in message
    assert list(complete_checkpoints(folder / "checkpoints")) == [1]
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["step-1"]
    assert main(["train", "--resume", str(folder)]) == 0
    assert list(complete_checkpoints(folder / "checkpoints")) == [1, 2, 3, 4]
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["completions", "evaluations"])
def test_a_full_disk_elsewhere_is_one_message_too(what, tell, tmp_path, monkeypatch):
    place = {"completions": "mmgrpo.observe.completions", "evaluations": "mmgrpo.evaluation.files"}[what]
    from mmgrpo.observe.atomic import cannot_write

    def fails(path, content):
        raise cannot_write(path, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(f"{place}.write_atomic", fails)
    code, told = tell(eval={})
    assert code == 2
    assert "The disk is full" in message_of(told)
    assert what in message_of(told)


def test_after_a_reward_has_failed_in_the_middle_the_command_that_goes_on_is_told(tell, tmp_path):
    (tmp_path / "reward.py").write_text(
        "def r(completions, trainer_state):\n"
        "    if trainer_state.global_step == 2: raise ValueError('late')\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    code, told = tell(rewards=[{"fn": f"{tmp_path / 'reward.py'}:r"}], train={"save_steps": 1})
    assert code == 2
    assert "late" in message_of(told)
    assert f"go on: mmgrpo train --resume {tmp_path / 'runs' / 'run'}" in told
    (tmp_path / "reward.py").write_text("def r(completions): return [float(len(text)) for text in completions]\n")
    assert main(["train", "--resume", str(tmp_path / "runs" / "run")]) == 0
