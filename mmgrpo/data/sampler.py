"""Which row comes when: a pure function of the position in the run.

No state but a cached permutation, so that resuming needs one whole number. Knows no rows, only how many there are.
"""

from __future__ import annotations

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

    def __init__(self, num_rows: int, *, seed: int = 0, shuffle: bool = True) -> None:
        """Order ``num_rows`` rows.

        Args:
            num_rows: At least one.
            seed: Which orders.
            shuffle: False keeps the source's order in every epoch.
        """
        self.num_rows = num_rows
        self._seed, self._shuffle = seed, shuffle
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def row(self, position: int) -> int:
        """Give the row at a position of the endless run.

        Args:
            position: How many rows came before, from 0; ``position // num_rows`` is the epoch.

        Returns:
            A row number; the same for the same seed, number of rows and position, in every version of numpy.
        """
        epoch, step = divmod(position, self.num_rows)
        return int(self._permutation(epoch)[step]) if self._shuffle else step

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            # RandomState's streams are frozen for ever, those of newer generators are not.
            state = np.random.RandomState([self._seed % _WORD, self._seed // _WORD % _WORD, epoch % _WORD])
            self._epoch, self._order = epoch, state.permutation(self.num_rows)
        return self._order
