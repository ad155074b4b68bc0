"""Field cases C04 and C09: which rows a run has seen, read from its own log of completions."""

import json
from collections import Counter

import pytest

import mmgrpo

ROWS = [{"problem": f"Say {n}.", "solution": str(n), "name": f"row-{n}"} for n in range(10)]


def ids_by_step(folder):
    """Sample ids of every step, one per group."""
    found = {}
    for file in sorted((folder / "completions").glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        found[rows[0]["step"]] = list(dict.fromkeys(row["sample"] for row in rows))
    return found


@pytest.fixture
def text_run(train):
    """Train on rows of text."""

    def run(rows, name="run", *, on_step=None, **changes):
        data = {"columns": {"image": None, "id": "name"}, "eval": None}
        return train(name, train_rows=rows, on_step=on_step, data=data, **changes)

    return run


@pytest.mark.parametrize("threads", [0, 2])
def test_c04_after_a_resume_come_new_rows_and_each_row_once_an_epoch(threads, text_run):
    stopped = text_run(ROWS, train={"num_steps": 7}, on_step=lambda step, metrics: step < 2)
    assert set(ids_by_step(stopped.path)) == {1, 2}
    mmgrpo.train(resume=stopped.path, train_rows=ROWS, overrides={"data.prefetch": threads})
    steps = ids_by_step(stopped.path)
    assert list(steps) == [1, 2, 3, 4, 5, 6, 7]
    epoch = [name for step in range(1, 6) for name in steps[step]]
    assert sorted(epoch) == sorted(row["name"] for row in ROWS)
    assert not set(steps[1] + steps[2]) & set(steps[3] + steps[4] + steps[5])
    assert steps[6] + steps[7] != steps[1] + steps[2]  # the next epoch has an order of its own


def test_c04_a_resume_in_the_second_epoch_goes_on_there(text_run):
    straight = text_run(ROWS, "straight", train={"num_steps": 9})
    stopped = text_run(ROWS, "stopped", train={"num_steps": 9}, on_step=lambda step, metrics: step < 7)
    mmgrpo.train(resume=stopped.path, train_rows=ROWS)
    assert ids_by_step(stopped.path) == ids_by_step(straight.path)
    counts = Counter(name for step in range(6, 10) for name in ids_by_step(straight.path)[step])
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("iterations", [1, 2])
def test_c09_each_prompt_is_generated_once_an_epoch_and_used_the_stated_number_of_times(iterations, text_run):
    run = text_run(
        ROWS[:9],
        rollout={"num_generations": 2},
        train={"num_steps": None, "num_epochs": 1, "prompts_per_step": 3, "optimizer_steps": 3},
        loss={"num_iterations": iterations},
        checks={"drift_logprobs": 1e9},
    )
    steps = ids_by_step(run.path)
    assert list(steps) == [1, 2, 3]
    assert Counter(name for ids in steps.values() for name in ids) == {row["name"]: 1 for row in ROWS[:9]}
    assert [row["optimizer_steps"] + row["skipped_optimizer_steps"] for row in run.metrics()] == [3 * iterations] * 3
    rows = [json.loads(line) for line in (run.path / "completions" / "step_000001.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 2  # each prompt's completions were written once, whatever the iterations


def test_c09_iterations_read_the_same_rollout_again(text_run):
    tokens = {}
    for iterations in (1, 2):
        run = text_run(
            ROWS[:9],
            f"iterations-{iterations}",
            train={"num_steps": 1, "prompts_per_step": 3, "optimizer_steps": 3},
            loss={"num_iterations": iterations},
            checks={"drift_logprobs": 1e9},
        )
        tokens[iterations] = run.metrics()[0]["num_tokens"]
    assert tokens[2] == 2 * tokens[1]
