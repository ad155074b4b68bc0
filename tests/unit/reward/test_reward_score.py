import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum
from mmgrpo.running.step_metrics import reward_metrics

GROUPS = [pasted_group(["1", "22"], answer=1, id="a"), pasted_group(["333", "4444"], answer=3, id="b")]


def length(completions):
    return [float(len(c)) for c in completions]


def first_only(completions, ids):
    return [1.0 if i == "a" else None for i in ids]


def total(rewards, groups=GROUPS, **kwargs):
    return torch.cat([g.totals for g in RewardSum.from_config([], Path(), rewards, **kwargs).score(groups)]).tolist()


def yaml(tmp_path, source, *entries):
    (tmp_path / "mine.py").write_text(source)
    return RewardSum.from_config([Reward(fn=f"mine.py:{e.pop('of')}", **e) for e in entries], tmp_path)


def test_values_are_unweighted_and_totals_are_weighted_sums_over_what_applies():
    scored = RewardSum.from_config([], Path(), [length, first_only], weights=[0.5, 2]).score(GROUPS)
    assert [g.group for g in scored] == GROUPS
    assert scored[0].totals.dtype == torch.float64
    assert [g.totals.tolist() for g in scored] == [[2.5, 3.0], [1.5, 2.0]]
    assert scored[1].rewards["length"].tolist() == [3.0, 4.0]
    assert scored[1].rewards["first_only"].isnan().all()


def test_each_function_is_called_once_for_all_completions():
    calls = []

    def f(completions, trainer_state):
        calls.append((list(completions), trainer_state.global_step))
        return [0.0] * len(completions)

    RewardSum.from_config([], Path(), [f]).score(GROUPS, step=5)
    assert calls == [(["1", "22", "333", "4444"], 5)]


def test_no_groups_is_no_call():
    assert RewardSum.from_config([], Path(), [length]).score([]) == []


def test_nothing_applies_is_nan_with_one_warning_that_names_the_sample():
    scorer = RewardSum.from_config([], Path(), [first_only])
    with pytest.warns(UserWarning, match=r"2 of 4 completions \(first: sample b\)") as caught:
        scored = scorer.score(GROUPS)
        scorer.score(GROUPS)
    assert len(caught) == 1
    assert scored[1].totals.isnan().all()
    assert scored[0].totals.tolist() == [1.0, 1.0]


def test_names_must_be_unique_and_something_must_be_added(tmp_path):
    with pytest.raises(ConfigError, match="same name"):
        RewardSum.from_config([], Path(), [length, length])
    with pytest.raises(ConfigError, match="no reward to learn from"):
        RewardSum.from_config([], Path())
    with pytest.raises(ConfigError, match="no reward to learn from"):
        yaml(tmp_path, "def g(completions): return [1.0] * len(completions)", {"of": "g", "role": "gate"})


def test_the_yaml_may_name_a_reward(tmp_path):
    source = "def f(completions, by): return [by] * len(completions)"
    scorer = yaml(
        tmp_path, source, {"of": "f", "args": {"by": 1.0}}, {"of": "f", "name": "twice", "args": {"by": 2.0}}
    )
    assert scorer.names == ("f", "twice")
    assert scorer.score(GROUPS)[0].totals.tolist() == [3.0, 3.0]


def test_a_callable_object_is_called_by_its_own_name():
    class Named:
        __name__ = "pretty"

        def __call__(self, completions):
            return [0.0] * len(completions)

    class Plain:
        def __call__(self, completions):
            return [0.0] * len(completions)

    assert RewardSum.from_config([], Path(), [Named(), Plain()]).names == ("pretty", "Plain")


def test_gates_multiply_and_metrics_only_show(tmp_path):
    source = (
        "def f(completions): return [2.0] * 4\n"
        "def safe(completions): return [1.0, 0.0, None, 0.5]\n"
        "def shown(completions): return [9.0] * 4\n"
    )
    scorer = yaml(tmp_path, source, {"of": "f"}, {"of": "safe", "role": "gate"}, {"of": "shown", "role": "metric"})
    scored = scorer.score(GROUPS)
    assert torch.cat([g.totals for g in scored]).tolist() == [2.0, 0.0, 2.0, 1.0]
    assert scored[0].rewards["shown"].tolist() == [9.0, 9.0]


def test_a_gate_has_no_weight_and_no_scale():
    for key, value in (("weight", 0.5), ("scale", "group")):
        with pytest.raises(ValueError, match="no meaning with role: gate"):
            Reward(fn="a.py:b", role="gate", **{key: value})


def test_group_scaling_normalises_inside_each_group(tmp_path):
    scorer = yaml(
        tmp_path,
        "def f(completions): return [0.0, 1.0, 100.0, 300.0]\ndef same(completions): return [7.0] * 4",
        {"of": "f", "scale": "group"},
        {"of": "same", "scale": "group"},
    )
    totals = torch.cat([g.totals for g in scorer.score(GROUPS)])
    half = 0.5 / (0.5**0.5 + 1e-4)
    assert totals[:2].tolist() == pytest.approx([-half, half])
    assert totals[2:].tolist() == pytest.approx([-100 / (200 * 0.5**0.5 + 1e-4), 100 / (200 * 0.5**0.5 + 1e-4)])


