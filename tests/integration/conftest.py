"""Small whole runs: a tiny policy of a few ten thousand weights, scenes, and a reward that any text moves."""

from __future__ import annotations

import copy
import io

import pytest

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vision_hidden_size": 32,
    "vision_intermediate_size": 64,
    "vision_depth": 2,
    "vision_num_heads": 2,
}
DENSE = '''
def letters(completions, answer):
    """Share of letters: every completion has some, so every group has something to learn."""
    return [sum(c.isalpha() for c in text) / max(len(text), 1) for text in completions]
'''
BASE = {
    "model": {
        "name": "tiny:qwen2_5_vl",
        "device": "cpu",
        "sizes": SIZES,
        "freeze": {"vision": False, "projector": False},
    },
    "data": {
        "train": {"synthetic": "counting", "rows": 40, "seed": 1},
        "eval": {"synthetic": "counting", "rows": 4, "seed": 2},
    },
    "rollout": {"num_generations": 3, "max_completion_length": 6},
    "train": {"num_steps": 3, "prompts_per_step": 2, "learning_rate": 1e-2, "max_batch_tokens": 200},
    "eval": None,
    "checks": {"truncated_share": 1.0},
    "observe": {"progress": False, "log_steps": 1, "log_completions": 100},
}


SOURCES = {"path", "synthetic", "package"}


def merged(base, patch):
    """Lay nested mappings over each other; other rows replace those of before."""
    if not isinstance(base, dict) or not isinstance(patch, dict) or (SOURCES & set(patch)) - set(base):
        return copy.deepcopy(patch)
    return {**base, **{key: merged(base.get(key), value) for key, value in patch.items()}}


@pytest.fixture
def reward_file(tmp_path):
    """Write the reward where a YAML and worker processes can load it."""
    path = tmp_path / "dense.py"
    path.write_text(DENSE)
    return f"{path}:letters"


@pytest.fixture
def sections(tmp_path, reward_file):
    """Make the sections of a small run, with changes."""

    def build(name="run", **changes):
        given = {"rewards": [{"fn": reward_file}], "train": {"output_dir": str(tmp_path / "runs" / name)}}
        return merged(merged(BASE, given), changes)

    return build


@pytest.fixture
def train(sections):
    """Train with the sections of a small run; what is printed goes nowhere."""
    from rich.console import Console

    import mmgrpo

    def run(
        name="run",
        *,
        resume=False,
        on_step=None,
        rewards=None,
        train_rows=None,
        eval_rows=None,
        console=None,
        **changes,
    ):
        base = sections(name, **changes)
        config = mmgrpo.load_config(None, base)
        return mmgrpo.train(
            None if resume else config, resume=resume, on_step=on_step, rewards=rewards, train_rows=train_rows,
            eval_rows=eval_rows, console=console or Console(file=io.StringIO()),
        )  # fmt: skip

    return run


@pytest.fixture
def yaml_file(tmp_path, sections):
    """Write the sections of a small run as a YAML."""
    import yaml

    def write(name="run", **changes):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(sections(name, **changes)), encoding="utf-8")
        return path

    return write
