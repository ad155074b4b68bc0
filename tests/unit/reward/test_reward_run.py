import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum
from mmgrpo.types import Decoded

GROUPS = [pasted_group(["1", "22"], id="a"), pasted_group(["333", "4444"], id="b"), pasted_group(["5"], id="c")]
SOURCE = """
import os, time, ctypes
def length(completions): return [float(len(c)) for c in completions]
def pid(completions): return [float(os.getpid())] * len(completions)
def stuck(completions, ids):
    while "b" in ids: pass
    return [1.0] * len(completions)
def stuck_in_c(completions, ids):
    if "b" in ids: ctypes.CDLL(None).sleep(60)
    return [1.0] * len(completions)
def dies(completions, ids):
    if "b" in ids: os.kill(os.getpid(), 9)
    return [1.0] * len(completions)
def prints(completions, log_metric, trainer_state):
    print("noise on standard output")
    log_metric("m", trainer_state.global_step)
    return [0.0] * len(completions)
def size(completions, images): return [float(row[0].size[0]) for row in images]
def bad(completions): return ["x"] * len(completions)
class Costly:
    made = []
    def __init__(self, start): self.start = start; Costly.made.append(os.getpid())
    def __call__(self, completions): return [self.start] * len(completions)
class DiesAtStart:
    def __init__(self): os._exit(1)
    def __call__(self, completions): return [1.0] * len(completions)
class SlowStart:
    def __init__(self): time.sleep(0.6)
    def __call__(self, completions): return [1.0] * len(completions)
"""


