"""Rewards given in Python may carry the keys of the YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgrpo import ConfigError
from mmgrpo.reward.score import RewardSum


def written_for_trl(completions, **columns):
    return [float(completion[0]["content"] == "x") for completion in completions]


def test_an_entry_gives_a_function_weight_style_and_name():
    entry = {"fn": written_for_trl, "style": "trl", "weight": 0.5, "name": "mine"}
    rewards = RewardSum.from_config((), Path(), [entry, "rewards/format.py:answer_only"])
    assert rewards.names == ("mine", "answer_only")
    assert [term.weight for term in rewards.terms] == [0.5, 1.0]
    assert rewards.terms[0].reward.style == "trl"


@pytest.mark.parametrize("entry", [{"fn": written_for_trl, "weigth": 1}, {"weight": 1}, {"fn": 3}])
def test_a_wrong_entry_is_refused_with_the_keys_there_are(entry):
    with pytest.raises(ConfigError, match="reward 0 given in Python"):
        RewardSum.from_config((), Path(), [entry])
