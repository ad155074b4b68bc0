from pathlib import Path

from mmgrpo.config.rewards import Reward
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum


def test_r09_a_think_tag_that_the_template_wrote_counts_for_the_form():
    scorer = RewardSum.from_config([Reward(fn="rewards/format.py:think_answer")], Path())
    text = "reason</think><answer>3</answer>"
    [with_tail] = scorer.score([pasted_group([text, text], prefill="<think>")])
    [without] = scorer.score([pasted_group([text, text])])
    assert with_tail.totals.tolist() == [1.0, 1.0]
    assert without.totals.tolist() == [0.0, 0.0]
