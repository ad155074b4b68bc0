"""Text that came from a model, made safe to print and to write. It knows no format."""

from __future__ import annotations


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
