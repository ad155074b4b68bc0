"""An endless, resumable source of prompts: the next rows in order, each turned into a prompt.

Gets the function that makes a prompt as an argument and knows no processor. A row that is left out takes its answer
with it: nothing shifts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from mmgrpo.data.sampler import RowOrder
from mmgrpo.data.samples import Samples
from mmgrpo.errors import DatasetError, MediaError, explain
from mmgrpo.types import Prompt, Sample

OnBadMedia = Literal["error", "skip"]


class PromptFeed:
    """Hands out prompts in a seeded order (``contracts.Feed``)."""

    def __init__(
        self,
        samples: Samples,
        encode: Callable[[Sample, int], Prompt],
        *,
        seed: int = 0,
        shuffle: bool = True,
        on_bad_media: OnBadMedia = "error",
        left_out: Iterable[int] = (),
    ) -> None:
        """Start at the first position.

        Args:
            samples: Where rows come from.
            encode: Makes a prompt of a sample and its occurrence.
            seed: Order of the rows.
            shuffle: A new order each epoch; False keeps the source's.
            on_bad_media: Raise, or leave out rows whose medium cannot be read.
            left_out: Rows found unreadable before.
        """
        self._samples, self._encode = samples, encode
        self._order = RowOrder(len(samples), seed=seed, shuffle=shuffle)
        self._on_bad_media = on_bad_media
        self._left_out = set(left_out)
        self._position = 0

    @property
    def left_out(self) -> frozenset[int]:
        """Rows that are left out because a medium of theirs cannot be read."""
        return frozenset(self._left_out)

    def take(self, count: int) -> list[Prompt]:
        """Hand out the next ``count`` prompts.

        Args:
            count: How many.

        Returns:
            Prompts whose ``occurrence`` is their position in the run.

        Raises:
            MediaError: A medium cannot be read, under ``on_bad_media: error``; the message names the row.
            DatasetError: A row is malformed, or no row is left.
            ProcessorError: A prompt cannot be made.
        """
        prompts: list[Prompt] = []
        missed = 0
        while len(prompts) < count:
            row, occurrence = self._order.row(self._position), self._position
            prompt = None if row in self._left_out else self._prompt(row, occurrence)
            self._position += 1
            if prompt is not None:
                prompts.append(prompt)
                missed = 0
                continue
            missed += 1
            if missed >= self._order.num_rows:
                raise DatasetError(explain("No row is left whose media can be read", where=self._samples.rows.name))
        return prompts

    def state(self) -> Mapping[str, Any]:
        """Say where consumption stands."""
        return {"position": self._position, "num_rows": self._order.num_rows}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` stood.

        Args:
            state: What :meth:`state` returned.
        """
        if state.get("num_rows", self._order.num_rows) != self._order.num_rows:
            warnings.warn(
                f"The data had {state['num_rows']} rows when the run was saved and have {self._order.num_rows} now: "
                "rows seen before may come again in this epoch.",
                stacklevel=2,
            )
        self._position = int(state["position"])

    def _prompt(self, row: int, occurrence: int) -> Prompt | None:
        try:
            return self._encode(self._samples[row], occurrence)
        except MediaError as error:
            where = self._samples.where(row)
            if self._on_bad_media == "error":
                raise MediaError(with_row(str(error), where)) from error
            self._left_out.add(row)
            warnings.warn(left_out_line(with_row(str(error), where)), stacklevel=3)
            return None


def with_row(message: str, where: str) -> str:
    """Add the row to a message that does not name it yet.

    Args:
        message: An error's message.
        where: The row's place.

    Example:
        >>> print(with_row("A picture is damaged.", "data.jsonl:3"))
        A picture is damaged.
          row: data.jsonl:3
    """
    return message if where in message else f"{message}\n  row: {where}"


def left_out_line(message: str) -> str:
    r"""Put a message about a row that is left out on one line, without its advice: it was taken.

    Args:
        message: An error's message, with its row.

    Example:
        >>> left_out_line("A picture is damaged.\n  fix: Replace it.\n  row: data.jsonl:3")
        'Row left out: A picture is damaged; row: data.jsonl:3'
    """
    first, *facts = message.splitlines()
    kept = [fact.strip() for fact in facts if not fact.startswith("  fix:")]
    return "; ".join([f"Row left out: {first.rstrip('.')}", *kept])
