"""Several processes that hold the same weights and share the work of each step.

The only file that speaks to torch.distributed. Every process has the same configuration, draws its share of the rows,
and sees what all of them found; so all take the same decisions, and one that asks for something waits for the others.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mmgrpo.errors import ConfigError, TrainingError, explain

Value = TypeVar("Value")

_BUCKET_BYTES = 64 * 2**20
_PATIENCE = timedelta(hours=2)
"""How long a process waits for another: a judge may take its time over a few completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """This process among those of the run."""

    rank: int = 0
    """Number of this process, from 0."""
    world: int = 1
    """How many there are."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run folder and talks to the user."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """Give every process the values of all, in the order of their numbers.

        Args:
            value: Anything that can be pickled; tensors on the CPU.

        Raises:
            TrainingError: Another process has ended.
        """
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        with self._others():
            dist.all_gather_object(found, value)
        return found

    @contextmanager
    def _others(self) -> Generator[None]:
        """Say in one sentence that another process is gone: why, that one has told itself."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise TrainingError(
                explain(
                    "Another process of this run has ended, or cannot be reached",
                    where=f"process {self.rank + 1} of {self.world}",
                    got=re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0])[:80],
                    fix="Mend what the message of that process says, beside this one or in its log.",
                )
            ) from error

    def as_first(self, value: Value) -> Value:
        """Give every process the first one's value."""
        return self.gather(value if self.is_first else None)[0]  # type: ignore[return-value]

    def any(self, value: bool) -> bool:
        """Tell whether it is so in any process."""
        return any(self.gather(value))

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes.

        Args:
            tensors: The same shapes in the same order everywhere.

        Raises:
            TrainingError: Another process has ended.
        """
        if self.world == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with self._others():
                dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))


def open_processes() -> Processes:
    """Join the other processes that ``torchrun`` started; without it there is one.

    Returns:
        This process among them.

    Raises:
        ConfigError: There are fewer GPUs here than processes, or the environment speaks of several and says not how
            they are reached.
    """
    joined = dist.is_available() and dist.is_initialized()
    if not joined and os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return Processes()
    if not joined:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus:
            torch.cuda.set_device(_own_gpu(gpus))
        _join("cpu:gloo,cuda:nccl" if gpus else "gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(rank=dist.get_rank(), world=dist.get_world_size())


def _join(backend: str) -> None:
    try:
        dist.init_process_group(backend, timeout=_PATIENCE)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            explain(
                "The other processes of the run cannot be joined",
                where=f"WORLD_SIZE {os.environ.get('WORLD_SIZE')} in the environment",
                expected="what torchrun sets: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
                got=str(error).splitlines()[0][:160],
                fix="Start with torchrun --nproc-per-node N -m mmgrpo train …; for one process unset WORLD_SIZE.",
            )
        ) from error


def _own_gpu(gpus: int) -> int:
    own = int(os.environ.get("LOCAL_RANK", "0"))
    if own < gpus:
        return own
    raise ConfigError(
        explain(
            "There are fewer GPUs than processes",
            where="torchrun --nproc-per-node",
            expected=f"at most {gpus} on this machine",
            got=f"process {own + 1} on it",
        )
    )


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group tensors of one type and device, in order, so that few large sums are taken instead of many small ones."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        alike = buckets and (buckets[-1][0].dtype, buckets[-1][0].device) == (tensor.dtype, tensor.device)
        if not alike or size + tensor.nbytes > _BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets
