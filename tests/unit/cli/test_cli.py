"""The command line: words in, one call of the API, one message and an exit code out."""

import json
import subprocess
import sys
import types
import warnings

import pytest

import mmgrpo
from mmgrpo.cli import main
from mmgrpo.config.load import load_config
from mmgrpo.errors import CheckpointError

MINIMAL = "model: {name: tiny:qwen2_5_vl}\n"


@pytest.fixture
def yaml(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(MINIMAL)
    return file


class FakeRun:
    better = True
    stopped = None

    def improved(self):
        return self.better


@pytest.fixture
def api(monkeypatch):
    """Stand in for the API, and remember how it was called."""
    module = types.ModuleType("mmgrpo.api")
    module.calls = []
    module.run = FakeRun()

    def train(config, *, overrides, resume):
        module.calls.append((config, list(overrides), resume))
        return module.run

    def evaluate(target, *, data, config, overrides, console):
        module.calls.append((target, data, config, list(overrides)))
        console.print("greedy accuracy 0.5")
        return types.SimpleNamespace(summary=lambda: {"greedy": 0.5})

    module.train, module.evaluate = train, evaluate
    module.merge = lambda run, out, **settings: out
    monkeypatch.setitem(sys.modules, "mmgrpo.api", module)
    monkeypatch.setattr(mmgrpo, "api", module, raising=False)
    return module


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["my.yaml"], ("my.yaml", [], False)),
        (["my.yaml", "a.b=1", "c=2"], ("my.yaml", ["a.b=1", "c=2"], False)),
        (["my.yaml", "--resume"], ("my.yaml", [], True)),
        (["my.yaml", "--resume", "runs/x"], ("my.yaml", [], "runs/x")),
        (["my.yaml", "--resume", "a.b=1"], ("my.yaml", ["a.b=1"], True)),
        (["my.yaml", "--resume", "runs/x", "a.b=1"], ("my.yaml", ["a.b=1"], "runs/x")),
        (["my.yaml", "a.b=1", "--resume", "runs/x", "c=2"], ("my.yaml", ["a.b=1", "c=2"], "runs/x")),
        (["--resume", "runs/x"], (None, [], "runs/x")),
        (["--resume", "runs/x", "a.b=1"], (None, ["a.b=1"], "runs/x")),
    ],
)
def test_train_tells_yaml_overrides_and_run_folder_apart(api, words, call):
    assert main(["train", *words]) == 0
    assert api.calls == [call]


def test_train_without_a_yaml_says_what_to_write(api, capsys):
    assert main(["train", "a.b=1"]) == 2
    assert "mmgrpo train my.yaml" in capsys.readouterr().err
    assert main(["train"]) == 2
    assert api.calls == []


def test_require_improvement_fails_the_command_only_when_asked(api, yaml, capsys):
    yaml.write_text(MINIMAL + "eval: {}\n")
    api.run.better = False
    assert main(["train", str(yaml)]) == 0
    assert main(["train", str(yaml), "--require-improvement"]) == 1
    assert "did not rise" in capsys.readouterr().err
    api.run.better = True
    assert main(["train", str(yaml), "--require-improvement"]) == 0


def test_an_improvement_that_nothing_measures_is_refused_before_the_run(api, yaml, capsys):
    assert main(["train", str(yaml), "--require-improvement"]) == 2
    assert "needs an evaluation" in capsys.readouterr().err
    assert api.calls == []


def raising(api, error):
    def train(config, **options):
        raise error

    api.train = train


def test_a_mistake_is_one_message_and_exit_code_2(api, capsys):
    raising(api, CheckpointError("The disk is full.\n  where: /runs"))
    assert main(["train", "x.yaml"]) == 2
    assert capsys.readouterr().err == "mmgrpo: The disk is full.\n  where: /runs\n"


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_file_that_cannot_be_read_is_a_mistake_too(api, capsys, error):
    raising(api, error(2, "No such file or directory", "/x/y"))
    assert main(["train", "x.yaml"]) == 2
    assert "/x/y" in capsys.readouterr().err


