"""Ranks of a run as threads of one process: each call that all ranks must make waits for the others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Meeting:
    """Where the ranks of a run meet."""

    world_size: int
    equal_micro_batches: bool = False
    values: list[Any] = field(default_factory=list)

    def __post_init__(self):
        self.values = [None] * self.world_size
        self.barrier = threading.Barrier(self.world_size, timeout=60)


class ThreadRank:
    """One of them; fulfils ``mmgrpo.parallel.strategy.Strategy``."""

    def __init__(self, rank, meeting):
        self.rank, self.meeting, self.world_size = rank, meeting, meeting.world_size
        self.is_main_process, self.equal_micro_batches = rank == 0, meeting.equal_micro_batches

    def prepare(self, module):
        return module

    def all_gather(self, value):
        self.meeting.values[self.rank] = value
        self.meeting.barrier.wait()
        values = list(self.meeting.values)
        self.meeting.barrier.wait()
        return values

    def broadcast(self, value):
        return self.all_gather(value)[0]

    def any_rank(self, value):
        return any(self.all_gather(value))

    def all_reduce_sum(self, tensors):
        everyone = self.all_gather([tensor.clone() for tensor in tensors])
        for tensor, parts in zip(tensors, zip(*everyone, strict=True), strict=True):
            tensor.copy_(torch.stack(list(parts)).sum(0))

    def full_tensor(self, tensor):
        return tensor

    def on_main(self, write):
        written = write() if self.is_main_process else None
        self.all_gather(None)
        return written


def in_ranks(work, world_size=2, **options):
    """Run ``work(dist)`` in so many ranks at once; what each gave."""
    meeting = Meeting(world_size, **options)

    def one(rank):
        try:
            return work(ThreadRank(rank, meeting))
        except BaseException:
            meeting.barrier.abort()  # the others must not wait for ever
            raise

    with ThreadPoolExecutor(world_size) as pool:
        return [future.result() for future in [pool.submit(one, rank) for rank in range(world_size)]]
