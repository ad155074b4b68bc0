"""Several processes that hold the same weights and share the work of each step: data parallelism.

Each rank runs its own micro-batches; gradients are added up once per optimizer step.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, TrainingError, explain
from mmgrpo.parallel.strategy import Single, Strategy

Value = TypeVar("Value")

_BUCKET_BYTES = 64 * 2**20
_TIMEOUT = timedelta(hours=2)
"""How long a rank waits for another: a reward model may take its time over a few completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """One of several ranks that each hold the whole model."""

    rank: int
    """Number of this process, from 0."""
    world_size: int
    """How many ranks there are."""
    equal_micro_batches: bool = False
    """Gradients are added up once per optimizer step: no pass waits for another rank."""

    @property
    def is_main_process(self) -> bool:
        """Whether this rank writes the run folder and talks to the user."""
        return self.rank == 0

    def prepare(self, module: nn.Module) -> nn.Module:
        """Give the module back: every rank loaded all of it."""
        return module

    def all_gather(self, value: Value) -> list[Value]:
        """Give every rank the values of all, by rank."""
        values: list[Any] = [None] * self.world_size
        with self._others():
            torch_dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Value) -> Value:
        """Give every rank the main process's value."""
        return cast("Value", self.all_gather(value if self.is_main_process else None)[0])

    def any_rank(self, value: bool) -> bool:
        """Tell whether it is so in any rank."""
        return any(self.all_gather(value))

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, a few large sums instead of many small ones."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with self._others():
                torch_dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Give the tensor back: every rank holds all of it."""
        return tensor

    def on_main(self, write: Callable[[], Value]) -> Value | None:
        """Run it in the main process; the others wait."""
        written: Value | None = None
        failure: Exception | None = None
        if self.is_main_process:
            try:
                written = write()
            except Exception as error:  # told to the ranks that wait, then raised here
                failure = error
        message = self.broadcast(None if failure is None else str(failure))
        if failure is not None:
            raise failure
        if message is not None:
            raise TrainingError(message)
        return written

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
                    where=f"rank {self.rank} of {self.world_size}",
                    got=re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0])[:80],
                    fix="Fix the error reported by that process, beside this one or in its log.",
                )
            ) from error


def open_strategy() -> Strategy:
    """Join the other processes that ``torchrun`` started; without it there is one.

    Returns:
        This rank among them.

    Raises:
        ConfigError: There are fewer GPUs here than processes, or the environment speaks of several and says not how
            they are reached.
    """
    joined = torch_dist.is_available() and torch_dist.is_initialized()
    if not joined and os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return Single()
    if not joined:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus:
            torch.cuda.set_device(_local_gpu(gpus))
        _join("cpu:gloo,cuda:nccl" if gpus else "gloo")
        atexit.register(torch_dist.destroy_process_group)
    if torch_dist.get_world_size() == 1:
        return Single()
    return Replicated(rank=torch_dist.get_rank(), world_size=torch_dist.get_world_size())


def _join(backend: str) -> None:
    try:
        torch_dist.init_process_group(backend, timeout=_TIMEOUT)
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


def _local_gpu(gpus: int) -> int:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank < gpus:
        return local_rank
    raise ConfigError(
        explain(
            "There are fewer GPUs than processes",
            where="torchrun --nproc-per-node",
            expected=f"at most {gpus} on this machine",
            got=f"process {local_rank + 1} on it",
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
