"""``mmgrpo rewards``: list what is shipped, try the rewards of a YAML, start a new one.

Imports stand inside the functions: reading this file loads neither torch nor pydantic.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mmgrpo.cli.data import at_least_one


def rewards_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mmgrpo rewards``."""
    told = "list: what is shipped; try: score completions with the rewards of a YAML; new: write a file to start from"
    parser.add_argument("action", choices=["list", "try", "new"], help=told)
    told = "try: the YAML, then overrides; new: the name of the reward; list: a folder of plug-ins (default: shipped)"
    parser.add_argument("words", nargs="*", metavar="WORD", help=told)
    parser.add_argument(
        "-n", type=at_least_one, default=16, metavar="N", help="try: completions that the policy writes (16)"
    )
    told = "try: score these instead (.jsonl with a completion per row, or text, one a line)"
    parser.add_argument("--completions", metavar="FILE", help=told)
    parser.add_argument("--folder", default=".", metavar="FOLDER", help="new: where to write (the working folder)")


def rewards(arguments: argparse.Namespace) -> int:
    """Run ``mmgrpo rewards``; 1 if a reward failed under ``try``."""
    return {"list": _list, "try": _try, "new": _new}[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from mmgrpo.reward.workbench import list_rewards, rewards_page

    _at_most_one(arguments, "mmgrpo rewards list FOLDER")
    folder = Path(arguments.words[0]) if arguments.words else None
    Console().print(rewards_page(list_rewards(folder)))
    return 0


def _try(arguments: argparse.Namespace) -> int:
    from mmgrpo.api.rewards import try_on

    config, *overrides = _words(arguments, "mmgrpo rewards try my.yaml -n 16")
    trial = try_on(config, count=arguments.n, completions=arguments.completions, overrides=overrides)
    return 1 if trial.errors else 0


def _new(arguments: argparse.Namespace) -> int:
    from mmgrpo.reward.workbench import new_reward

    _at_most_one(arguments, "mmgrpo rewards new clip_caption")
    name = _words(arguments, "mmgrpo rewards new clip_caption")[0]
    file, test = new_reward(name, Path(arguments.folder))
    print(f"{file}\n{test}\n\nIn the YAML:\n  rewards:\n    - {{fn: {file}:{name}}}\n\nTest it: pytest {test}")
    return 0


def _at_most_one(arguments: argparse.Namespace, example: str) -> None:
    """Refuse words that would be ignored."""
    if len(arguments.words) > 1:
        from mmgrpo.errors import ConfigError, explain

        got = " ".join(arguments.words)
        raise ConfigError(
            explain(f"mmgrpo rewards {arguments.action} takes one word", got=got, fix=f"Write {example}.")
        )


def _words(arguments: argparse.Namespace, example: str) -> list[str]:
    if arguments.words:
        return list(arguments.words)
    from mmgrpo.errors import ConfigError, explain

    raise ConfigError(explain(f"mmgrpo rewards {arguments.action} needs a name", fix=f"Write {example}."))