def test_running_scaling_uses_the_whole_run_and_resumes(tmp_path):
    entry = {"of": "f", "scale": "running"}
    source = (
        "def f(completions, trainer_state): return [float(len(c)) + trainer_state.global_step for c in completions]"
    )
    straight = yaml(tmp_path, source, dict(entry))
    for step in range(3):
        last = torch.cat([g.totals for g in straight.score(GROUPS, step=step)])
    seen = torch.tensor([float(n + s) for s in range(3) for n in (1, 2, 3, 4)], dtype=torch.float64)
    assert last.tolist() == pytest.approx(((seen[-4:] - seen.mean()) / (seen.std() + 1e-4)).tolist())
    resumed = yaml(tmp_path, source, dict(entry))
    for step in range(2):
        resumed.score(GROUPS, step=step)
    fresh = yaml(tmp_path, source, dict(entry))
    fresh.load_state(resumed.state())
    assert torch.equal(torch.cat([g.totals for g in fresh.score(GROUPS, step=2)]), last)


def test_evaluation_leaves_running_means_alone(tmp_path):
    scorer = yaml(
        tmp_path, "def f(completions): return [float(len(c)) for c in completions]", {"of": "f", "scale": "running"}
    )
    scorer.score(GROUPS)
    before = scorer.state()
    scorer.score(GROUPS, training=False)
    assert scorer.state() == before


def test_an_error_stops_by_default():
    def boom(completions):
        raise ValueError("no")

    with pytest.raises(RewardError, match="boom raised ValueError"):
        total([boom])


def test_skip_group_loses_only_the_bad_group(tmp_path):
    source = (
        "def f(completions, ids):\n"
        "    if 'b' in ids: raise ValueError('bad b')\n"
        "    return [1.0] * len(completions)\n"
        "def g(completions): return [5.0] * len(completions)\n"
    )
    scorer = yaml(tmp_path, source, {"of": "f", "on_error": "skip_group"}, {"of": "g"})
    with pytest.warns(UserWarning, match="bad b"):
        scored = scorer.score(GROUPS)
    assert scored[0].totals.tolist() == [6.0, 6.0]
    assert scored[1].totals.isnan().all(), "the whole group is left out, not only this reward"
    assert scored[1].rewards["g"].tolist() == [5.0, 5.0]
    assert scorer.metrics()["rewards/f/errors"].value == 1.0


def test_a_reward_that_fails_everywhere_stops_even_then(tmp_path):
    scorer = yaml(tmp_path, "def f(completions): raise ValueError('always')", {"of": "f", "on_error": "skip_group"})
    with pytest.raises(RewardError, match=r"failed in every group(.|\n)*always") as error:
        scorer.score(GROUPS)
    assert "set on_error" not in str(error.value), "it is set already"


def test_metrics_show_spread_inside_groups_and_what_rewards_log():
    def varied(completions, log_metric, log_extra):
        log_metric("mine/x", 3)
        log_extra("note", [c.upper() for c in completions])
        return [0.0, 2.0, 5.0, 5.0]

    def cancels(completions, ids):
        return [1.0 if i == "a" else 4.0 for i in ids]

    scorer = RewardSum.from_config([], Path(), [varied, cancels])
    scored = scorer.score(GROUPS)
    figures, metrics = reward_metrics(scored), scorer.metrics()
    assert figures["rewards/varied/group_std"] == pytest.approx(2**0.5 / 2)
    assert figures["rewards/cancels/group_std"] == 0.0
    assert figures["rewards/varied/none_share"] == 0.0
    assert metrics["rewards/varied/seconds"].value >= 0.0
    assert metrics["mine/x"].value == 3.0
    assert [group.extra for group in scored] == [{"note": ["1", "22"]}, {"note": ["333", "4444"]}]


def test_missing_columns_are_found_before_training():
    scorer = RewardSum.from_config([], Path(), [lambda completions, nums: [0.0] * len(completions)])
    with pytest.raises(ConfigError, match="nums"):
        scorer.check_columns(["problem"])
    scorer.check_columns(["nums"])
    assert scorer.score(GROUPS)[0].totals.tolist() == [0.0, 0.0], "a known column may be absent in one step"


@given(st.permutations(range(6)))
def test_permuting_completions_permutes_totals(order):
    texts = ["", "a", "bb", "<answer>3</answer>", "ccc", "dddd"]
    straight = total([length], [pasted_group(texts)])
    assert total([length], [pasted_group([texts[i] for i in order])]) == [straight[i] for i in order]


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_totals_are_linear_in_the_weights(a, b):
    def other(completions):
        return [float(c.count("3")) for c in completions]

    mixed = total([length, other], weights=[a, b])
    alone = zip(total([length]), total([other]), strict=True)
    assert mixed == pytest.approx([a * x + b * y for x, y in alone])


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_a_gate_of_one_changes_nothing(values):
    from mmgrpo.reward.compose import combine

    rewards = torch.tensor(values, dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)
    assert torch.equal(combine([(1.0, rewards)], [ones]), combine([(1.0, rewards)], []))


def test_prefill_stands_before_the_completion():
    def f(completions):
        assert completions == ["<think>a</think>"]
        return [math.pi]

    assert total([f], [pasted_group(["a</think>"], prefill="<think>")]) == [math.pi]
