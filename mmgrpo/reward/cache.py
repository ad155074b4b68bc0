"""Values of pure rewards, kept by everything that the reward sees of a completion.

Only rewards that declare themselves pure are asked; the key holds each of their arguments, media included.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.reward.columns import GIVEN
from mmgrpo.reward.loading import Loaded

_LIMIT = 100_000


class ValueCache:
    """The last values of one reward."""

    def __init__(self, reward: Loaded, limit: int = _LIMIT) -> None:
        self._reward = reward
        self._limit = limit
        self._values: OrderedDict[bytes, float] = OrderedDict()

    def keys(self, columns: Mapping[str, Sequence[Any]]) -> list[bytes | None]:
        """One key per row; None where an argument cannot be turned into one.

        Args:
            columns: Native columns.

        Returns:
            A digest of all that the reward can see of each row.
        """
        asked = self._reward.asked
        shared = {"ids", "group", "trainer_state", "log_metric", "log_extra"}
        seen = sorted(
            n
            for n in columns
            if (asked.everything or n in asked.names or n in _always(self._reward)) and n not in shared
        )
        digests: dict[int, bytes] = {}  # one picture is shared by its whole group
        return [self._key([columns[name][row] for name in seen], digests) for row in range(len(columns["ids"]))]

    def _key(self, values: list[Any], digests: dict[int, bytes]) -> bytes | None:
        digest = hashlib.blake2b(digest_size=16)
        try:
            for value in values:
                part = digests.get(id(value)) or hashlib.blake2b(_bytes(value), digest_size=16).digest()
                digests[id(value)] = part
                digest.update(part)
        except (pickle.PicklingError, TypeError, AttributeError):  # an argument that cannot be pickled
            return None
        return digest.digest()

    def get(self, key: bytes | None) -> float | None:
        """The value under a key, if it is known."""
        if key is None or key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: bytes | None, value: float) -> None:
        """Keep a value; the one unused for longest goes when there are too many."""
        if key is None:
            return
        self._values[key] = value
        if len(self._values) > self._limit:
            self._values.popitem(last=False)


def _always(reward: Loaded) -> tuple[str, ...]:
    """Other styles build their arguments from these columns."""
    return () if reward.style == "native" and not reward.asked.single else GIVEN


def _bytes(value: Any) -> bytes:
    if isinstance(value, list):  # pictures, one by one
        return b"|".join(hashlib.blake2b(_bytes(item), digest_size=16).digest() for item in value)
    if hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "size"):
        return repr((value.mode, value.size)).encode() + value.tobytes()
    return pickle.dumps(value)
