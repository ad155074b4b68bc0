"""What this room needs of a policy: ``Policy`` of ``mmgrpo.policy.model`` has it, and so has the fake of the tests.

Knows no model.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.types import Batch


class TokenStats(Protocol):
    """What a forward pass says of the K completion tokens of a batch, in packed order."""

    @property
    def logprobs(self) -> Float[Tensor, "K"]:
        """Log p of each token given everything before it, in nats."""
        ...

    @property
    def entropy(self) -> Float[Tensor, "K"] | None:
        """Entropy of the distribution each token was drawn from, in nats; None unless asked for."""
        ...


class TrainablePolicy(Protocol):
    """A model that learns."""

    @property
    def device(self) -> torch.device:
        """Where its tensors live."""
        ...

    def logprobs(self, batch: Batch, *, temperature: float, entropy: bool = False) -> TokenStats:
        """Read a packed micro-batch; differentiable unless called under ``torch.no_grad()``."""
        ...

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that learn."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """Answer as the frozen reference inside the context."""
        ...

    def reference_state(self) -> dict[str, Tensor] | None:
        """Give the reference's own weights; empty when it shares the policy's, None when there is no reference."""
        ...

    def load_reference(self, state: dict[str, Tensor] | None) -> None:
        """Take back what :meth:`reference_state` gave."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and processor into a folder."""
        ...

    def load_weights_from(self, folder: Path) -> None:
        """Read back what :meth:`save` wrote."""
        ...
