import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mmgrpo.errors import ConfigError
from mmgrpo.reward.paste import pasted_group, regroup
from mmgrpo.reward.score import RewardSum
from mmgrpo.reward.trial import advice, completions_table, summary_table, try_rewards
from mmgrpo.reward.workbench import list_rewards, new_reward, read_completions, rewards_page


def shown(table):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(table)
    return console.export_text()


def test_the_list_shows_every_shipped_reward_with_range_and_needs():
    rewards = {r.spec: r for r in list_rewards()}
    count = rewards["rewards/clevr_counting.py:count_accuracy"]
    assert (count.facts.range, count.needs) == ("0 to 1", ("answer",))
    assert {"mode", "numerals"} <= set(count.args)
    assert rewards["rewards/clip.py:ClipScore"].needs == ("images",)
    assert rewards["rewards/clip.py:ClipScore"].facts.extra == "clip"
    assert rewards["rewards/choice.py:choice_accuracy"].needs == ("answer", "(options)", "(choices)")
    assert set(rewards["rewards/length.py:soft_overlong"].args) == {"max_length*", "cache_length*"}
    assert all(r.line.endswith((".", ":", ",")) or r.line for r in rewards.values())
    text = shown(rewards_page(list(rewards.values())))
    assert "count_accuracy" in text and "mmgrpo[clip]" in text


def test_every_shipped_reward_says_meaning_range_and_source():
    import mmgrpo

    for reward in list_rewards():
        name, _, function = reward.spec.removeprefix("rewards/").partition(":")
        doc = getattr(mmgrpo.load_plugin(name, beside=__file__), function).__doc__
        assert "Source:" in doc, reward.spec
        assert "Returns:" in doc or "Args:" in doc, reward.spec
        assert reward.facts.range != "any number" or function == "RewardModel"


def test_a_trial_shows_spread_ties_failures_and_time():
    def length(completions):
        return [float(len(c)) for c in completions]

    def constant(completions):
        return [1.0] * len(completions)

    groups = [pasted_group(["a", "bb\n\x1b[31m"], id="s0"), pasted_group(["c", "d"], id="s1")]
    trial = try_rewards(RewardSum.from_config([], Path(), [length, constant]), groups)
    assert trial.spread["constant"] == 0.0
    assert trial.spread["length"] > 0
    assert (trial.ties, trial.groups) == (1, 2)
    assert trial.totals.tolist() == [2.0, 9.0, 2.0, 2.0]
    assert any("constant" in line and "cancels" in line for line in advice(trial))
    assert any("1 of 2 groups" in line for line in advice(trial))
    text = shown(completions_table(trial))
    assert "s0" in text and "\x1b" not in text
    assert "ms per completion" in shown(summary_table(trial))


def test_one_failing_reward_does_not_hide_the_others():
    def boom(completions):
        raise ValueError("no")

    def fine(completions):
        return [1.0] * len(completions)

    trial = try_rewards(RewardSum.from_config([], Path(), [boom, fine]), [pasted_group(["a"])])
    assert trial.totals is None
    assert "boom raised ValueError" in trial.errors["boom"]
    assert trial.values["fine"].tolist() == [1.0]
    assert "failed" in shown(summary_table(trial))


def test_completions_are_read_from_lines_blocks_and_rows(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("one\nmore\n---\ntwo\n")
    (tmp_path / "c.jsonl").write_text('{"completion": "one\\nmore", "reward": 1}\n{"completion": "two"}\n')
    assert read_completions(tmp_path / "a.txt") == ["one", "two"]
    assert read_completions(tmp_path / "b.txt") == ["one\nmore", "two"]
    assert read_completions(tmp_path / "c.jsonl") == ["one\nmore", "two"]
    (tmp_path / "d.jsonl").write_text('{"completion": "a"}\n{"text": "b"}\n')
    with pytest.raises(ConfigError, match=r"no completion(.|\n)*d.jsonl:2"):
        read_completions(tmp_path / "d.jsonl")
    (tmp_path / "e.txt").write_text("")
    with pytest.raises(ConfigError, match="no completions"):
        read_completions(tmp_path / "e.txt")


def test_given_texts_take_the_place_of_completions_of_a_real_prompt():
    prompt = pasted_group(["x"], answer=3, id="s7").prompt
    group = regroup(prompt, ["", "two"])
    assert group.prompt is prompt
    assert [c.text for c in group.completions] == ["", "two"]
    assert all(len(c.token_ids) >= 1 for c in group.completions)


def test_a_new_reward_works_and_its_test_passes(tmp_path):
    file, test = new_reward("sees_red", tmp_path / "mine")
    assert "def sees_red(" in file.read_text()
    [reward] = list_rewards(tmp_path / "mine")[:1]
    assert reward.spec == "mine/sees_red.py:sees_red"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", str(file), str(test)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@pytest.mark.parametrize("name", ["two words", "Clip", "1st", "a/b", "", "class"])
def test_a_new_reward_needs_a_python_name(name, tmp_path):
    with pytest.raises(ConfigError, match="Python name"):
        new_reward(name, tmp_path)


def test_a_list_of_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        list_rewards(tmp_path / "nowhere")


def test_a_new_reward_never_overwrites(tmp_path):
    new_reward("mine", tmp_path)
    with pytest.raises(ConfigError, match="there already"):
        new_reward("mine", tmp_path)
