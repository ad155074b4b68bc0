"""What rewards log beside their values reaches the files of the run."""

from __future__ import annotations

import json


def test_a_column_that_a_reward_logs_stands_beside_each_completion(train):
    def shout(completions, log_extra):
        log_extra("loud", [text.upper() for text in completions])
        return [float(len(text)) for text in completions]

    run = train(rewards=[shout], observe={"log_steps": 1, "log_completions": 6})
    files = sorted((run.path / "completions").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(rows) > 6
    assert all(row["extra/loud"] == row["completion"].upper() for row in rows)
