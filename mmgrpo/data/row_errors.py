"""Words about rows that cannot be used.

Pure functions on messages of errors.
"""

from __future__ import annotations


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
