"""Whether each row's own ground truth, written as an answer, earns the most that the rewards pay.

A row that no reward can read, or whose truth makes a reward raise, would be found in the middle of a run, or never.
Asks only rewards that are plain functions and compare with a ground truth: nothing is loaded, and no judge is paid.
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import RewardError
from mmgrpo.reward.demands import needs
from mmgrpo.reward.loading import load_reward
from mmgrpo.reward.paste import regroup
from mmgrpo.reward.score import RewardSum
from mmgrpo.types import Group, Prompt, Sample

_MOST = 2000
"""Different ground truths that are tried; a source with more has the rest unread."""
_BATCH = 256
_WRONG = "<answer>no answer at all</answer>"


class ReadRow(Protocol):
    """Makes a sample of a row's number."""

    def __getitem__(self, index: int, /) -> Sample: ...


def ground_truth_faults(
    entries: Sequence[Reward], base: Path, rows: ReadRow, numbers: Iterable[int], columns: Sequence[str]
) -> dict[int, str]:
    """Score the ground truth of each row, and name the rows where it does not earn the most.

    Args:
        entries: The ``rewards:`` section.
        base: Folder of the YAML.
        rows: Gives samples by number.
        numbers: Rows that can be read.
        columns: Columns of the rows.

    Returns:
        What is wrong, by row. Ground truths that are neither text nor a number are not looked at.
    """
    faults: dict[int, str] = {}
    for entry in entries:
        loaded = load_reward(entry.fn, base=base, args=entry.args, style=entry.style, name=entry.name, build=False)
        plain = inspect.isfunction(getattr(loaded.function, "func", loaded.function))
        if not plain or loaded.is_async or "answer" not in needs(loaded, columns):
            continue
        scorer = RewardSum.from_config([entry.model_copy(update={"workers": 0, "timeout_seconds": None})], base)
        try:
            for row, fault in _faults_of(scorer, loaded.name, _by_truth(rows, numbers, loaded.asked.names)):
                faults.setdefault(row, fault)
        finally:
            scorer.close()
    return faults


def _by_truth(rows: ReadRow, numbers: Iterable[int], names: Iterable[str]) -> list[tuple[Sample, list[int]]]:
    """Group rows whose ground truth, and whatever else the reward reads of them, is the same."""
    groups: dict[str, tuple[Sample, list[int]]] = {}
    wanted = tuple(names)
    for number in numbers:
        sample = rows[number]
        if isinstance(sample.answer, bool) or not isinstance(sample.answer, str | int | float):
            continue
        key = repr((sample.answer, [sample.extras.get(name) for name in wanted if name != "solution"]))
        if key in groups:
            groups[key][1].append(number)
        elif len(groups) < _MOST:
            groups[key] = (sample, [number])
    return list(groups.values())


def _faults_of(scorer: RewardSum, name: str, groups: Sequence[tuple[Sample, list[int]]]) -> Iterator[tuple[int, str]]:
    """Give the rows whose ground truth earns less than that of others, no more than a wrong answer, or an error."""
    earned: list[float] = []
    for start in range(0, len(groups), _BATCH):
        batch = [sample for sample, _ in groups[start : start + _BATCH]]
        try:
            earned += _scores(scorer, name, batch)
        except RewardError:
            for sample in batch:
                earned.append(_score_alone(scorer, name, sample))
    most = max((value for value in earned if math.isfinite(value)), default=0.0)
    for (sample, rows), value in zip(groups, earned, strict=True):
        if not str(sample.answer).strip():
            fault = f"its ground truth is empty, and {name} compares with it"
        elif value == math.inf:
            fault = f"{name} raises an error about its ground truth"
        elif not math.isfinite(value):
            fault = f"its ground truth, written as an answer, earns no more than a wrong answer with {name}"
        elif value < most - 1e-6:
            fault = f"its ground truth, written as an answer, earns {value:.3g} with {name}, others {most:.3g}"
        else:
            continue
        yield from ((row, fault) for row in rows)


def _score_alone(scorer: RewardSum, name: str, sample: Sample) -> float:
    try:
        return _scores(scorer, name, [sample])[0]
    except RewardError:
        return math.inf


def _scores(scorer: RewardSum, name: str, samples: Sequence[Sample]) -> list[float]:
    """Give what the best way to write each ground truth earns; -inf where a wrong answer earns as much."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no reward applies is what is looked for here
        scored = scorer.score([_written(sample) for sample in samples])
    best = []
    for one in scored:
        values = [-math.inf if math.isnan(value) else value for value in one.rewards[name].tolist()]
        right, wrong = max(values[:-1]), values[-1]
        best.append(right if right > wrong else -math.inf)
    return best


def _written(sample: Sample) -> Group:
    """Write a ground truth in the ways that answers are written, and a wrong answer behind them."""
    text = str(sample.answer).strip()
    inner = text.removeprefix("<answer>").removesuffix("</answer>").strip()
    prompt = Prompt(sample=sample, text="", token_ids=torch.zeros(1, dtype=torch.long), model_inputs={})
    ways = (f"<answer>{inner}</answer>", f"\\boxed{{{inner}}}", inner, text, json.dumps({"answer": inner}))
    return regroup(prompt, [*ways, _WRONG])
