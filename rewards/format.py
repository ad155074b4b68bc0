"""The form of a completion: reasoning and answer in their tags, strictly or as other projects check it."""

from __future__ import annotations

import re

from mmgrpo import reward_facts, strip_end

_TAGS = re.compile(r"</?(?:think|answer)>")
_THINK_ANSWER = ["<think>", "</think>", "<answer>", "</answer>"]


def _form(text: str, tags: list[str]) -> float:
    """1 where the text is these tags, each once and in order, with nothing but white space outside the pairs."""
    text = strip_end(text).strip()
    marks = list(_TAGS.finditer(text))
    if [mark.group() for mark in marks] != tags:
        return 0.0
    edges = [0, *(at for mark in marks for at in mark.span()), len(text)]
    gaps = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    outside, answer = gaps[::2], gaps[-2]
    return float(not any(gap.strip() for gap in outside) and bool(answer.strip()))


@reward_facts(low=0.0, high=1.0)
def think_answer(completions: list[str]) -> list[float]:
    r"""1 where a completion is ``<think>…</think><answer>…</answer>``, each tag exactly once, else 0.

    White space around the pairs and a left-over end-of-turn token do no harm; a doubled tag, text outside the tags,
    or an empty answer does. The reasoning may be empty. What a chat template already wrote (``<think>``) counts as
    part of the completion.

    Args:
        completions: What the policy wrote.

    Returns:
        0 or 1.

    Source: the form of DeepSeek-R1 (arXiv:2501.12948, section 2.2), read strictly.

    Example:
        >>> think_answer(["<think>two and one</think>\n<answer>3</answer>", "<answer>3</answer>", "3"])
        [1.0, 0.0, 0.0]
    """
    return [_form(text, _THINK_ANSWER) for text in completions]


@reward_facts(low=0.0, high=1.0)
def answer_only(completions: list[str]) -> list[float]:
    """1 where a completion is ``<answer>…</answer>`` and nothing else: for policies that answer without reasoning.

    Args:
        completions: What the policy wrote.

    Returns:
        0 or 1.

    Source: the form of R1-AQA (arXiv:2503.11197), read strictly.

    Example:
        >>> answer_only(["<answer>3</answer>", "<answer>3</answer></answer>", "It is <answer>3</answer>"])
        [1.0, 0.0, 0.0]
    """
    return [_form(text, _THINK_ANSWER[2:]) for text in completions]


@reward_facts(low=0.0, high=1.0)
def swift_format(completions: list[str]) -> list[float]:
    r"""ms-swift's ``format``, to compare with its runs: a doubled tag passes, a trailing newline does not.

    Args:
        completions: What the policy wrote.

    Returns:
        0 or 1.

    Source: ``Format`` of ms-swift (github.com/modelscope/ms-swift, swift/rewards/orm.py).

    Example:
        >>> swift_format(["<think>a</think> <answer>3</answer>", "<think>a</think><answer>3</answer>\n"])
        [1.0, 0.0]
    """
    form = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>(?![\s\S])", re.DOTALL)
    return [float(bool(form.match(text))) for text in completions]


@reward_facts(low=0.0, high=1.0)
def r1v_format(completions: list[str]) -> list[float]:
    """R1-V's ``format``, to compare with its runs: a doubled tag passes.

    Args:
        completions: What the policy wrote.

    Returns:
        0 or 1.

    Source: ``format_reward`` of R1-V (github.com/Deep-Agent/R1-V, src/r1-v/src/open_r1/grpo.py).

    Example:
        >>> r1v_format(["<think>a</think> <answer>3</answer></answer>", "<answer>3</answer>"])
        [1.0, 0.0]
    """
    form = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
    return [float(bool(form.fullmatch(text))) for text in completions]


@reward_facts(low=0.0, high=1.0)
def trl_think_format(completions: list[str]) -> list[float]:
    """TRL's ``think_format_reward``: one reasoning block at the start, no second ``<think>``.

    Args:
        completions: What the policy wrote.

    Returns:
        0 or 1.

    Source: ``think_format_reward`` of TRL (github.com/huggingface/trl, trl/rewards/format_rewards.py).

    Example:
        >>> trl_think_format(["<think>a</think> 3", "a 3", "<think><think>a</think> 3"])
        [1.0, 0.0, 0.0]
    """
    return [float(t.startswith("<think>") and "<think>" not in t[1:] and "</think>" in t) for t in completions]
