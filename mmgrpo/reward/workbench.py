"""The workbench: list the shipped rewards, try rewards on completions, start a new one.

The work behind ``mmgrpo rewards list``, ``try`` and ``new``. Knows neither the command line nor the model: whoever
calls it brings the completions.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.paths import shipped_rewards
from mmgrpo.errors import ConfigError, explain
from mmgrpo.plugins import import_file
from mmgrpo.reward.columns import CONTEXT
from mmgrpo.reward.facts import RewardFacts, facts_of
from mmgrpo.reward.signature import wants

if TYPE_CHECKING:
    from rich.console import Group

_PLAIN = {"completions", "completion_ids", "prompts", "messages", "group", "ids", *CONTEXT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """One reward of a plug-in file, as ``mmgrpo rewards list`` shows it."""

    spec: str
    """What to write after ``fn:``."""
    facts: RewardFacts
    """Range and extra."""
    needs: tuple[str, ...]
    """Columns and media that it asks for."""
    args: tuple[str, ...]
    """Keys that may stand under ``args``; those that must are marked with a star."""
    line: str
    """First line of its docstring."""


def list_rewards(folder: Path | None = None) -> list[Shipped]:
    """Find the rewards in a folder of plug-in files.

    Args:
        folder: The folder; None: the rewards that come with mmgrpo.

    Returns:
        Everything that declares itself a reward, by file and name.

    Raises:
        ConfigError: There is no such folder, or a file cannot be imported.
    """
    place = folder or shipped_rewards()
    if not place.is_dir():
        raise ConfigError(explain("There is no such folder", where=str(place), fix="Name a folder of plug-in files."))
    found: list[Shipped] = []
    for path in sorted(place.glob("*.py")):
        module = import_file(path)
        for name, value in inspect.getmembers(module, callable):
            if facts_of(value) != RewardFacts() and value.__module__ == module.__name__:
                found.append(_describe(f"{place.name}/{path.name}:{name}", value))
    return found


def _describe(spec: str, reward: Any) -> Shipped:
    """Read a reward without building it: constructors may load a model."""
    if inspect.isclass(reward):
        called, built = wants(reward.__call__).without_self(), wants(reward)
        columns, args, starred = called.names, built.names, built.required
        optional = frozenset(called.names) - called.required
    else:
        asked = wants(reward)
        lists = {
            p.name for p in inspect.signature(reward).parameters.values() if str(p.annotation).startswith("list[")
        }
        columns, args = (tuple(n for n in asked.names if (n in lists) is keep) for keep in (True, False))
        starred, optional = asked.required, frozenset(asked.names) - asked.required
    return Shipped(
        spec=spec,
        facts=facts_of(reward),
        needs=tuple(f"({n})" if n in optional else n for n in columns if n not in _PLAIN),
        args=tuple(f"{n}*" if n in starred else n for n in args if n not in CONTEXT),
        line=(inspect.getdoc(reward) or "").partition("\n")[0],
    )


def rewards_page(rewards: Sequence[Shipped]) -> Group:
    """Lay rewards out for ``Console.print``: what to write, range and needs, and below what it says.

    A spec is copied, so it stands in one piece whatever the width.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[Text | Padding] = []
    for reward in rewards:
        needs = ", ".join([*reward.needs, *([f"mmgrpo[{reward.facts.extra}]"] if reward.facts.extra else [])])
        told = "; ".join(part for part in (reward.facts.range, f"needs {needs}" if needs else "") if part)
        lines.append(Text.assemble((reward.spec, "bold"), f"  ({told})" if told else ""))
        lines.append(Padding(Text(_one_line(reward.line)), (0, 0, 0, 4)))
    return Group(*lines)


def _one_line(text: str) -> str:
    return text.replace("``", "")


def read_completions(path: Path) -> list[str]:
    """Read completions that somebody wrote.

    Args:
        path: ``.jsonl`` with a ``completion`` per row, or a text file: one completion a line, or blocks between lines
            of ``---``.

    Returns:
        The completions.

    Raises:
        ConfigError: A row has no completion, or the file holds none.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        found = [_completion(line, f"{path}:{number}") for number, line in enumerate(text.splitlines(), 1) if line]
    elif re.search(r"^---$", text, re.MULTILINE):
        found = [block.strip("\n") for block in re.split(r"^---$\n?", text, flags=re.MULTILINE)]
    else:
        found = text.splitlines()
    if not found:
        raise ConfigError(explain("There are no completions to try", where=str(path), fix="Write one a line."))
    return found


def _completion(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(explain("A row is not JSON", where=where, got=str(error), fix="Mend the row.")) from error
    if not isinstance(row, Mapping) or not isinstance(row.get("completion"), str):
        raise ConfigError(
            explain(
                "A row has no completion", where=where, expected='{"completion": "…"}', got=line[:80], fix="Add it."
            )
        )
    return str(row["completion"])


_FUNCTION = '''"""What {name} rewards, in one line."""

from __future__ import annotations

from typing import Any

from mmgrpo import last_answer, reward_facts


# pure=True: the same completion and columns always give the same value, so values may be kept.
@reward_facts(low=0.0, high=1.0, pure=True)
def {name}(completions: list[str], answer: list[Any], **columns: Any) -> list[float | None]:
    """1 where the answer is the truth, else 0.

    Ask for what you need by name: completions, answer, every column of the data, images, audios, videos, prompts,
    ids, group, completion_ids, finish_reasons, trainer_state; or take all with **columns. Each is a list with one
    entry per completion. An exception or a wrong length stops the run with a message that names this function.

    Args:
        completions: What the policy wrote.
        answer: The truth of each row.
        **columns: Everything else.

    Returns:
        One number per completion; None where it does not apply.

    Example:
        >>> {name}(["<answer>3</answer>", "3"], [3, 3])
        [1.0, 0.0]
    """
    scores: list[float | None] = []
    for text, truth in zip(completions, answer, strict=True):
        said = last_answer(text)  # None without a well-formed <answer> behind the reasoning
        scores.append(None if truth is None else float(said == str(truth)))
    return scores
'''
_TEST = '''"""A reward is worth a test: what it must give, and what it must not give."""

from pathlib import Path

from mmgrpo import load_reward

reward = load_reward("{name}.py:{name}", base=Path(__file__).parent).function


def test_a_right_answer_earns_more_than_a_wrong_one():
    right, wrong = reward(completions=["<answer>3</answer>", "<answer>4</answer>"], answer=[3, 3])
    assert right > wrong


def test_nothing_is_earned_without_an_answer():
    assert reward(completions=["", "3", "<think>3"], answer=[3, 3, 3]) == [0.0, 0.0, 0.0]


def test_it_does_not_apply_where_there_is_no_truth():
    assert reward(completions=["<answer>3</answer>"], answer=[None]) == [None]
'''


def new_reward(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a commented reward file to start from, and its test.

    Args:
        name: Name of the function and its file.
        folder: Where to write; made if it is not there.

    Returns:
        The two files.

    Raises:
        ConfigError: The name is no Python name, or a file is there already.
    """
    if not name.isidentifier() or not name.islower() or keyword.iskeyword(name):
        raise ConfigError(
            explain("A reward's name must be a Python name in lower case", got=name, fix="Write it like clip_caption.")
        )
    files = (folder / f"{name}.py", folder / f"test_{name}.py")
    for file in files:
        if file.exists():
            raise ConfigError(
                explain("The file is there already", where=str(file), fix="Take another name, or move it away.")
            )
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, (_FUNCTION, _TEST), strict=True):
        file.write_text(text.replace("{name}", name), encoding="utf-8")
    return files
