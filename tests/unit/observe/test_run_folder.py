"""The run folder, whole files, and the completions in it."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmgrpo.errors import CheckpointError
from mmgrpo.observe.atomic import write_atomic
from mmgrpo.observe.completions import CompletionsWriter
from mmgrpo.observe.environment import describe_environment, git_commit
from mmgrpo.observe.runfolder import RunFolder, create_run_folder, newest_run_folder, open_run_folder
from mmgrpo.types import Completion, Decoded, Group, Media, Prompt, Sample, ScoredGroup


def scored(texts, *, source="pictures/a.png", sample_id="row 0"):
    picture = Decoded(kind="image", data=Image.new("RGB", (4, 4)))
    sample = Sample(id=sample_id, messages=(), media=(Media(kind="image", source=source, name="row 0"),), answer="3")
    prompt = Prompt(sample=sample, text="How many?", token_ids=torch.tensor([1]), model_inputs={}, media=(picture,))
    ones = torch.ones(2)
    completions = tuple(
        Completion(
            token_ids=torch.tensor([1, 2]),
            rollout_logprobs=-ones,
            loss_mask=ones.bool(),
            text=text,
            status="stop",
            policy_version=0,
        )
        for text in texts
    )
    totals = torch.arange(len(texts), dtype=torch.float64)
    applies = totals.clone()
    applies[0] = float("nan")
    return ScoredGroup(
        group=Group(prompt=prompt, completions=completions), totals=totals, rewards={"count": totals, "rare": applies}
    )


def rows_of(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text("utf-8").splitlines()]


def test_a_taken_folder_gets_a_number_and_the_newest_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [create_run_folder("runs/{name}", "count") for _ in range(11)]
    assert [folder.path.name for folder in folders[:3]] == ["count", "count-2", "count-3"]
    with pytest.raises(CheckpointError, match="no run to resume"):
        newest_run_folder("runs/{name}", "count")
    for folder in folders[1:]:
        folder.config.write_text("model: {name: x}")
    (tmp_path / "runs" / "count-other").mkdir()
    assert newest_run_folder("runs/{name}", "count").path.name == "count-11"


def test_a_folder_below_a_file_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Cannot write a file"):
        create_run_folder(str(tmp_path / "file" / "run"), "r")


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path):
    folder = create_run_folder(str(tmp_path / "r"), "r")
    with (
        folder.held(),
        pytest.raises(CheckpointError, match="Another process trains in this run"),
        RunFolder(folder.path).held(),
    ):
        pass
    with folder.held():
        pass


def test_a_start_is_written_down_and_a_resume_adds_to_it(tmp_path):
    folder = create_run_folder(str(tmp_path / "{name}"), "r")
    folder.write_start(config="a: 1\n", folder=Path("/yaml"), source=Path("/yaml/my.yaml"), facts={"device": "cpu"})
    folder.write_start(config="a: 1\n", folder=Path("/yaml"), source=None, facts={})
    folder.write_start(config="a: 2\n", folder=Path("/other"), source=None, facts={})
    starts = folder.starts()
    assert len(starts) == 3
    assert starts[0]["device"] == "cpu"
    assert starts[0]["source"] == "/yaml/my.yaml"
    assert "torch" in starts[0]["packages"]
    assert folder.config.read_text() == "a: 1\n"
    assert open_run_folder(folder.path).base_folder() == Path("/other")
    folder.replace_config("a: 2\n", changed={"a": "1 -> 2"})
    assert folder.config.read_text() == "a: 2\n"
    assert (folder.path / "config.before-start-3.yaml").read_text() == "a: 1\n"
    assert [start.get("changed") for start in folder.starts()] == [None, None, {"a": "1 -> 2"}]


def test_only_a_folder_that_holds_nothing_of_a_run_is_removed(tmp_path):
    folder = create_run_folder(str(tmp_path / "r"), "r")
    folder.write_start(config="a: 1\n", folder=tmp_path, source=None, facts={})
    folder.metrics.write_text("{}\n")
    assert not folder.remove_if_empty()
    folder.metrics.write_text("")
    (folder.path / "notes.txt").write_text("mine")
    assert not folder.remove_if_empty()
    assert folder.config.exists()
    (folder.path / "notes.txt").unlink()
    assert folder.remove_if_empty()
    assert not folder.path.exists()


def test_what_is_not_a_run_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="No such run folder"):
        open_run_folder(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"no config\.yaml"):
        open_run_folder(tmp_path)


def test_the_git_commit_is_found_and_its_absence_is_none(tmp_path):
    assert git_commit(tmp_path) is None
    environment = describe_environment()
    assert json.loads(json.dumps(environment)) == environment


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "x.json"
    write_atomic(file, "old")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")))
    with pytest.raises(CheckpointError, match=f"The disk is full.\n  where: {tmp_path}"):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_written_file_can_be_read_by_others_as_usual(tmp_path):
    write_atomic(tmp_path / "a", b"x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_missing_folder_is_told():
    with pytest.raises(CheckpointError, match="Cannot write a file"):
        write_atomic("/no/such/folder/x", "x")


def test_a_sample_of_completions_is_written_with_rewards_and_pictures(tmp_path):
    writer = CompletionsWriter(tmp_path / "completions", limit=4)
    path = writer.write(5, [scored(["a", "b"])], [[-0.5, 0.5]])
    assert path.name == "step_000005.jsonl"
    rows = rows_of(path)
    assert rows[1] == {
        "step": 5,
        "sample": "row 0",
        "media": ["pictures/a.png"],
        "prompt": "How many?",
        "answer": "3",
        "completion": "b",
        "tokens": 2,
        "finish_reason": "stop",
        "rewards": {"count": 1.0, "rare": 1.0},
        "total": 1.0,
        "advantage": 0.5,
    }
    assert rows[0]["rewards"]["rare"] is None
    assert not (tmp_path / "completions" / "media").exists()


def test_a_picture_made_in_memory_is_saved_beside(tmp_path):
    group = scored(["a"], source=Image.new("RGB", (4, 4)))
    path = CompletionsWriter(tmp_path / "completions").write(1, [group], [[0.0]])
    picture = rows_of(path)[0]["media"][0]
    with Image.open(picture) as saved:
        assert saved.size == (4, 4)


def test_the_sample_compares_within_few_groups(tmp_path):
    groups = [scored([f"{g}{i}" for i in range(8)], sample_id=str(g)) for g in range(64)]
    path = CompletionsWriter(tmp_path, limit=8).write(1, groups, [[0.0] * 8] * 64)
    assert [row["completion"] for row in rows_of(path)] == ["00", "01", "02", "03", "10", "11", "12", "13"]
    assert CompletionsWriter(tmp_path, limit=0).write(2, groups, [[0.0] * 8] * 64) is None


def test_columns_that_rewards_logged_follow_their_completion_as_text(tmp_path):
    groups = [scored([f"{g}{i}" for i in range(3)], sample_id=str(g)) for g in range(4)]
    counted = [replace(group, extra={"count": [3 * g, 3 * g + 1, 3 * g + 2]}) for g, group in enumerate(groups)]
    rows = rows_of(CompletionsWriter(tmp_path, limit=8).write(1, counted, [[0.0] * 3] * 4))
    assert [(row["completion"], row["extra/count"]) for row in rows] == [
        (f"{g}{i}", str(3 * g + i)) for g in range(2) for i in range(3)
    ]
    parquet = pytest.importorskip("pyarrow.parquet")
    mixed = [replace(groups[0], extra={"mixed": [1, "two", None]}), *groups[1:]]
    path = CompletionsWriter(tmp_path, format="parquet", limit=8).write(1, mixed, [[0.0] * 3] * 4)
    assert parquet.read_table(path).to_pydict()["extra/mixed"] == ["1", "two", "None", None, None, None]


def test_parquet_has_a_column_per_reward(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = CompletionsWriter(tmp_path, format="parquet").write(1, [scored(["a\ud83d", "b\x00"])], [[-1.0, 1.0]])
    table = parquet.read_table(path).to_pydict()
    assert table["completion"] == ["a\\ud83d", "b\x00"]
    assert table["rewards/rare"] == [None, 1.0]
    assert table["advantage"] == [-1.0, 1.0]
