"""Running an evaluation, with the engine that replays texts and rewards that are plain functions."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmgrpo.config.load import load_config
from mmgrpo.errors import ConfigError, ProcessorError
from mmgrpo.evaluation.evaluator import SuiteEvaluator, ground_truth_text
from mmgrpo.evaluation.files import read_evaluation, write_evaluation
from mmgrpo.evaluation.suites import open_metric, open_suites
from mmgrpo.evaluation.tables import table_rows
from mmgrpo.observe.runfolder import RunFolder
from mmgrpo.reward.score import RewardSum
from mmgrpo.rollout.scripted import ScriptedEngine
from mmgrpo.types import Decoded, Prompt, Sample, Sampling

SCRIPT = {
    "a": ["<answer>3</answer>", "<answer>4</answer>"],
    "b": ["five", "<answer>5</answer>"],
    "c": ["<answer>1</answer>", "<answer>1</answer> and on and on and on"],
}
TRUTHS = {"a": "<answer> 3 </answer>", "b": 5, "c": 2}


def sample(name):
    return Sample(id=name, messages=(), answer=TRUTHS[name])


def encode(sample, place, colour="red"):
    picture = Decoded(kind="image", data=Image.new("RGB", (4, 4), colour), name=f"{sample.id}.png")
    return Prompt(
        sample=sample, text=f"how many in {sample.id}?", token_ids=torch.zeros(1), model_inputs={}, media=(picture,),
        draw_index=place,
    )  # fmt: skip


def exact(completions, answer):
    return [
        1.0 if f"<answer>{ground_truth_text(a)}</answer>" in c else 0.0
        for c, a in zip(completions, answer, strict=True)
    ]


def short(completions):
    return [None if "on" in c else 0.5 for c in completions]


def suite_of(names="abc", *, sampling=None, **section):
    config = load_config(None, {"model.name": "tiny:x", "eval": {"num_generations": 2, "batch_size": 1, **section}})
    sampling = sampling or Sampling(max_completion_length=28, seed=3)
    samples = {"": [sample(n) for n in names]}
    (suite,) = open_suites(config, samples, sampling=sampling, rewards={"exact": exact, "short": short}, folder=Path())
    return suite


def run(suite=None, engine=None, names="abc", encode=encode, threads=0, on_rows=lambda rows: None, step=0):
    rewards = RewardSum.from_config((), Path(), [exact, short])
    engine = engine or ScriptedEngine(SCRIPT)
    evaluator = SuiteEvaluator(engine, rewards, encode, [suite or suite_of(names)], threads=threads)
    return evaluator.evaluate(step, on_rows=on_rows)


def test_e03_groups_larger_than_the_batch_are_judged_whole():
    report = run()
    assert report.greedy.accuracy == pytest.approx(1 / 3)  # a
    assert report.sampled.accuracy == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert report.greedy.format_rate == pytest.approx(2 / 3)
    assert report.sampled.format_rate == pytest.approx((1 + 0.5 + 1) / 3)
    assert report.sampled.accuracy_well_formed == pytest.approx(1.0 / 2.5)
    assert report.sampled.truncated == pytest.approx(0.5 / 3)
    assert report.sampled.by_answer == {"2": (0.0, 1), "3": (0.5, 1), "5": (0.5, 1)}
    assert report.sampled_rows[2].rewards["short"] == (0.5, None)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 256])
def test_e01_any_batch_size_and_any_number_of_rows_give_the_same_report(batch_size):
    report = run(suite_of(batch_size=batch_size))
    assert report.greedy_rows == run().greedy_rows
    assert report.sampled_rows == run().sampled_rows


def test_e01_one_greedy_completion_per_row_is_enough():
    engine = ScriptedEngine(SCRIPT)
    report = run(suite_of(sampled=False, num_generations=1), engine)
    assert report.sampled is None
    assert [(ids, counts) for ids, counts, _ in engine.calls] == [(("a",), (1,)), (("b",), (1,)), (("c",), (1,))]
    assert {sampling.temperature for *_, sampling in engine.calls} == {0.0}


def test_greedy_takes_no_cuts_and_sampling_draws_from_streams_of_its_own():
    engine = ScriptedEngine(SCRIPT)
    sampling = Sampling(max_completion_length=9, temperature=0.7, top_p=0.5, top_k=3, min_p=0.2, seed=3)
    run(suite_of(sampling=sampling, batch_size=3), engine)
    (_, _, greedy), (_, counts, sampled) = engine.calls
    assert (greedy.temperature, greedy.top_p, greedy.top_k, greedy.min_p) == (0.0, 1.0, 0, 0.0)
    assert counts == (2, 2, 2)
    assert sampled == replace(sampling, stream="eval", seed=1234)  # not the rollout's


def test_prompts_are_numbered_by_their_place_so_that_batches_change_no_stream():
    engine = ScriptedEngine(SCRIPT)
    seen = []

    def watched(sample, place):
        seen.append((sample.id, place))
        return encode(sample, place)

    run(suite_of(batch_size=2), engine, encode=watched)
    assert seen == [("a", 0), ("b", 1), ("c", 2)]  # and each prompt is made once for both ways of decoding


def test_running_means_of_rewards_are_left_alone():
    seen = []

    class Rewards:
        names = ("exact",)

        def score(self, groups, *, step=0, training=True):
            seen.append((step, training))
            return RewardSum.from_config((), Path(), [exact]).score(groups)

    SuiteEvaluator(ScriptedEngine(SCRIPT), Rewards(), encode, [suite_of("a")]).evaluate(7)
    assert set(seen) == {(7, False)}


def test_progress_is_told_batch_by_batch():
    done = []
    run(suite_of(batch_size=2), on_rows=done.append)
    assert done == [2, 2, 1, 1]


def test_the_metric_is_the_one_that_is_named_or_the_first_reward():
    def named(name):
        return open_metric(name, ["x", "y"], folder=Path(), where="eval.metric").name

    assert (named(None), named("y")) == ("x", "y")
    with pytest.raises(ConfigError, match=r"eval\.metric names no reward(.|\n)*x, y(.|\n)*z"):
        named("z")
    assert run(suite_of(metric="short")).greedy.accuracy == 0.0  # 0.5 is not right


MAJORITY = """
from collections import Counter

