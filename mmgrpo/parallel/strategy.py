"""How the weights and the work of a run are spread over its ranks: the protocol, and one process alone.

Every rank has the same configuration, draws its shard of the rows, and sees what all ranks measured; so all take the
same decisions, and one that asks for something waits for the others. Knows no torch.distributed:
:mod:`mmgrpo.parallel.replicated` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

Value = TypeVar("Value")


@runtime_checkable
class Strategy(Protocol):
    """This rank among those of the run, and what they do together. A method that all ranks must call says so."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        ...

    @property
    def is_main_process(self) -> bool:
        """Whether this rank writes the run folder and talks to the user."""
        ...

    @property
    def equal_micro_batches(self) -> bool:
        """Whether all ranks must run as many forward and backward passes as each other."""
        ...

    def prepare(self, module: nn.Module) -> nn.Module:
        """Spread a loaded module over the ranks; give what is to be called in its place. All ranks."""
        ...

    def all_gather(self, value: Value) -> list[Value]:
        """Give every rank the values of all, by rank. All ranks.

        Args:
            value: Anything that can be pickled; tensors on the CPU.

        Raises:
            TrainingError: Another process has ended.
        """
        ...

    def broadcast(self, value: Value) -> Value:
        """Give every rank the main process's value. All ranks."""
        ...

    def any_rank(self, value: bool) -> bool:
        """Tell whether it is so in any rank. All ranks."""
        ...

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks. All ranks.

        Args:
            tensors: The same shapes in the same order everywhere.

        Raises:
            TrainingError: Another process has ended.
        """
        ...

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Give the whole of a weight of which a rank may hold a shard. All ranks."""
        ...

    def on_main(self, write: Callable[[], Value]) -> Value | None:
        """Run something in the main process alone, and let no rank go on before it is done. All ranks.

        Args:
            write: For example writes a file.

        Returns:
            What it gave; None in other ranks.

        Raises:
            TrainingError: It failed in the main process, told to every other rank; there its own error is raised.
        """
        ...


class Single:
    """One process that holds everything.

    Example:
        >>> Single().all_gather("only me"), Single().is_main_process
        (['only me'], True)
    """

    rank: int = 0
    world_size: int = 1
    is_main_process: bool = True
    equal_micro_batches: bool = False

    def prepare(self, module: nn.Module) -> nn.Module:
        """Give the module back."""
        return module

    def all_gather(self, value: Value) -> list[Value]:
        """Give the value in a list."""
        return [value]

    def broadcast(self, value: Value) -> Value:
        """Give the value back."""
        return value

    def any_rank(self, value: bool) -> bool:
        """Give the value back."""
        return value

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Leave the tensors: they are the sums."""

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Give the tensor back: it is whole."""
        return tensor

    def on_main(self, write: Callable[[], Value]) -> Value | None:
        """Run it."""
        return write()
