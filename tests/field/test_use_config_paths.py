"""Faults found in use: mistyped paths, sizes that do not divide, and a mistake that every process reports."""

import subprocess
import sys
import time

import pytest

from mmgrpo.cli import main
from mmgrpo.config.load import load_config, resolve_config
from mmgrpo.config.paths import nearest_path
from mmgrpo.data.sources import open_rows
from mmgrpo.errors import ConfigError, MmgrpoError
from mmgrpo.policy.model.checkpoint import require_checkpoint
from mmgrpo.policy.model.policy import load_policy
from mmgrpo.running.settings import check_divisible

TINY = {"model": {"name": "tiny:qwen2_5_vl", "device": "cpu"}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("template.jinja", "rows.jsonl", "clevr.yaml", "my.yaml"):
        (tmp_path / name).write_text("{}\n")
    for name in ("adapter", "media", "checkpoint"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_w22_a_mistyped_file_or_folder_has_its_nearest(folder):
    assert nearest_path(folder / "row.jsonl") == str(folder / "rows.jsonl")
    (folder / "media" / "a.png").touch()
    assert nearest_path(folder / "medai" / "a.png") == str(folder / "media" / "a.png")
    assert nearest_path(folder / "nothing like it") == ""
    assert nearest_path(folder / ("x" * 5000)) == ""
    assert nearest_path(folder / "a\0b") == ""


@pytest.mark.parametrize(
    ("changes", "near"),
    [
        ({"model.chat_template": "templte.jinja"}, "template.jinja"),
        ({"model.tune": "lora", "model.lora.adapter": "adaptr"}, "adapter"),
        ({"model.name": "./chekpoint"}, "checkpoint"),
        ({"data.config": "clever.yaml"}, "clevr.yaml"),
        ({"data.train": {"path": "row.jsonl"}}, "rows.jsonl"),
        ({"data.train": {"path": "rows.jsonl", "media_root": "medai"}}, "media"),
    ],
)
def test_w22_a_mistyped_path_of_the_configuration_has_its_nearest(folder, changes, near, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MmgrpoError) as caught:
        loaded = resolve_config(TINY, changes)
        model = loaded.config.model
        if loaded.config.data.train is not None:
            open_rows(loaded.config.data.train, base=folder)
        else:
            require_checkpoint(model)
            load_policy(model)
    assert f"Did you mean {folder / near}" in str(caught.value)


def test_r309_sizes_that_do_not_divide_among_processes_are_refused_from_the_configuration_alone():
    rows = {"synthetic": "counting", "rows": 4}
    config = load_config(
        TINY, {"train.prompts_per_step": 8, "warm_start": {"data": rows, "num_steps": 1, "batch_size": 6}}
    )
    check_divisible(config, 2, warm_start=True)
    with pytest.raises(ConfigError, match=r"Write train\.prompts_per_step: 9\."):
        check_divisible(config, 3, warm_start=True)
    with pytest.raises(ConfigError, match=r"Write warm_start\.batch_size: 8\."):
        check_divisible(config, 4, warm_start=True)
    check_divisible(config, 4, warm_start=False)  # resumed


def test_w21_a_mistake_that_all_ranks_make_is_left_to_the_first(folder, monkeypatch, capsys):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    (folder / "my.yaml").write_text("model: {name: tiny:x, naem: y}\n")
    for rank, seconds in (("0", 0), ("1", 20)):
        waited.clear()
        monkeypatch.setenv("RANK", rank)
        assert main(["config", "my.yaml"]) == 2
        assert sum(waited) == seconds
    assert capsys.readouterr().err.count("mmgrpo: rank 1: Unknown key naem") == 1


@pytest.mark.slow
def test_w21_under_torchrun_a_mistake_is_printed_once(folder):
    (folder / "my.yaml").write_text("model: {name: tiny:x, naem: y}\n")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words = [*launch, "-m", "mmgrpo", "train", "my.yaml"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode != 0
    assert ran.stderr.count("Unknown key naem") == 1
