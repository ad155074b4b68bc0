"""Which row comes when: a pure function of the position in the run.

No state but a cached permutation, so that resuming needs one whole number. Knows no rows, only how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = 2**32


class RowOrder:
    """Every row once an epoch, in an order of its own for each epoch.

    Example:
        >>> order = RowOrder(3, seed=0, shuffle=False)
        >>> [order.row(position) for position in range(5)]
        [0, 1, 2, 0, 1]
    """

    def __init__(self, num_rows: int, *, seed: int = 0, shuffle: bool = True, together: int = 1) -> None:
        """Order ``num_rows`` rows.

        Args:
            num_rows: At least one.
            seed: Which orders.
            shuffle: False keeps the source's order in every epoch.
            together: So many rows behind one another stay together; a divisor of ``num_rows``.
        """
        self.num_rows = num_rows
        self._seed, self._shuffle, self._together = seed, shuffle, together
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def row(self, position: int) -> int:
        """Give the row at a position of the endless run.

        Args:
            position: How many rows came before, from 0; ``position // num_rows`` is the epoch.

        Returns:
            A row number; the same for the same seed, number of rows and position, in every version of numpy.
        """
        epoch, step = divmod(position, self.num_rows)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.permutation(epoch)
        return int(self._order[step])

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """Give the whole order of one epoch.

        Args:
            epoch: From 0.
        """
        if not self._shuffle:
            return np.arange(self.num_rows)
        # RandomState's streams are frozen for ever, those of newer generators are not.
        state = np.random.RandomState([self._seed % _WORD, self._seed // _WORD % _WORD, epoch % _WORD])
        first = state.permutation(self.num_rows // self._together) * self._together
        return (first[:, None] + np.arange(self._together)).reshape(-1)


class EasyFirst(RowOrder):
    """Rows by difficulty in the first epochs, rows of equal difficulty in a seeded order; later shuffled.

    Example:
        >>> order = EasyFirst([3.0, 1.0, 2.0], epochs=1)
        >>> [order.row(position) for position in range(3)]
        [1, 2, 0]
    """

    def __init__(
        self,
        difficulty: Sequence[float],
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        together: int = 1,
    ) -> None:
        """Order one row for each entry of ``difficulty``.

        Args:
            difficulty: Grows with difficulty.
            epochs: So many epochs go from easy to hard.
            seed: Order among equals, and of later epochs.
            shuffle: As for :class:`RowOrder`.
            together: As there; such rows are equally difficult.
        """
        super().__init__(len(difficulty), seed=seed, shuffle=shuffle, together=together)
        self._difficulty, self._epochs = np.asarray(difficulty, dtype=np.float64), epochs

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """Give the whole order of one epoch.

        Args:
            epoch: From 0.
        """
        shuffled = super().permutation(epoch)
        if epoch >= self._epochs:
            return shuffled
        return shuffled[np.argsort(self._difficulty[shuffled], kind="stable")]
