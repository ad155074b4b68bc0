"""A metric of a user's own for evaluations: one file that the YAML names, and no edit elsewhere."""

import mmgrpo
from mmgrpo.observe.sinks import read_rows

PASS_AT_K = """
def pass_at_k(completions, rewards):
    \"""Whether any of a row's completions earned more than nothing.\"""
    return float(max(value or 0.0 for value in rewards["letters"]) > 0)
"""


def test_a_metric_and_a_suite_of_its_own_are_evaluated_logged_and_choose_the_best_checkpoint(train, tmp_path):
    (tmp_path / "pass_at_k.py").write_text(PASS_AT_K)
    suite = {
        "name": "hard",
        "data": {"synthetic": "counting", "rows": 3, "seed": 9},
        "metric": f"{tmp_path / 'pass_at_k.py'}:pass_at_k",
        "decoding": "sampled",
    }
    run = train(
        eval={"suites": [suite], "num_generations": 2, "eval_steps": 1},
        train={"num_steps": 2, "save_best": "eval/hard/sampled/accuracy"},
    )
    assert set(run.after.scores()) == {"", "hard"}
    assert run.after.scores()["hard"]["sampled"].rows == 3
    rows = [row for row in read_rows(run.folder.metrics) if "eval/hard/sampled/accuracy" in row]
    assert [row["step"] for row in rows] == [0, 1, 2] and {"eval/accuracy", "eval/sampled/accuracy"} <= set(rows[0])
    again = mmgrpo.train(resume=run.path)
    assert again.after.results["hard"] == run.after.results["hard"]