def majority(completions, answer, rewards):
    assert set(rewards) == {"exact", "short"}
    best, _ = Counter(completions).most_common(1)[0]
    return float(str(answer) in best)

def broken(completions):
    raise SystemExit("no")
"""


def test_a_metric_of_a_users_own_is_one_function_of_a_rows_completions(tmp_path):
    (tmp_path / "mine.py").write_text(MAJORITY)
    report = run(suite_of(metric=f"{tmp_path / 'mine.py'}:majority"))
    assert [row.correct for row in report.greedy_rows] == [0.0, 0.0, 0.0]  # "3" stands between tags with spaces
    assert report.settings["metric"].endswith("mine.py:majority")
    with pytest.raises(ConfigError, match=r"mine.py:broken failed(.|\n)*sample a(.|\n)*SystemExit: no"):
        run(suite_of(metric=f"{tmp_path / 'mine.py'}:broken"))


def test_several_suites_are_one_report_with_metrics_and_files_of_their_own(tmp_path):
    rewards = RewardSum.from_config((), Path(), [exact, short])
    main, hard = suite_of("ab"), replace(suite_of("c", metric="short"), name="hard")
    hard = replace(hard, decodings=hard.decodings[1:])
    report = SuiteEvaluator(ScriptedEngine(SCRIPT), rewards, encode, [main, hard]).evaluate(5)
    assert {suite: list(found) for suite, found in report.scores().items()} == {
        "": ["greedy", "sampled"],
        "hard": ["sampled"],
    }
    metrics = report.metrics()
    assert {"eval/accuracy", "eval/sampled/accuracy", "eval/hard/sampled/accuracy"} <= set(metrics)
    assert not [name for name in metrics if name.startswith("eval/hard/") and "sampled" not in name]
    write_evaluation(RunFolder(tmp_path), report, name="x")
    assert read_evaluation(RunFolder(tmp_path), name="x").results == report.results
    assert {"accuracy (exact), greedy", "mean of short, hard, sampled"} <= set(table_rows(report))


def test_e04_the_same_evaluation_twice_gives_the_same_report_but_for_its_seconds():
    first, second = run(), run()
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_e04_the_settings_hold_all_that_pins_the_number():
    found = run().settings
    assert {
        "model", "template", "columns", "max_pixels", "min_pixels", "chat_template_kwargs", "rewards", "metric",
        "reward_settings", "well_formed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop",
        "max_completion_length", "seed", "num_generations", "rows", "data_sha256",
    } <= set(found)  # fmt: skip
    assert (found["rows"], found["metric"], found["seed"]) == (3, "exact", 1234)


@pytest.mark.parametrize("changed", ["answer", "text", "picture", "order", "fewer"])
def test_e04_the_data_hash_changes_with_what_is_asked_shown_or_true(changed, monkeypatch):
    before = run().settings["data_sha256"]
    names, how = "abc", encode
    if changed == "answer":
        monkeypatch.setitem(TRUTHS, "c", 4)
    elif changed == "text":
        how = lambda sample, place: replace(encode(sample, place), text="another question")  # noqa: E731
    elif changed == "picture":
        how = lambda sample, place: encode(sample, place, colour=(255, 0, 1))  # noqa: E731
    else:
        names = "acb" if changed == "order" else "ab"
    assert run(names=names, encode=how).settings["data_sha256"] != before


@pytest.mark.parametrize(
    ("answer", "text"),
    [("<answer> 3 </answer>", "3"), (7, "7"), (" red ", "red"), ("<answer>", "<answer>"), (None, "None")],
)
def test_the_truth_of_a_table_is_the_content_of_its_tag(answer, text):
    assert ground_truth_text(answer) == text


@pytest.mark.parametrize("threads", [1, 3])
def test_prompts_made_ahead_give_the_same_report(threads):
    suite = suite_of(batch_size=2)
    assert run(suite, threads=threads).greedy_rows == run(suite).greedy_rows
    assert run(suite, threads=threads).settings["data_sha256"] == run(suite).settings["data_sha256"]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_a_later_batch_does_not_lose_the_batches_before_it(threads):
    done = []

    def refuse(sample, place):
        if sample.id == "c":
            raise ProcessorError("too long")
        return encode(sample, place)

    with pytest.raises(ProcessorError, match="too long"):
        run(suite_of(batch_size=2), encode=refuse, threads=threads, on_rows=done.append)
    assert done == [2, 2]
