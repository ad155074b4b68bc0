from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmgrpo.errors import TrainingError
from mmgrpo.training.packing import flatten_completions, pack
from mmgrpo.types import Segment


def texts(optimizer_batches):
    """Which completions are packed, by sample and text."""
    return Counter(
        (s.prompt.sample.id, c.text)
        for step in optimizer_batches
        for b in step.batches
        for s in b.segments
        for c in s.completions
    )


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=6), min_size=1, max_size=8),
    prompts=st.integers(1, 20),
    steps=st.integers(1, 3),
    budget=st.integers(1, 120),
)
def test_no_completion_is_lost_or_doubled_and_no_batch_exceeds_the_budget(
    scored, centred, sizes, prompts, steps, budget
):
    groups = [scored(f"g{i}", lengths, prompt=prompts) for i, lengths in enumerate(sizes)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = pack(groups, centred(groups), optimizer_steps=steps, max_batch_tokens=budget)
    assert len(packed) == steps
    assert texts(packed) == Counter((g.group.prompt.sample.id, c.text) for g in groups for c in g.group.completions)
    for batch in (b for step in packed for b in step.batches):
        assert batch.num_tokens <= budget or len(batch.completions) == 1
    assert sum(step.num_tokens for step in packed) == sum(sum(lengths) for lengths in sizes)
    assert sum(step.num_sequences for step in packed) == sum(len(lengths) for lengths in sizes)


def test_advantages_stay_with_their_completions_when_a_group_is_split(scored):
    group = scored("a", [5, 9, 2, 7], prompt=4)
    advantages = torch.tensor([0.1, 0.2, 0.3, -0.6], dtype=torch.float64)
    (step,) = pack([group], [advantages], optimizer_steps=1, max_batch_tokens=14)
    assert len(step.batches) > 1
    found = {
        c.text: a for b in step.batches for s in b.segments for c, a in zip(s.completions, s.advantages, strict=True)
    }
    expected = {c.text: a for c, a in zip(group.group.completions, advantages.tolist(), strict=True)}
    assert found == expected


def test_groups_are_divided_in_order_into_equal_optimizer_steps(scored, centred):
    groups = [scored(name, [3, 3]) for name in "abcdef"]
    packed = pack(groups, centred(groups), optimizer_steps=3, max_batch_tokens=1000)
    names = [[s.prompt.sample.id for b in step.batches for s in b.segments] for step in packed]
    assert names == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_packing_is_deterministic_and_first_fit_fills_batches(scored, centred):
    groups = [scored(f"g{i}", [n, n]) for i, n in enumerate([8, 3, 8, 3])]  # 20, 10, 20, 10 packed tokens
    one, two = (pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=30) for _ in range(2))
    shape = [[s.prompt.sample.id for s in b.segments] for b in one[0].batches]
    assert shape == [["g0", "g1"], ["g2", "g3"]]
    assert shape == [[s.prompt.sample.id for s in b.segments] for b in two[0].batches]


def test_each_prompt_stands_once_in_a_batch_that_has_room(scored, centred):
    groups = [scored("a", [5] * 8, prompt=40)]
    (step,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=80)
    assert [b.num_tokens for b in step.batches] == [80]


def test_equal_reward_groups_are_left_out_but_counted_in_the_denominators(scored, centred):
    groups = [scored("a", [3, 4]), scored("b", [5, 6], [1.0, 1.0])]
    (step,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=100)
    assert [s.prompt.sample.id for b in step.batches for s in b.segments] == ["a"]
    assert (step.num_tokens, step.num_sequences, step.num_skipped_groups) == (18, 4, 1)


def test_keep_zero_keeps_equal_reward_groups(scored, centred):
    groups = [scored("b", [5, 6], [1.0, 1.0])]
    (step,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=100, keep_zero=True)
    assert len(step.batches) == 1 and step.num_skipped_groups == 0


def test_a_step_whose_groups_all_have_equal_rewards_has_no_micro_batch(scored, centred):
    groups = [scored("a", [3, 4], [2.0, 2.0]), scored("b", [5, 6])]
    first, second = pack(groups, centred(groups), optimizer_steps=2, max_batch_tokens=100)
    assert first.batches == () and first.num_tokens == 7 and len(second.batches) == 1


def test_truncated_completions_leave_numerator_and_denominator_only_when_asked(scored, centred):
    groups = [scored("a", [3, 9, 4], finish=["stop", "length", "stop"])]
    (kept,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=100)
    (masked,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=100, mask_truncated=True)
    assert (kept.num_tokens, kept.num_sequences) == (16, 3)
    assert (masked.num_tokens, masked.num_sequences) == (7, 2)
    assert int(flatten_completions(masked.batches[0]).loss_mask.sum()) == 7
    assert flatten_completions(masked.batches[0]).advantages.tolist() == [-1.0] * 3 + [1.0] * 4


def test_all_completions_truncated_and_masked_leave_nothing(scored, centred):
    groups = [scored("a", [3, 9], finish=["length", "length"])]
    (step,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=100, mask_truncated=True)
    assert step.batches == () and step.num_tokens == 0 and step.num_sequences == 0


def test_a_completion_without_reward_has_advantage_zero_and_still_counts(scored):
    groups = [scored("a", [3, 4, 5], [0.0, float("nan"), 1.0])]
    advantages = [torch.tensor([-0.5, float("nan"), 0.5])]
    (step,) = pack(groups, advantages, optimizer_steps=1, max_batch_tokens=100)
    assert flatten_completions(step.batches[0]).advantages.tolist() == [-0.5] * 3 + [0.0] * 4 + [0.5] * 5
    assert (step.num_tokens, step.num_sequences) == (12, 3)


def test_an_infinite_advantage_stops_with_the_sample_named(scored):
    with pytest.raises(TrainingError, match="sample bad"):
        pack([scored("bad", [3, 4])], [torch.tensor([0.0, float("inf")])], optimizer_steps=1, max_batch_tokens=9)


def test_a_completion_longer_than_the_budget_gets_its_own_batch_and_one_warning(scored, centred):
    groups = [scored("a", [50, 3, 60])]
    with pytest.warns(UserWarning, match=r"train\.max_batch_tokens") as caught:
        (step,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=20)
    assert len(caught) == 1
    assert sorted(b.num_tokens for b in step.batches) == [7, 54, 64]


def test_flattening_lays_completions_end_to_end_in_packed_order(scored, centred):
    groups = [scored("a", [2, 3]), scored("b", [1, 4])]
    (step,) = pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=100)
    tokens = flatten_completions(step.batches[0])
    assert tokens.sequence.tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 3, 3]
    assert tokens.advantages.tolist() == [-0.5] * 2 + [0.5] * 3 + [-0.5] + [0.5] * 4
    assert tokens.advantages.dtype == torch.float64
    assert tokens.rollout_logprobs.shape == tokens.loss_mask.shape == (10,)


def test_packing_leaves_the_given_groups_as_they_were(scored, centred):
    groups = [scored("a", [3, 9], finish=["stop", "length"])]
    pack(groups, centred(groups), optimizer_steps=1, max_batch_tokens=100, mask_truncated=True)
    assert all(bool(c.loss_mask.all()) for c in groups[0].group.completions)
    assert not isinstance(groups[0], Segment)
