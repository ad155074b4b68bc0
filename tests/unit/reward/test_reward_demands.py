from pathlib import Path

import pytest

from mmgrpo.errors import ConfigError, MediaError
from mmgrpo.reward.demands import check_rows, needs, without_value
from mmgrpo.reward.loading import load_reward
from mmgrpo.types import Sample


class Listed:
    """Samples with these answers, and a count of how many were made."""

    name = "rows.jsonl"

    def __init__(self, answers, **extras):
        self.answers, self.extras, self.made = answers, extras, 0
        self.columns = tuple(extras)

    def __len__(self):
        return len(self.answers)

    def __getitem__(self, row):
        self.made += 1
        if self.answers[row] == "broken":
            raise MediaError("cannot be read")
        extras = {name: values[row] for name, values in self.extras.items()}
        return Sample(id=str(row), messages=(), answer=self.answers[row], extras=extras)


def reward(function, **keys):
    return load_reward(function, base=Path(), **keys)


def test_a_reward_that_needs_a_truth_is_refused_where_no_row_has_one():
    needy = reward(lambda completions, answer: [])
    with pytest.raises(ConfigError, match=r"asks for answer[^$]*rows\.jsonl[^$]*None in all 3 rows"):
        check_rows([needy], Listed([None] * 3))
    check_rows([needy], Listed([None, None, 0]))
    check_rows([reward(lambda completions, answer=None: [])], Listed([None] * 3))
    check_rows([reward(lambda completions, **columns: [])], Listed([None] * 3))


def test_solution_is_the_truth_unless_the_data_has_a_column_of_that_name():
    asks = reward(lambda completions, solution: [])
    with pytest.raises(ConfigError, match="asks for answer"):
        check_rows([asks], Listed([None]))
    check_rows([asks], Listed([None], solution=["x"]))
    with pytest.raises(ConfigError, match="asks for solution"):
        check_rows([asks], Listed([3], solution=[None]))


def test_any_required_column_without_a_value_is_refused():
    asks = reward(lambda completions, nums, hint=None: [], name="count")
    with pytest.raises(ConfigError, match=r"count asks for nums[^$]*columns: hint, nums"):
        check_rows([asks], Listed([1, 2], nums=[None, None], hint=[None, None]))


def test_functions_of_easyr1_are_always_handed_the_truth():
    assert needs(reward(lambda reward_inputs: []), ["prompt"]) == ("answer",)


def test_one_row_is_enough_to_know_that_there_are_truths():
    rows = Listed(list(range(10_000)))
    assert without_value(rows, {"answer"})[0] == set()
    assert rows.made == 1


def test_rows_whose_media_cannot_be_read_are_passed_over():
    assert without_value(Listed(["broken", None, 3]), {"answer"})[0] == set()
    assert without_value(Listed(["broken", None]), {"answer"})[0] == {"answer"}