@pytest.fixture
def scorer_of(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    made = []

    def make(*entries, extra=()):
        rewards = [Reward(fn=f"mine.py:{e.pop('of')}", **e) for e in entries]
        made.append(RewardSum.from_config(rewards, tmp_path, extra))
        return made[-1]

    yield make
    for scorer in made:
        scorer.close()


def totals(scored):
    return torch.cat([g.totals for g in scored]).tolist()


def test_workers_give_the_same_values_in_other_processes(scorer_of):
    scorer = scorer_of({"of": "length", "workers": 2}, {"of": "pid", "role": "metric", "workers": 2})
    scored = scorer.score(GROUPS)
    assert totals(scored) == [1.0, 2.0, 3.0, 4.0, 1.0]
    assert os.getpid() not in {int(v) for g in scored for v in g.rewards["pid"].tolist()}


def test_pictures_and_metrics_cross_the_process_border(scorer_of):
    picture = Decoded(kind="image", data=Image.new("RGB", (9, 3)))
    scorer = scorer_of({"of": "size", "workers": 1}, {"of": "prints", "workers": 1})
    assert totals(scorer.score([pasted_group(["a"], media=[picture])], step=4)) == [9.0]
    assert scorer.metrics()["m"].value == 4.0


@pytest.mark.parametrize("of", ["stuck", "stuck_in_c"])
def test_a_stuck_call_is_cut_off_and_the_worker_replaced(scorer_of, of):
    scorer = scorer_of({"of": of, "timeout_seconds": 1.0, "on_error": "skip_group"})
    start = time.monotonic()
    with pytest.warns(UserWarning, match="longer than its time limit"):
        scored = scorer.score(GROUPS)
    assert time.monotonic() - start < 8
    assert scored[0].totals.tolist() == [1.0, 1.0]
    assert scored[1].totals.isnan().all()
    assert scored[2].totals.tolist() == [1.0]
    assert totals(scorer.score([GROUPS[0]])) == [1.0, 1.0], "the pool goes on"


def test_a_time_limit_stops_the_run_by_default_and_names_the_sample(scorer_of):
    scorer = scorer_of({"of": "stuck", "timeout_seconds": 0.5})
    with pytest.raises(RewardError, match=r"stuck(.|\n)*samples b(.|\n)*0.5 seconds"):
        scorer.score(GROUPS)


def test_a_process_that_dies_is_an_error_with_the_sample(scorer_of):
    scorer = scorer_of({"of": "dies", "workers": 1})
    with pytest.raises(RewardError, match=r"dies died(.|\n)*samples b"):
        scorer.score(GROUPS)


def test_a_process_that_dies_while_it_starts_is_an_error_with_the_spec(scorer_of):
    with pytest.raises(ConfigError, match=r"died while it loaded(.|\n)*mine.py:DiesAtStart"):
        scorer_of({"of": "DiesAtStart", "workers": 1}).score(GROUPS)


def test_starting_a_worker_does_not_count_against_the_limit(scorer_of):
    assert totals(scorer_of({"of": "SlowStart", "timeout_seconds": 0.3}).score(GROUPS[:1])) == [1.0, 1.0]


def test_a_class_is_built_only_in_its_workers(scorer_of):
    scorer = scorer_of({"of": "Costly", "args": {"start": 2.0}, "workers": 1})
    assert totals(scorer.score(GROUPS[:1])) == [2.0, 2.0]
    module = sys.modules[scorer.terms[0].reward.function.__module__]
    assert module.Costly.made == []


def test_errors_of_workers_are_the_same_errors(scorer_of):
    with pytest.raises(RewardError, match=r"bad returned text(.|\n)*sample a|bad returned text for sample a"):
        scorer_of({"of": "bad", "workers": 1}).score(GROUPS[:1])


def test_a_python_object_cannot_have_workers():
    from mmgrpo.reward.run import Loop
    from mmgrpo.reward.term import make_term

    with pytest.raises(ConfigError, match="worker process"):
        make_term(lambda completions: [], Reward(fn="x", workers=1), base=Path(), loop=Loop())


def test_close_ends_all_processes(scorer_of):
    scorer = scorer_of({"of": "pid", "workers": 2})
    pids = {int(v) for v in totals(scorer.score(GROUPS))}
    scorer.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_async_rewards_run_together_and_beside_others():
    order = []

    async def slow(completions):
        order.append("start")
        await asyncio.sleep(0.2)
        order.append("end")
        return [1.0] * len(completions)

    async def slower(completions):
        return await slow(completions)

    def sync(completions):
        order.append("sync")
        return [1.0] * len(completions)

    scorer = RewardSum.from_config([], Path(), [sync, slow, slower])
    start = time.monotonic()
    assert totals(scorer.score(GROUPS[:1])) == [3.0, 3.0]
    assert time.monotonic() - start < 0.38
    assert order.index("end") > order.index("sync")
    scorer.close()


def test_async_rewards_work_inside_a_running_loop_and_in_threads():
    async def f(completions):
        await asyncio.sleep(0)
        return [1.0] * len(completions)

    scorer = RewardSum.from_config([], Path(), [f])

    async def notebook():
        return totals(scorer.score(GROUPS[:1]))

    assert asyncio.run(notebook()) == [1.0, 1.0]
    results = []
    threads = [threading.Thread(target=lambda: results.append(totals(scorer.score(GROUPS[:1])))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1.0, 1.0]] * 3
    scorer.close()


def test_async_rewards_have_a_time_limit_too(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import asyncio, time\n"
        "async def sleeps(completions, ids):\n"
        "    if 'b' in ids: await asyncio.sleep(30)\n"
        "    return [1.0] * len(completions)\n"
        "async def blocks(completions):\n"
        "    time.sleep(4)\n"
    )
    entry = Reward(fn="mine.py:sleeps", timeout_seconds=0.3, on_error="skip_group")
    scorer = RewardSum.from_config([entry], tmp_path)
    with pytest.warns(UserWarning, match="time limit"):
        scored = scorer.score(GROUPS)
    assert [g.totals.isnan().any().item() for g in scored] == [False, True, False]
    blocked = RewardSum.from_config([Reward(fn="mine.py:blocks", timeout_seconds=0.2)], tmp_path)
    with pytest.raises(RewardError, match=r"time limit(.|\n)*set on_error: skip_group"):
        blocked.score(GROUPS)


def test_pure_rewards_are_computed_once_for_equal_arguments(tmp_path):
    (tmp_path / "pure.py").write_text(
        "from mmgrpo import reward_facts\n"
        "calls = []\n"
        "@reward_facts(pure=True)\n"
        "def f(completions, answer, images):\n"
        "    calls.append(list(completions))\n"
        "    return [float(len(c)) * a + len(i) for c, a, i in zip(completions, answer, images)]\n"
    )

    def run(**extra):
        return RewardSum.from_config([Reward(fn="pure.py:f", **extra)], tmp_path)

    def picture(colour):
        return [Decoded(kind="image", data=Image.new("RGB", (4, 4), colour))]

    scorer = run()
    groups = [pasted_group(["a", "a", "bb"], answer=1), pasted_group(["a", "bb"], answer=2)]
    assert totals(scorer.score(groups)) == [1.0, 1.0, 2.0, 2.0, 4.0]
    calls = next(m for n, m in sys.modules.items() if n.startswith("mmgrpo_plugin_pure")).calls
    assert calls == [["a", "bb", "a", "bb"]]
    assert totals(scorer.score(groups)) == [1.0, 1.0, 2.0, 2.0, 4.0]
    assert len(calls) == 1
    assert totals(scorer.score([pasted_group(["a"], answer=1, media=picture("red"))])) == [2.0]
    scorer.score([pasted_group(["a"], answer=1, media=picture("red"))])
    assert len(calls) == 2
    scorer.score([pasted_group(["a"], answer=1, media=picture("blue"))])
    assert len(calls) == 3, "another picture of the same size is another key"
    assert totals(run(cache=False).score(groups)) == [1.0, 1.0, 2.0, 2.0, 4.0]
    assert calls[-1] == ["a", "a", "bb", "a", "bb"]


def test_a_pure_reward_that_fails_for_one_group_loses_its_twins_only(tmp_path):
    (tmp_path / "pure2.py").write_text(
        "from mmgrpo import reward_facts\n"
        "@reward_facts(pure=True)\n"
        "def f(completions):\n"
        "    if 'x' in completions: raise ValueError('x')\n"
        "    return [1.0] * len(completions)\n"
    )
    scorer = RewardSum.from_config([Reward(fn="pure2.py:f", on_error="skip_group")], tmp_path)
    groups = [pasted_group(["x", "a"]), pasted_group(["b", "c"]), pasted_group(["x"])]
    with pytest.warns(UserWarning, match="ValueError"):
        scored = scorer.score(groups)
    assert [g.totals.isnan().all().item() for g in scored] == [True, False, True]
