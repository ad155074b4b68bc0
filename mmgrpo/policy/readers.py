"""Prompts that many rows continue: their keys and values, kept once and read in place by all rows of a prompt.

Which row continues which prompt is known on the host, so that no step waits for the device. Knows tensors, not models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.policy.layout import Span
from mmgrpo.policy.partial import attend_part, key_mask, widened

KeysValues = tuple[Float[Tensor, "N J P D"], Float[Tensor, "N J P D"]]


class SharedPrompts:
    """N prompts and the R rows that continue them.

    Args:
        layers: Keys and values of a packed row of prompts, by layer: ``[T, J, D]`` and ``[T, J, W]``.
        spans: Where each prompt stands in that row.
        group: The prompt of each row, rising.
    """

    def __init__(
        self, layers: Mapping[int, tuple[Tensor, Tensor]], spans: Sequence[Span], group: Sequence[int]
    ) -> None:
        self.group = list(group)
        self.lengths = [s.prompt for s in spans]
        first = next(iter(layers.values()))[0]
        self._device, self._dtype = first.device, first.dtype
        index = _padded_rows(spans).to(self._device)
        self._layers: dict[int, KeysValues] = {
            layer: (_gathered(k, index, v.shape[-1]), _gathered(v, index, k.shape[-1]))
            for layer, (k, v) in layers.items()
        }
        self._arrange()

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, and with them the prompts that nobody continues."""
        self.group = [self.group[i] for i in rows]
        alive = sorted(set(self.group))
        if len(alive) < len(self.lengths):
            self.lengths = [self.lengths[i] for i in alive]
            longest, index = max(self.lengths, default=0), torch.tensor(alive, dtype=torch.long).to(self._device)
            self._layers = {
                layer: (k[:, :, :longest].index_select(0, index), v[:, :, :longest].index_select(0, index))
                for layer, (k, v) in self._layers.items()
            }
            place = {prompt: i for i, prompt in enumerate(alive)}
            self.group = [place[i] for i in self.group]
        self._arrange()

    def attend(
        self, layer: int, query: Float[Tensor, "R J r D"], scale: float
    ) -> tuple[Float[Tensor, "R J r D"], Float[Tensor, "R J r"]]:
        """Attend from each row to its prompt.

        Args:
            layer: Whose keys.
            query: One query per row and head; r heads share a key head.
            scale: Factor of the scores.

        Returns:
            Outputs, as wide as the wider of keys and values, and each query's log-sum-exp.
        """
        k, v = self._layers[layer]
        ratio = query.shape[2]
        # queries of one prompt stand side by side, so that its keys are read once for all of them
        out, lse = attend_part(self._by_prompt(widened(query, k.shape[-1])), k, v, scale, mask=self._mask)
        return self._by_row(out, ratio), self._by_row(lse[..., None], ratio)[..., 0]

    def _arrange(self) -> None:
        """Give each row a slot beside the other rows of its prompt."""
        counts = Counter(self.group)
        self._most = max(counts.values(), default=0)
        self._row_of_slot: Tensor | None = None
        if len(self.group) != self._most * len(self.lengths):  # else rows stand in their slots already
            starts = [0]
            for prompt in range(len(self.lengths)):
                starts.append(starts[-1] + counts[prompt])
            slots = torch.tensor([p * self._most + i - starts[p] for i, p in enumerate(self.group)])
            rows = torch.zeros(self._most * len(self.lengths), dtype=torch.long)
            rows[slots] = torch.arange(len(slots))
            self._slot_of_row, self._row_of_slot = slots.to(self._device), rows.to(self._device)
        longest = max(self.lengths, default=0)
        self._mask = key_mask(self.lengths, longest, self._dtype, self._device)

    def _by_prompt(self, x: Float[Tensor, "R J r D"]) -> Float[Tensor, "N J mr D"]:
        slots = x if self._row_of_slot is None else x.index_select(0, self._row_of_slot)
        return slots.unflatten(0, (-1, self._most)).transpose(1, 2).flatten(2, 3)

    def _by_row(self, x: Float[Tensor, "N J mr D"], ratio: int) -> Float[Tensor, "R J r D"]:
        slots = x.unflatten(2, (self._most, ratio)).transpose(1, 2).flatten(0, 1)
        return slots if self._row_of_slot is None else slots.index_select(0, self._slot_of_row)


def _padded_rows(spans: Sequence[Span]) -> Tensor:
    """Row index of each prompt's tokens, ``[N, P]``; padding repeats the first."""
    steps = torch.arange(max(s.prompt for s in spans)).expand(len(spans), -1)
    lengths, starts = (torch.tensor(x)[:, None] for x in ([s.prompt for s in spans], [s.start for s in spans]))
    return starts + steps.masked_fill(steps >= lengths, 0)


def _gathered(x: Float[Tensor, "T J D"], index: Tensor, width: int) -> Float[Tensor, "N J P D"]:
    rows = x.index_select(0, index.flatten()).unflatten(0, index.shape)
    return widened(rows.transpose(1, 2), max(x.shape[-1], width)).contiguous()
