"""``mmgrpo rewards``: what each word does, and what a mistake says."""

from __future__ import annotations

import pytest

from mmgrpo.cli import main

SMALL = [
    "model.name=tiny:qwen2_5_vl",
    "data.train={synthetic: counting, rows: 8}",
    "rewards=[{fn: 'rewards/clevr_counting.py:count_accuracy'}]",
    "rollout.num_generations=2",
    "rollout.max_completion_length=4",
]


@pytest.fixture
def yaml(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("model: {name: 'tiny:qwen2_5_vl'}\n", encoding="utf-8")
    return str(path)


def test_list_names_every_shipped_reward_in_one_piece(capsys):
    assert main(["rewards", "list"]) == 0
    printed = capsys.readouterr().out
    assert "rewards/clevr_counting.py:count_accuracy " in printed and "rewards/judge.py:" in printed


def test_try_scores_what_the_policy_writes(yaml, capsys):
    assert main(["rewards", "try", yaml, *SMALL, "-n", "3"]) == 0
    assert capsys.readouterr().out.count("scene-") == 3


def test_try_scores_pasted_completions_against_the_rows(yaml, tmp_path, capsys):
    file = tmp_path / "pasted.txt"
    file.write_text("".join(f"<answer>{n}</answer>\n" for n in range(1, 9)), encoding="utf-8")
    assert main(["rewards", "try", yaml, *SMALL, "rollout.num_generations=8", "--completions", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "0.125" in printed  # one of the counts from 1 to 8 is right
    assert "truth" in printed and printed.count("scene-0-") == 8


def test_try_exits_with_1_when_a_reward_fails(yaml, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def broken(completions, **columns):\n    raise KeyError('gone')\n")
    words = ["rewards", "try", yaml, *SMALL, "rewards=[{fn: 'mine.py:broken'}]", "-n", "2"]
    assert main(words) == 1
    printed = capsys.readouterr().out
    assert "Reward broken raised KeyError: 'gone'." in printed.splitlines()  # whole, not in a narrow cell
    assert "mine.py:2" in printed


def test_new_writes_a_reward_and_its_test(tmp_path, capsys):
    assert main(["rewards", "new", "sees_red", "--folder", str(tmp_path)]) == 0
    assert (tmp_path / "sees_red.py").is_file() and (tmp_path / "test_sees_red.py").is_file()
    assert "sees_red.py:sees_red" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["rewards", "new"],
        ["rewards", "try"],
        ["rewards", "new", "Not A Name"],
        ["rewards", "new", "a", "b"],
        ["rewards", "list", "rewards", "more"],
    ],
)
def test_a_missing_or_wrong_word_is_one_sentence_and_exit_code_2(words, capsys):
    assert main(words) == 2
    assert "fix:" in capsys.readouterr().err
