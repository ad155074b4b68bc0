"""Groups without a model, for the rooms around the loop."""

from __future__ import annotations

import pytest


@pytest.fixture
def make_scored():
    """Make a scored group: one completion per value, with the given texts, lengths and ends."""
    import torch

    from mmgrpo.types import Completion, Group, Prompt, Sample, ScoredGroup

    def build(name, totals, *, rewards=None, texts=None, lengths=None, finish=None, answer=None):
        values = torch.tensor(totals, dtype=torch.float64)
        count = len(totals)
        texts = texts or [f"text {i} of {name}" for i in range(count)]
        lengths, finish = lengths or [2] * count, finish or ["stop"] * count
        completions = tuple(
            Completion(
                token_ids=torch.arange(length),
                rollout_logprobs=torch.full((length,), -1.0),
                loss_mask=torch.ones(length, dtype=torch.bool),
                text=text,
                status=end,
                policy_version=0,
            )
            for text, length, end in zip(texts, lengths, finish, strict=True)
        )
        sample = Sample(id=name, messages=(), answer=answer)
        prompt = Prompt(sample=sample, text=name, token_ids=torch.arange(3), model_inputs={})
        named = {"r": totals} if rewards is None else rewards
        return ScoredGroup(
            group=Group(prompt=prompt, completions=completions),
            totals=values,
            rewards={key: torch.tensor(column, dtype=torch.float64) for key, column in named.items()},
        )

    return build


@pytest.fixture
def nothing_done():
    """Statistics of an update that took one step and measured nothing."""
    from mmgrpo.types import UpdateStats

    return UpdateStats(metrics={}, optimizer_steps=1, skipped_optimizer_steps=0, num_tokens=7, seconds=0.5)
