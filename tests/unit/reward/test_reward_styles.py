from pathlib import Path

import pytest

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward.loading import load_reward
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum

GROUP = pasted_group(["a <answer>3</answer>", "four"], answer="3", id="s0", problem="how many?", nums=[1, 2])

TRL = """
import re
def accuracy_reward(completions: list[list[dict[str, str]]], solution: list[str], log_extra=None, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    assert all(c[0]["role"] == "assistant" for c in completions)
    assert kwargs["prompts"][0][-1]["role"] == "user"
    assert kwargs["trainer_state"].global_step == 3
    kwargs["log_metric"]("trl_metric", 0.5)
    if log_extra: log_extra("solution", list(solution))
    return [None if s is None else float(s in c) for c, s in zip(contents, solution, strict=True)]
class _Penalty:
    __name__ = "repetition_penalty_reward"
    def __call__(self, completion_ids, **kwargs): return [float(len(ids)) for ids in completion_ids]
penalty = _Penalty()
"""
SWIFT = """
import re
from typing import List
from swift.rewards import ORM, AsyncORM, orms
from swift.utils import get_logger
from swift.llm import Template, to_device
logger = get_logger()
class Right(ORM):
    def __init__(self, args=None, **kwargs):
        super().__init__(args, **kwargs)
        self.bonus = args.bonus
    def __call__(self, completions, solution, **kwargs) -> List[float]:
        assert all(isinstance(c, str) for c in completions)
        assert kwargs["is_truncated"] == [False, False] and kwargs["finish_reason"] == ["stop", "stop"]
        assert kwargs["nums"] == [[1, 2], [1, 2]] and kwargs["prompt_id"] == ["s0", "s0"]
        return [self.bonus + float(s in c) for c, s in zip(completions, solution)]
class Later(AsyncORM):
    async def __call__(self, completions, **kwargs): return [float(len(i)) for i in kwargs["response_token_ids"]]
class Odd(ORM):
    def __call__(self, infer_requests, solution, **kwargs): return [float(len(r)) for r in infer_requests]
orms["external_right"] = Right
"""
EASY_BATCH = """
REWARD_NAME = "mine"
REWARD_TYPE = "batch"
def compute_score(reward_inputs, format_weight: float = 0.5):
    if not isinstance(reward_inputs, list): raise ValueError("batch only")
    scores = []
    for r in reward_inputs:
        assert r["response_length"] == len(r["response"])
        right = float(r["ground_truth"] in r["response"])
        scores.append({"overall": right * (1 - format_weight), "accuracy": right})
    return scores
"""
EASY_SINGLE = """
def compute_score(reward_input, format_weight=0.5):
    if not isinstance(reward_input, dict): raise ValueError("sequential only")
    right = float(reward_input["ground_truth"] in reward_input["response"])
    return {"overall": right, "accuracy": right}
"""


def scorer(tmp_path, source, *entries):
    (tmp_path / "theirs.py").write_text(source)
    return RewardSum.from_config([Reward(fn=f"theirs.py:{e.pop('of')}", **e) for e in entries], tmp_path)


def test_trl_functions_and_callable_objects_run_unchanged(tmp_path):
    scores = scorer(tmp_path, TRL, {"of": "accuracy_reward", "style": "trl"}, {"of": "penalty", "style": "trl"})
    scores.check_columns(["problem", "nums"])
    [group] = scores.score([GROUP], step=3)
    assert scores.names == ("accuracy_reward", "repetition_penalty_reward")
    assert group.rewards["accuracy_reward"].tolist() == [1.0, 0.0]
    assert group.rewards["repetition_penalty_reward"].tolist() == [20.0, 4.0]
    assert scores.metrics()["trl_metric"].value == 0.5
    assert group.extra == {"solution": ["3", "3"]}


def test_swift_classes_run_unchanged_without_ms_swift(tmp_path):
    scores = scorer(tmp_path, SWIFT, {"of": "external_right", "args": {"bonus": 0.25}}, {"of": "Later"}, {"of": "Odd"})
    scores.check_columns(["nums"])
    [group] = scores.score([GROUP])
    assert scores.names == ("Right", "Later", "Odd")
    assert group.rewards["Right"].tolist() == [1.25, 0.25]
    assert group.rewards["Later"].tolist() == [20.0, 4.0]
    assert group.rewards["Odd"].tolist() == [20.0, 4.0]
    scores.close()


def test_the_stand_in_for_swift_leaves_nothing_behind(tmp_path):
    import sys

    scorer(tmp_path, SWIFT, {"of": "Later"}).close()
    assert not [name for name in sys.modules if name == "swift" or name.startswith("swift.")]


@pytest.mark.parametrize("source", [EASY_BATCH, EASY_SINGLE], ids=["batch", "sequential"])
def test_easyr1_scores_run_unchanged_and_their_metrics_are_shown(tmp_path, source):
    scores = scorer(tmp_path, source, {"of": "compute_score", "args": {"format_weight": 0.0}})
    scores.check_columns(["problem"])
    [group] = scores.score([GROUP])
    assert group.totals.tolist() == [1.0, 0.0]
    assert group.rewards["compute_score/accuracy"].tolist() == [1.0, 0.0]


def test_a_missing_easyr1_argument_is_found_before_training(tmp_path):
    source = "def compute_score(reward_inputs, max_response_length): return []"
    with pytest.raises(ConfigError, match="max_response_length"):
        scorer(tmp_path, source, {"of": "compute_score"}).check_columns(["problem"])


def test_an_easyr1_score_without_overall_is_refused(tmp_path):
    source = "def compute_score(reward_inputs): return [{'accuracy': 1.0} for _ in reward_inputs]"
    with pytest.raises(RewardError, match="overall"):
        scorer(tmp_path, source, {"of": "compute_score"}).score([GROUP])


def test_styles_are_known_by_their_shape():
    class ORM:
        pass

    class Mine(ORM):
        def __call__(self, completions, **kwargs):
            return []

    assert load_reward(Mine, base=Path()).style == "swift"
    assert load_reward(Mine(), base=Path()).style == "swift"
    assert load_reward(lambda reward_inputs: [], base=Path(), name="x").style == "easyr1"
    assert load_reward(lambda completions: [], base=Path(), name="x").style == "native"
