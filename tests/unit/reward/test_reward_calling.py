import asyncio
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward.calling import acall, call, check_columns
from mmgrpo.reward.columns import table
from mmgrpo.reward.loading import load_reward
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.signature import missing_columns
from mmgrpo.types import Decoded


def score(function, groups=None, **kwargs):
    groups = groups or [pasted_group(["a", "bb"], answer=1, id="s0", color="red")]
    reward = load_reward(function, base=Path(), **kwargs)
    return call(reward, table(groups).columns, step=7).values


def read_numbers(completions):
    return [float(re.sub("x", "", text)) for text in completions]


def test_only_what_the_signature_names_is_passed():
    seen = {}

    def f(completions, color, trainer_state, log_metric=None):
        seen.update(locals())
        return [0.0] * len(completions)

    assert score(f) == [0.0, 0.0]
    assert seen["completions"] == ["a", "bb"]
    assert seen["color"] == ["red", "red"]
    assert seen["trainer_state"].global_step == 7


def test_kwargs_get_every_column():
    names = set()

    def f(completions, **columns):
        names.update(columns)
        return [0.0] * len(completions)

    score(f)
    assert {"answer", "solution", "color", "images", "audios", "videos", "ids", "finish_reasons", "group"} <= names
    assert {"prompts", "completion_ids", "trainer_state", "messages"} <= names


def test_media_arrive_decoded_and_shared():
    picture, sound = Image.new("RGB", (4, 4)), Decoded(kind="audio", data=np.zeros(8, np.float32), rate=16000)
    group = pasted_group(["a", "b"], media=[Decoded(kind="image", data=picture), sound])

    def f(completions, images, audios, videos):
        assert all(row == [picture] and row[0] is picture for row in images)
        assert audios == [[sound], [sound]]
        assert videos == [[], []]
        return [1.0, 1.0]

    assert score(f, [group]) == [1.0, 1.0]


def test_solution_is_the_answer_unless_the_data_has_its_own():
    assert score(lambda completions, solution: solution) == [1.0, 1.0]
    group = pasted_group(["a"], answer=1, solution=5)
    assert score(lambda completions, solution: solution, [group]) == [5.0]


def test_columns_of_some_samples_are_none_elsewhere():
    groups = [pasted_group(["a"], id="x", nums=1), pasted_group(["b"], id="y", other=2)]
    assert table(groups).columns["nums"] == [1, None]
    assert table(groups).columns["other"] == [None, 2]
    assert table(groups, known=["third"]).columns["third"] == [None, None]


def test_group_index_and_bounds():
    groups = [pasted_group(["a", "b"]), pasted_group(["c"])]
    rows = table(groups)
    assert rows.columns["group"] == [0, 0, 1]
    assert rows.bounds == ((0, 2), (2, 3))


def test_the_single_form_is_called_once_per_completion():
    calls = []

    def f(completion, answer, id):
        calls.append((completion, answer, id))
        return len(completion)

    assert score(f) == [1.0, 2.0]
    assert calls == [("a", 1, "s0"), ("bb", 1, "s0")]


@pytest.mark.parametrize(
    "values",
    [[1, 0.5], (1, 0.5), np.array([1, 0.5]), np.array([[1], [0.5]]), torch.tensor([1, 0.5]), [torch.tensor(1.0), 0.5],
     torch.tensor([1, 0.5], requires_grad=True), [np.float32(1), np.array([0.5])], [True, 0.5]],
)  # fmt: skip
def test_lists_arrays_and_tensors_are_accepted(values):
    assert score(lambda completions: values) == [1.0, 0.5]


def test_none_and_nan_mean_does_not_apply():
    values = score(lambda completions: [None, float("nan")])
    assert all(math.isnan(v) for v in values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0], "wrong number of values"), ([1.0] * 3, "expected: 2"), (["0.5", 1], "returned text"),
        ([float("inf"), 1], "infinite"), ([1, -np.inf], "completion 1"), ([[1], 2], "list"), ("ab", "text"),
        (None, "NoneType"), (1.0, "expected: a list"), ([{}, 1], "dict"), ([1j, 1], "complex"),
    ],
)  # fmt: skip
def test_anything_else_is_an_error_with_the_function_and_the_sample(values, words):
    def my_reward(completions):
        return values

    with pytest.raises(RewardError) as error:
        score(my_reward)
    assert words in str(error.value)
    assert "my_reward" in str(error.value)


def test_an_exception_names_function_line_and_samples():
    def boom(completions):
        raise KeyError("x")

    with pytest.raises(RewardError, match=r"boom raised KeyError(.|\n)*test_reward_calling.py:\d+(.|\n)*s0") as error:
        score(boom)
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "function",
    [
        lambda completions: [c[0]["content"] for c in completions],
        lambda completions: [c[0].get("content") for c in completions],
        lambda completions: [len(c[7]["content"]) for c in completions],
    ],
)
def test_a_trl_function_without_its_style_gets_a_hint(function):
    with pytest.raises(RewardError, match="set style: trl"):
        score(function)


@pytest.mark.parametrize("function", [lambda completions: [c.lower() for c in completions], read_numbers])
def test_a_function_of_texts_under_the_style_of_trl_gets_a_hint(function):
    with pytest.raises(RewardError, match="leave style out"):
        score(function, style="trl")


def test_an_ordinary_fault_gets_no_hint_of_a_style():
    with pytest.raises(RewardError) as error:
        score(lambda completions: [{"a": 1}[c] for c in completions])
    assert "style" not in str(error.value)


