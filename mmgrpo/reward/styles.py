"""The conventions of TRL, ms-swift and EasyR1, as a change of columns before the call and of values after it.

A reward written for one of them runs unchanged. Pure; calls nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.errors import RewardError, explain
from mmgrpo.reward.signature import Wants

Columns = dict[str, list[Any]]


def arrange(style: str, columns: Mapping[str, Sequence[Any]], asked: Wants) -> Columns:
    """Rename and reshape columns as the other project would hand them over.

    Args:
        style: native, trl, swift or easyr1.
        columns: Native columns, see :mod:`mmgrpo.reward.columns`.
        asked: The function's arguments.

    Returns:
        Columns in that style.
    """
    native = {name: list(values) for name, values in columns.items()}
    if style == "trl":
        return _trl(native)
    if style == "swift":
        return _swift(native, asked)
    return _easyr1(native, asked) if style == "easyr1" else native


def arranged_names(style: str, names: Sequence[str], asked: Wants) -> list[str]:
    """The column names that ``arrange`` gives for these native ones."""
    return list(arrange(style, {name: [] for name in names}, asked))


def _trl(columns: Columns) -> Columns:
    """Completions are conversations of one assistant turn, prompts are the messages."""
    completions = [[{"role": "assistant", "content": text}] for text in columns["completions"]]
    image = [pictures[0] if pictures else None for pictures in columns["images"]]
    return {"image": image, **columns, "completions": completions, "prompts": columns["messages"]}


def _swift(columns: Columns, asked: Wants) -> Columns:
    """Completions are plain strings; ms-swift gives the first argument by position, whatever its name."""
    changed = {
        **columns,
        "response_token_ids": columns["completion_ids"],
        "finish_reason": columns["finish_reasons"],
        "is_truncated": [reason == "length" for reason in columns["finish_reasons"]],
        "prompt_id": columns["ids"],
        "request_id": [f"{sample}/{row}" for row, sample in enumerate(columns["ids"])],
    }
    if asked.first is not None and asked.first not in changed:
        changed[asked.first] = columns["completions"]
    return changed


def _easyr1(columns: Columns, asked: Wants) -> Columns:
    """Each completion is a dictionary with its response, length in tokens and ground truth."""
    rows = [
        {"response": text, "response_length": len(ids), "ground_truth": "" if answer is None else str(answer)}
        for text, ids, answer in zip(columns["completions"], columns["completion_ids"], columns["answer"], strict=True)
    ]
    return {**columns, "reward_input" if "reward_input" in asked.names else "reward_inputs": rows}


def split_metrics(style: str, returned: Any, name: str) -> tuple[Any, dict[str, list[Any]]]:
    """Take an EasyR1 score apart: its ``overall`` is the reward, everything else is a metric.

    Args:
        style: native, trl, swift or easyr1.
        returned: What the function returned.
        name: The reward.

    Returns:
        The values, and metrics by name with one value per completion (none in the other styles).

    Raises:
        RewardError: A score has no ``overall``.
    """
    if style != "easyr1":
        return returned, {}
    rows = list(returned)
    for row in rows:
        if not isinstance(row, Mapping) or "overall" not in row:
            raise RewardError(
                explain(
                    f"Reward {name} in EasyR1 style returned a score without 'overall'",
                    expected="one dictionary with the key 'overall' per completion",
                    got=f"{row!r:.80}",
                    fix="Return {'overall': …} per completion, or set style: native.",
                )
            )
    keys = dict.fromkeys(key for row in rows for key in row if key != "overall")
    return [row["overall"] for row in rows], {key: [row.get(key) for row in rows] for key in keys}
