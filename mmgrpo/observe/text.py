"""Text made safe to print and to write, and a standard error that may be gone. It knows no format."""

from __future__ import annotations

import sys
import textwrap
from typing import Any


def encodable(text: str) -> str:
    r"""Make text valid UTF-8: half a surrogate pair is written as its escape.

    Example:
        >>> encodable("ok " + chr(0xD83D))
        'ok \\ud83d'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str, *, limit: int | None = None) -> str:
    r"""Make text safe for a terminal and keep it on one line.

    Args:
        text: Anything; control characters, line breaks and marks that reorder text become visible escapes.
        limit: Longest result, in characters; the middle is left out beyond it.

    Returns:
        Printable characters only. Square brackets stay: print it as ``rich.text.Text``, not as markup.

    Example:
        >>> printable("\x1b[31m three\n")
        '\\x1b[31m three\\n'
    """
    shown = "".join(letter if letter.isprintable() else _escape(letter) for letter in text)
    if limit is None or len(shown) <= limit:
        return shown
    head = (limit - 1) // 2
    return f"{shown[:head]}…{shown[len(shown) - (limit - 1 - head) :]}"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def duration(seconds: float) -> str:
    """Write a time span as people read it.

    Example:
        >>> duration(9.5), duration(163), duration(3723)
        ('9.5 s', '2:43', '1:02:03')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def wrapped(text: str, width: int) -> str:
    r"""Break a line between words; the rest is indented, and what is longer than a line stays whole.

    Args:
        text: One line.
        width: Of the terminal, in characters.

    Example:
        >>> wrapped("each step: 2 prompts", 12)
        'each step: 2\n  prompts'
    """
    if len(text) <= width:
        return text
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


class Stderr:
    """Standard error that never ends a run: what cannot be written, because it is closed or full, is dropped.

    Stands for whatever ``sys.stderr`` is at the time, unless a stream is given.
    """

    def __init__(self, stream: Any = None) -> None:
        """Take a stream; None: ``sys.stderr``."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop."""
        try:
            return len(text) if self._target is None else self._target.write(text)
        except (OSError, ValueError):  # ValueError: a file object that is closed
            return len(text)

    def flush(self) -> None:
        """Flush, if there is something to."""
        try:
            if self._target is not None:
                self._target.flush()
        except (OSError, ValueError):
            pass

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        try:
            return self._target is not None and self._target.isatty()
        except ValueError:
            return False

    @property
    def _target(self) -> Any:
        return sys.stderr if self._stream is None else self._stream

    def __getattr__(self, name: str) -> Any:
        """What else is asked of a stream, its encoding for example, is the stream's own."""
        return getattr(self._target, name)
