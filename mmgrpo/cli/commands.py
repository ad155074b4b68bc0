"""The commands: what each takes, and which function of ``mmgrpo.api`` it calls.

Imports stand inside the functions: reading this file loads neither torch nor pydantic.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mmgrpo.cli.data import check, check_arguments, data, data_arguments
from mmgrpo.cli.rewards import rewards, rewards_arguments


class Stopped(Exception):
    """Training was interrupted; the text says how to go on."""


class _Parser(argparse.ArgumentParser):
    """Names only what must be given: argparse, reading words in any order, also names lists that may be empty."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with 2."""
        super().error(re.sub(r"(arguments are required: .*?), (?:key=value|WORD)$", r"\1", message))


@dataclass(frozen=True, slots=True)
class Command:
    """One word after ``mmgrpo``."""

    about: str
    """One line for the overview."""
    fill: Callable[[argparse.ArgumentParser], None]
    """Adds its arguments."""
    run: Callable[[argparse.Namespace], int]
    """Does it; returns the exit code."""

    def parser(self, name: str) -> argparse.ArgumentParser:
        """Build the parser of this command's arguments."""
        parser = _Parser(prog=f"mmgrpo {name}", description=self.about, allow_abbrev=False)
        self.fill(parser)
        return parser


def _overrides(parser: argparse.ArgumentParser) -> None:
    told = "override of a key, for example loss.beta=0.01 or rewards.0.weight=2"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=told)


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", help="the YAML; may be left out with --resume RUN_FOLDER")
    _overrides(parser)
    told = "go on from the last checkpoint of this run folder; without a folder, of the newest run of this YAML"
    parser.add_argument("--resume", nargs="?", const=True, default=False, metavar="RUN_FOLDER", help=told)
    told = "exit with 1 unless held-out accuracy, greedy and sampled, rose by more than two standard errors"
    parser.add_argument("--require-improvement", action="store_true", help=told)


def _train(arguments: argparse.Namespace) -> int:
    config, overrides, resume = _sorted_out(arguments)
    if arguments.require_improvement and config and not resume:
        _require_evaluation(config, overrides)
    from mmgrpo import api

    try:
        run = api.train(config, overrides=overrides, resume=resume)
    except KeyboardInterrupt as interrupt:
        raise Stopped(_stopped(config, overrides, getattr(interrupt, "run_folder", None), resume)) from interrupt
    if run.stopped and run.stopped in signal.Signals.__members__:  # the API has saved, and printed how to go on
        return 128 + signal.Signals[run.stopped]
    if arguments.require_improvement and not run.improved():
        print("mmgrpo: held-out accuracy did not rise by more than two standard errors", file=sys.stderr)
        return 1
    return 0


def _stopped(config: str | None, overrides: list[str], folder: Path | None, resume: str | bool) -> str:
    """Say how to go on: in the run folder, or from the start where nothing was there to keep."""
    if folder is not None:
        return f"Stopped. Go on with:  {shlex.join(['mmgrpo', 'train', '--resume', str(folder)])}"
    again = [] if resume is False else ["--resume"] if resume is True else ["--resume", str(resume)]
    words = shlex.join(["mmgrpo", "train", *([config] if config else []), *overrides, *again])
    kept = "Nothing was done yet. Start again with" if resume is False else "Go on with"
    return f"Stopped. {kept}:  {words}"


def _require_evaluation(config: str, overrides: list[str]) -> None:
    """Refuse to look for an improvement that nothing measures, before hours of training."""
    from mmgrpo.config.load import load_config
    from mmgrpo.errors import ConfigError, explain

    if load_config(config, overrides).eval is None:
        fix = "Add eval: {} and data.eval to the YAML, or leave the option out."
        raise ConfigError(
            explain("--require-improvement needs an evaluation, and there is none", where="eval", fix=fix)
        )


def _sorted_out(arguments: argparse.Namespace) -> tuple[str | None, list[str], str | bool]:
    """Tell YAML, overrides and run folder apart, whatever order they came in."""
    from mmgrpo.errors import ConfigError, explain

    config, overrides, resume = arguments.config, list(arguments.overrides), arguments.resume
    if _is_override(resume):  # `--resume key=value`: the option has taken a word that was not meant for it
        overrides.insert(0, resume)
        resume = True
    if _is_override(config):
        overrides.insert(0, config)
        config = None
    if config is None and not isinstance(resume, str):
        fix = "Write mmgrpo train my.yaml, or mmgrpo train --resume RUN_FOLDER."
        raise ConfigError(explain("No configuration is given", fix=fix))
    return config, overrides, resume


def _is_override(word: object) -> bool:
    return isinstance(word, str) and "=" in word and not Path(word).exists()


def _eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="a run folder, or a model (hub id, local folder, tiny:FAMILY)")
    _overrides(parser)
    told = "held-out rows (a data file, a file of datasets_configs/ or a hub id); default: those of the run"
    parser.add_argument("--data", metavar="PATH", help=told)
    told = "YAML with columns, template, rewards and limits, for a model that has no run folder"
    parser.add_argument("--config", metavar="YAML", help=told)
    parser.add_argument(
        "--json", action="store_true", help="print JSON on standard output, and the table on standard error"
    )


def _eval(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from mmgrpo import api

    report = api.evaluate(
        arguments.target,
        data=arguments.data,
        config=arguments.config,
        overrides=arguments.overrides,
        console=Console(stderr=arguments.json),
    )
    from mmgrpo.parallel.replicated import open_strategy

    if arguments.json and open_strategy().is_main_process:
        print(json.dumps(report.summary(), indent=2, default=str))
    return 0


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="the YAML")
    _overrides(parser)


def _config(arguments: argparse.Namespace) -> int:
    from mmgrpo.config.load import load_config
    from mmgrpo.config.show import render_config

    print(render_config(load_config(arguments.config, arguments.overrides)), end="")
    return 0


def _merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN_FOLDER", help="a run folder, or one of its checkpoints")
    parser.add_argument("out", metavar="OUT", help="folder for the merged model; must not exist")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="of the merged weights (auto: the base's)")


def _merge(arguments: argparse.Namespace) -> int:
    from mmgrpo import api

    print(api.merge(arguments.run, arguments.out, dtype=arguments.dtype))
    return 0


COMMANDS: Mapping[str, Command] = {
    "train": Command("train a model from one YAML", _train_arguments, _train),
    "eval": Command("measure accuracy on held-out rows", _eval_arguments, _eval),
    "check": Command("read every row and medium before a run, and report", check_arguments, check),
    "data": Command("show rendered prompts, or convert rows to parquet with media inside", data_arguments, data),
    "rewards": Command("list shipped rewards, try those of a YAML, or start a new one", rewards_arguments, rewards),
    "config": Command("print the resolved configuration, every key with its meaning", _config_arguments, _config),
    "merge": Command("merge an adapter into its base model", _merge_arguments, _merge),
}
"""By name, in the order of the overview."""
