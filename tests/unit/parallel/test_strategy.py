"""What ranks do together: the protocol, one process, and groups shown to all."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
import torch
from small_policy import scored_group
from thread_ranks import in_ranks

from mmgrpo.parallel import replicated, strategy
from mmgrpo.parallel.groups import all_gather_groups
from mmgrpo.parallel.replicated import Replicated
from mmgrpo.parallel.strategy import Single, Strategy


def at(name, draw_index):
    scored = scored_group(name, [2, 3])
    return replace(scored, group=replace(scored.group, prompt=replace(scored.group.prompt, draw_index=draw_index)))


@pytest.mark.parametrize("dist", [Single(), Replicated(rank=1, world_size=2)], ids=["single", "replicated"])
def test_each_strategy_has_what_the_protocol_names(dist):
    assert isinstance(dist, Strategy)
    assert dist.is_main_process == (dist.rank == 0)
    tensor = torch.ones(2)
    assert dist.full_tensor(tensor) is tensor


def test_a_file_is_written_once_and_its_error_is_raised_where_it_happened():
    assert Single().on_main(lambda: 3) == 3
    with pytest.raises(OSError, match="full"):
        Single().on_main(lambda: (_ for _ in ()).throw(OSError("full")))


def test_groups_come_in_the_order_of_one_process_and_say_whether_they_are_local():
    own = [[at("a", 0), at("c", 2)], [at("b", 1), at("d", 3)]]
    everyone = in_ranks(lambda dist: all_gather_groups(dist, own[dist.rank]))
    for rank, groups in enumerate(everyone):
        assert [one.group.prompt.sample.id for one in groups] == list("abcd")
        assert [one.is_local for one in groups] == [place % 2 == rank for place in range(4)]
        assert all(one in groups for one in own[rank]), "those of this rank keep all that they hold"


def test_a_rank_without_groups_sees_those_of_the_others():
    own = [[at("a", 0)], []]
    assert [len(groups) for groups in in_ranks(lambda dist: all_gather_groups(dist, own[dist.rank]))] == [1, 1]


def test_many_small_tensors_are_summed_in_few_buckets_of_one_type():
    tensors = [torch.ones(3), torch.ones(2), torch.ones(1, dtype=torch.float64), torch.ones(4)]
    assert [len(bucket) for bucket in replicated._buckets(tensors)] == [2, 1, 1]


def test_examples_run():
    assert doctest.testmod(strategy).failed == 0