def test_a_full_disk_is_a_mistake_even_where_the_system_names_no_file(api, capsys):
    raising(api, OSError(28, "No space left on device"))
    assert main(["train", "x.yaml"]) == 2
    assert "The disk is full" in capsys.readouterr().err


def test_a_fault_of_the_program_keeps_its_traceback(api):
    raising(api, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["train", "x.yaml"])


def test_an_interrupt_prints_the_command_that_goes_on(api, capsys):
    interrupt = KeyboardInterrupt()
    interrupt.run_folder = "runs/my run"
    raising(api, interrupt)
    assert main(["train", "x.yaml"]) == 130
    assert "mmgrpo train --resume 'runs/my run'" in capsys.readouterr().err
    raising(api, KeyboardInterrupt())
    assert main(["train", "--resume", "runs/x", "a=1"]) == 130
    assert "Go on with:  mmgrpo train a=1 --resume runs/x" in capsys.readouterr().err


def test_an_interrupt_before_there_is_a_run_folder_does_not_tell_to_resume(api, capsys):
    raising(api, KeyboardInterrupt())
    assert main(["train", "x.yaml", "a=1"]) == 130
    told = capsys.readouterr().err
    assert "Start again with:  mmgrpo train x.yaml a=1" in told
    assert "--resume" not in told


def test_a_warning_is_one_line_without_a_place_in_the_source(api, capsys):
    def train(config, **options):
        warnings.warn("the reward is constant", UserWarning, stacklevel=2)
        return FakeRun()

    api.train = train
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["train", "x.yaml"]) == 0
    assert capsys.readouterr().err == "warning: the reward is constant\n"


def test_eval_prints_a_table_and_json_when_asked(api, capsys):
    assert main(["eval", "runs/x", "--data", "rows.jsonl", "eval.seed=3"]) == 0
    assert api.calls == [("runs/x", "rows.jsonl", None, ["eval.seed=3"])]
    assert capsys.readouterr().out == "greedy accuracy 0.5\n"
    assert main(["eval", "runs/x", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"greedy": 0.5}
    assert shown.err == "greedy accuracy 0.5\n"


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("the time limit of 5 seconds", 0)])
def test_a_run_that_a_signal_stopped_ends_with_its_code(api, signal, code):
    api.run.stopped = signal
    assert main(["train", "x.yaml"]) == code


def test_merge_prints_where_the_model_is(api, capsys):
    assert main(["merge", "runs/x", "out"]) == 0
    assert capsys.readouterr().out == "out\n"


def test_config_prints_a_tree_that_loads_back(yaml, tmp_path, capsys):
    assert main(["config", str(yaml), "loss.beta=0.25"]) == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(capsys.readouterr().out)
    assert load_config(shown) == load_config(yaml, ["loss.beta=0.25"])


def test_f02_a_misspelt_key_ends_with_code_2_and_no_traceback(yaml):
    done = subprocess.run(
        [sys.executable, "-m", "mmgrpo", "config", str(yaml), "train.learnig_rate=1"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Write learning_rate." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["frobnicate"], ["config"], ["merge", "x"], ["train", "x.yaml", "--lr", "3"]])
def test_wrong_words_end_with_code_2(api, words):
    assert main(words) == 2


def test_a_mistyped_command_is_told_with_the_nearest(capsys):
    assert main(["trian", "my.yaml"]) == 2
    assert "Did you mean mmgrpo train?" in capsys.readouterr().err


def test_only_what_must_be_given_is_said_to_be_missing(capsys):
    assert main(["eval"]) == 2
    told = capsys.readouterr().err
    assert "required: target\n" in told


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("train", "eval", "config", "merge"):
        assert f"  {name} " in shown
        assert main([name, "--help"]) == 0
    assert "--require-improvement" in capsys.readouterr().out
    assert main([]) == 2


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mmgrpo {mmgrpo.__version__}\n"


def test_a_reader_that_leaves_early_is_no_fault(yaml):
    shell = f"{sys.executable} -m mmgrpo config {yaml} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0
