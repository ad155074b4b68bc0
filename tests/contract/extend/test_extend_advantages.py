"""Advantages of a user's own: one file that the YAML names, and no edit elsewhere."""

import json

import pytest
from rich.console import Console

import mmgrpo
from mmgrpo.errors import TrainingError

OWN = """
import torch

class RunningMean:
    \"\"\"Reward minus the mean of all rewards so far (REINFORCE with a baseline); remembers it in checkpoints.\"\"\"

    def __init__(self, decay=0.9):
        self.decay, self.mean, self.calls = decay, 0.0, 0

    def compute(self, scored):
        baseline, self.calls = self.mean, self.calls + 1
        mean = float(torch.cat([one.totals for one in scored]).mean())
        self.mean = self.decay * self.mean + (1 - self.decay) * mean
        return [one.totals - baseline for one in scored]

    def state(self):
        return {"mean": self.mean, "calls": self.calls}

    def load_state(self, state):
        self.mean, self.calls = state["mean"], state["calls"]

def last_token_only(scored, scale=1.0):
    \"\"\"The whole credit to the last token of each completion, by the values of one reward.\"\"\"
    found = []
    for one in scored:
        values = one.rewards["letters"] - one.rewards["letters"].mean()
        rows = []
        for value, completion in zip(values, one.group.completions):
            row = torch.zeros(len(completion.token_ids), dtype=torch.float64)
            row[-1] = scale * value
            rows.append(row)
        found.append(rows)
    return found
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "own_advantages.py").write_text(OWN)
    return tmp_path / "own_advantages.py"


def written(run, step):
    files = sorted(run.folder.completions.glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [row for row in rows if row["step"] == step]


def logged(run, step):
    return [row["advantage"] for row in written(run, step)]


def rewards(run, step):
    return [row["rewards"]["letters"] for row in written(run, step)]


def test_a_class_is_asked_once_per_step_and_its_state_is_in_the_checkpoint(yaml_file, file):
    loss = {"advantages_fn": f"{file.name}:RunningMean", "advantages_args": {"decay": 0.5}}
    whole = mmgrpo.train(yaml_file("whole", loss=loss, train={"num_steps": 3}))
    means = [row["reward"] for row in whole.metrics()]
    baseline = 0.0
    for step, mean in enumerate(means, start=1):
        assert logged(whole, step) == pytest.approx([r - baseline for r in rewards(whole, step)])
        baseline = 0.5 * baseline + 0.5 * mean  # once per step: a second call would move it twice

    def stop(step, metrics):
        return step < 2

    path = yaml_file("half", loss=loss, train={"num_steps": 3})
    half = mmgrpo.train(path, on_step=stop)
    assert len(half.metrics()) == 2
    resumed = mmgrpo.train(resume=half.path)
    assert logged(resumed, 3) == pytest.approx(logged(whole, 3))
    assert resumed.metrics()[-1]["loss"] == pytest.approx(whole.metrics()[-1]["loss"], abs=1e-9)


def test_a_function_may_give_one_value_per_token(yaml_file, file):
    loss = {"advantages_fn": f"{file.name}:last_token_only", "advantages_args": {"scale": 2.0}}
    run = mmgrpo.train(yaml_file(loss=loss, train={"num_steps": 1}))
    assert run.metrics()[0]["optimizer_steps"] == 1
    group = rewards(run, 1)[:3]
    mean = sum(group) / 3
    lengths = [row["tokens"] for row in written(run, 1)][:3]
    expected = [2 * (r - mean) / n for r, n in zip(group, lengths, strict=True)]
    assert logged(run, 1)[:3] == pytest.approx(expected), "the log has the mean over a completion's tokens"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def own(scored): return [s.totals for s in scored][:1]", "a result for 1 groups"),
        ("def own(scored): return [s.totals[:2] for s in scored]", "Advantages cannot be used"),
        ("def own(scored): return [s.totals * float('inf') for s in scored]", "Advantages cannot be used"),
        ("def own(scored): return [['a', 'b', 'c'] for s in scored]", "own raised"),
        ("def own(scored): raise RuntimeError('tired')", "own raised(.|\\n)*tired"),
    ],
)
def test_advantages_that_do_not_fit_are_one_message(train, tmp_path, body, said):
    (tmp_path / "bad.py").write_text(body)
    with pytest.raises(TrainingError, match=said):
        train(loss={"advantages_fn": f"{tmp_path / 'bad.py'}:own"}, console=Console(quiet=True))
