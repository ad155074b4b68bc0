"""The reward workbench behind ``mmgrpo rewards``: try the rewards of a YAML before a run is paid for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mmgrpo.assemble import UserInputs, assemble, open_feed
from mmgrpo.config.load import Overrides, resolve_config
from mmgrpo.errors import counted
from mmgrpo.observe.progress import Progress
from mmgrpo.reward.paste import regroup
from mmgrpo.reward.trial import Trial, advice, completions_table, summary_table, try_rewards
from mmgrpo.reward.workbench import read_completions
from mmgrpo.running.settings import sampling_of


def try_on(
    config: str | Path,
    *,
    count: int = 16,
    completions: str | Path | Sequence[str] | None = None,
    rewards: Sequence[str | Callable[..., Any]] | None = None,
    overrides: Overrides = (),
    console: Console | None = None,
) -> Trial:
    """Score completions with the rewards of a YAML, and print what they say.

    Args:
        config: The YAML.
        count: Completions to write, in groups of at most ``rollout.num_generations``; pasted ones are all taken.
        completions: A file of pasted completions (see :func:`mmgrpo.reward.workbench.read_completions`) or texts; they
            are scored against the first training rows, ``num_generations`` to a row. None: the policy writes them.
        rewards: Rewards in place of the YAML's.
        overrides: Of the YAML.
        console: Where to print; default: standard output.

    Returns:
        Every value, the spread inside groups, failures and seconds.

    Raises:
        ConfigError: The YAML, a reward or the pasted file is wrong.
        DataError: Rows cannot be read.
    """
    loaded = resolve_config(config, overrides)
    console = console or Console()
    assembly = assemble(loaded, UserInputs(rewards=rewards))
    size = loaded.config.rollout.num_generations
    try:
        if completions is not None:
            texts = read_completions(Path(completions)) if isinstance(completions, str | Path) else list(completions)
            parts = [texts[i : i + size] for i in range(0, len(texts), size)]
            prompts = open_feed(assembly).take(len(parts))
            groups = [regroup(prompt, part) for prompt, part in zip(prompts, parts, strict=True)]
        else:
            counts = [size] * (count // size) + ([count % size] if count % size else [])
            prompts = open_feed(assembly).take(len(counts))
            with Progress(show=loaded.config.observe.progress) as progress:
                progress.say(f"{loaded.config.model.name} writes {counted(count, 'completion')}")
                assembly.start_engine(0)
                groups = assembly.engine.generate(prompts, counts, sampling_of(loaded.config.rollout))
        trial = try_rewards(assembly.rewards, groups)
    finally:
        assembly.close()
    console.print(completions_table(trial))
    console.print(summary_table(trial))
    for error in trial.errors.values():  # whole, below: in a cell of the table nobody could read it
        console.print(error, markup=False, highlight=False, soft_wrap=True)
    for line in advice(trial):
        console.print(line, markup=False)
    return trial
