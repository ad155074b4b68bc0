"""Two processes that share a run are one process: the same rows, rewards, metrics, weights and evaluation."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

SETTINGS = {
    "eval": {"num_generations": 2, "batch_size": 2, "at_start": True},
    "warm_start": {"num_steps": 3, "batch_size": 4, "data": {"synthetic": "counting", "rows": 20, "seed": 3}},
    "train": {"num_steps": 3, "prompts_per_step": 4, "optimizer_steps": 2, "save_steps": 2, "optim": "sgd"},
    "loss": {"beta": 0.05, "scale_rewards": "batch"},
    "data": {"prefetch": 1, "curriculum": {"kind": "by_pass_rate", "low": 0.4, "high": 0.6}},
}
TIMES = ("seconds", "step_time", "peak_memory", "checks")


def launch(yaml: Path | None, *arguments: str, world: int) -> None:
    """Run to the end."""
    code, told = run(yaml, *arguments, world=world)
    assert code == 0, told


def run(target: Path | None, *arguments: str, world: int, command: str = "train") -> tuple[int, str]:
    """Start a command in so many processes, as ``torchrun`` does; the highest exit code, and what they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(world):
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        environment = os.environ | {name: str(value) for name, value in place.items()} | {"OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "mmgrpo", command, *([str(target)] if target else []), *arguments]
        started.append(
            subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    told = [process.communicate(timeout=300)[0] for process in started]
    assert all("GRPO" not in other for other in told[1:]), "the first process alone talks"
    codes = [process.returncode for process in started]
    return max(codes), "\n".join(told)


def rows_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights_of(folder: Path, step: int) -> dict[str, torch.Tensor]:
    files = sorted((folder / "checkpoints" / f"step-{step}" / "policy").glob("*.safetensors"))
    assert files
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def assert_same_run(one: Path, two: Path, *, only: str = "step") -> None:
    rows = ([row for row in rows_of(folder) if only in row] for folder in (one, two))
    for own, other in zip(*rows, strict=True):
        kept = [{n: v for n, v in row.items() if not any(word in n for word in TIMES)} for row in (own, other)]
        assert kept[1].pop("not_finite", None) == kept[0].pop("not_finite", None)
        numbers = [{name: math.nan if value is None else value for name, value in row.items()} for row in kept]
        assert numbers[1] == pytest.approx(numbers[0], rel=1e-4, abs=1e-5, nan_ok=True)
    for name, tensor in weights_of(one, 3).items():
        assert torch.allclose(weights_of(two, 3)[name], tensor, rtol=1e-4, atol=1e-6), name


def test_two_processes_are_one(yaml_file, reward_file, tmp_path):
    yaml = yaml_file(**SETTINGS, rewards=[{"fn": reward_file, "scale": "running"}])
    for name, world in (("one", 1), ("two", 2)):
        launch(yaml, f"train.output_dir={tmp_path / name}", world=world)
    assert_same_run(tmp_path / "one", tmp_path / "two")


LOGS = '''
def some(completions, answer, log_extra):
    """Equal in the groups of even answers, so that one process at times has nothing to learn from."""
    log_extra("shout", [text.upper() for text in completions])
    even = [int("".join(c for c in str(a) if c.isdigit())) % 2 == 0 for a in answer]
    return [0.5 if e else len(text) % 5 for text, e in zip(completions, even)]

def fails(completions, trainer_state):
    import os
    if os.environ["RANK"] == "1" and trainer_state.global_step == 1:
        raise ValueError("a fault of one process")
    return [float(len(text) % 5) for text in completions]
'''


def test_a_process_with_less_to_learn_from_changes_nothing(yaml_file, tmp_path):
    (tmp_path / "logs.py").write_text(LOGS)
    settings = {"num_steps": 3, "prompts_per_step": 2, "optimizer_steps": 2, "save_steps": 3, "optim": "sgd"}
    yaml = yaml_file(
        rewards=[{"fn": f"{tmp_path / 'logs.py'}:some"}], train=settings, loss={"num_iterations": 2, "beta": 0.0}
    )
    for name, world in (("one", 1), ("two", 2)):
        launch(yaml, f"train.output_dir={tmp_path / name}", world=world)
    assert_same_run(tmp_path / "one", tmp_path / "two")
    for file in sorted((tmp_path / "one" / "completions").glob("*.jsonl")):
        pages = [file, tmp_path / "two" / "completions" / file.name]
        one, two = ([json.loads(line) for line in page.read_text().splitlines()] for page in pages)
        assert [row["extra/shout"] for row in two] == [row["completion"].upper() for row in one]
        assert all(row["media"] for row in two)


def test_an_evaluation_is_shared_told_once_and_the_same_as_alone(yaml_file, tmp_path):
    folder = tmp_path / "run"
    launch(yaml_file(train={"num_steps": 1}, eval={"num_generations": 2}), f"train.output_dir={folder}", world=1)
    found = []
    for world in (1, 2):
        code, told = run(folder, "eval.limit=3", "eval.batch_size=1", world=world, command="eval")
        assert code == 0
        assert told.count("3 held-out rows") == 1
        (file,) = (folder / "evaluations").glob("eval_*.jsonl")
        found.append(file.read_text())
        file.unlink()
    assert len(found[0].splitlines()) == 6
    assert found[0] == found[1]


def test_a_process_that_fails_ends_the_others_with_a_sentence(yaml_file, tmp_path):
    (tmp_path / "logs.py").write_text(LOGS)
    yaml = yaml_file(rewards=[{"fn": f"{tmp_path / 'logs.py'}:fails"}], train={"save_steps": 1})
    code, told = run(yaml, world=2)
    assert code == 2
    assert "a fault of one process" in told
    assert "Another process of this run has ended" in told
    assert "Traceback" not in told


def test_a_run_of_two_processes_goes_on_in_one_and_the_other_way_round(yaml_file, tmp_path):
    steady = ["train.lr_scheduler_type=constant"]
    yaml = yaml_file(**SETTINGS)
    launch(yaml, f"train.output_dir={tmp_path / 'straight'}", *steady, world=1)
    for name, first, second in (("shrunk", 2, 1), ("grown", 1, 2)):
        folder = tmp_path / name
        launch(yaml, f"train.output_dir={folder}", "train.num_steps=2", *steady, world=first)
        launch(None, "--resume", str(folder), "train.num_steps=3", world=second)
        assert_same_run(tmp_path / "straight", folder, only="reward")  # the first start evaluated at its end, too


def test_a_number_of_prompts_that_does_not_divide_is_told_before_anything_is_loaded(yaml_file, tmp_path):
    code, told = run(yaml_file(), "train.prompts_per_step=3", world=2)
    assert code == 2
    assert "3 cannot be divided among 2 processes" in told
    assert "Write train.prompts_per_step: 4." in told
