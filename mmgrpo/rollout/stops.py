"""Stop strings: when a completion that is being written ends with one.

Decoding after every token would cost as much as drawing it. A stop string can only end in a token that shows its last
character, so the text is looked at after such tokens alone. Knows tokens and text, not models.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

SPECIAL_RUN = 4
"""A stop string is found across special tokens, up to this many times its own length."""
UNFINISHED = "\ufffd"
"""What stands in decoded text for a character whose other bytes are in another token."""


class StopStrings:
    """Watches completions for stop strings.

    Args:
        tokenizer: Turns tokens into text.
        special: Tokens that do not show.
        stops: The strings; may be none. An empty one ends in every token.
    """

    def __init__(self, tokenizer: Any, special: AbstractSet[int], stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._tokenizer, self._special = tokenizer, special
        self._last = {s[-1] for s in self.stops if s}
        # a tokenizer may write spaces that a token alone does not show, or take some away
        cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self._anywhere = cleans or "" in self.stops or any(c.isspace() for c in self._last)
        self._longest = max((len(s.encode()) for s in self.stops), default=0) + 8
        self._known: dict[int, bool] = {}

    def ended(self, tokens: Sequence[int]) -> bool:
        """Tell whether a stop string ends in the last of these tokens. To be asked after every token."""
        if not self.stops or not self._may_end(tokens[-1]):
            return False
        # it may begin in the middle of a token: look at the last tokens that can hold it, of those that show
        told = [t for t in tokens[-SPECIAL_RUN * self._longest :] if t not in self._special]
        text = self._decode(told[-self._longest :])
        return any(s in text for s in self.stops)

    def _may_end(self, token: int) -> bool:
        if token not in self._known:
            piece = "" if token in self._special else self._decode([token])
            unsure = not piece or UNFINISHED in piece or self._anywhere
            self._known[token] = token not in self._special and (unsure or not self._last.isdisjoint(piece))
        return self._known[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)