def test_the_line_is_that_of_the_users_file_and_not_of_the_library_that_it_called(tmp_path):
    (tmp_path / "reader_of_blame.py").write_text("import json\ndef read(text):\n    return json.loads(text)\n")
    (tmp_path / "mine.py").write_text(
        "import json, reader_of_blame\n"
        "def direct(completions):\n"
        "    return [json.loads(c)['x'] for c in completions]\n"
        "def through(completions):\n"
        "    return [reader_of_blame.read(c) for c in completions]\n"
        "class Judge:\n"
        "    def __init__(self, text='{}'): self.x = json.loads(text)\n"
        "    def __call__(self, completions):\n"
        "        return json.loads('{')\n"
    )
    for name, line, deeper in (("direct", 3, "decoder.py"), ("through", 5, "decoder.py"), ("Judge", 9, "decoder.py")):
        reward = load_reward(f"mine.py:{name}", base=tmp_path)
        with pytest.raises(RewardError, match="raised JSONDecodeError") as error:
            call(reward, table([pasted_group(["no json"])]).columns)
        where = next(text for text in str(error.value).splitlines() if "where:" in text)
        assert where.startswith(f"  where: {tmp_path / 'mine.py'}:{line} (return "), where
        assert deeper in where
    with pytest.raises(ConfigError, match=r"JSONDecodeError[^$]*mine\.py:7 "):
        load_reward("mine.py:Judge", base=tmp_path, args={"text": "no"})


def test_missing_columns_are_found_before_training():
    def f(completions, answer, truth, color=None):
        return []

    assert missing_columns(f, ["completions", "answer"]) == ("truth",)
    reward = load_reward(f, base=Path())
    with pytest.raises(ConfigError, match=r"truth(.|\n)*colour, size"):
        check_columns(reward, ["size", "colour"])
    check_columns(reward, ["truth"])


def test_the_single_form_with_an_unknown_column_is_refused_with_the_columns():
    with pytest.raises(ConfigError, match=r"truth(.|\n)*size"):
        check_columns(load_reward(lambda completion, truth: 0.0, base=Path()), ["size"])
    check_columns(load_reward(lambda completion, answer: 0.0, base=Path()), ["size"])


def test_a_column_with_a_taken_name_is_refused_only_when_asked_for():
    with pytest.raises(ConfigError, match="Rename the column"):
        check_columns(load_reward(lambda completions, group: [], base=Path()), ["group"])
    check_columns(load_reward(lambda completions: [], base=Path()), ["group"])


def test_a_missing_argument_at_the_call_is_a_config_error():
    with pytest.raises(ConfigError, match="nums"):
        score(lambda completions, nums: [])


def test_async_rewards_return_the_same_values():
    async def f(completions, answer):
        await asyncio.sleep(0)
        return [float(len(c)) for c in completions]

    async def single(completion):
        return float(len(completion))

    columns = table([pasted_group(["a", "bb"])]).columns
    for function in (f, single):
        assert asyncio.run(acall(load_reward(function, base=Path()), columns)).values == [1.0, 2.0]


def test_log_metric_and_log_extra_work_outside_a_run():
    def f(completions, log_metric, log_extra):
        log_metric("m", 2)
        log_extra("c", completions)
        return [0.0] * len(completions)

    values = call(load_reward(f, base=Path()), table([pasted_group(["a"])]).columns)
    assert values.journal.metrics == {"m": 2.0}
    assert values.journal.extra == {"c": ["a"]}


def test_a_reward_that_exits_is_an_error_and_does_not_end_the_run_in_silence():
    def leaves(completions):
        raise SystemExit(0)

    async def leaves_later(completions):
        raise SystemExit(0)

    with pytest.raises(RewardError, match=r"leaves raised SystemExit(.|\n)*test_reward_calling.py"):
        score(leaves)
    with pytest.raises(RewardError, match="leaves_later raised SystemExit"):
        asyncio.run(acall(load_reward(leaves_later, base=Path()), table([pasted_group(["a"])]).columns))


def test_a_number_too_large_for_a_float_is_infinite_and_refused():
    with pytest.raises(RewardError, match="infinite number for sample s0"):
        score(lambda completions: [10**400] * len(completions))
    metrics = lambda reward_inputs: [{"overall": 1.0, "huge": 10**400} for _ in reward_inputs]  # noqa: E731
    assert score(metrics) == [1.0, 1.0]


def test_one_number_for_all_completions_is_called_a_single_number():
    with pytest.raises(RewardError, match="returned a single number"):
        score(lambda completions: 1.0)


def test_columns_of_a_class_that_workers_will_build_are_checked_without_its_self():
    class Costly:
        def __call__(self, completions, color):
            return []

    reward = load_reward(Costly, base=Path(), build=False)
    check_columns(reward, ["color"])
    with pytest.raises(ConfigError, match="asks for color, which"):
        check_columns(reward, ["size"])


def test_arguments_that_do_not_fit_a_class_are_told_with_the_place_of_its_constructor(tmp_path):
    (tmp_path / "judges.py").write_text(
        "class Judge:\n    def __init__(self, model): pass\n    def __call__(self, completions): pass\n"
    )
    with pytest.raises(ConfigError, match=rf"missing 1 required[^$]*{tmp_path}/judges\.py:2\n"):
        load_reward("judges.py:Judge", base=tmp_path)
