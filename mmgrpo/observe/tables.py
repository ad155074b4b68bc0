"""The tables that a run prints: what was measured before and after, and which parameters learn.

Rows are names and numbers; text in them may come from anywhere and is printed as it stands, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmgrpo.observe.text import printable


def results_table(
    after: Mapping[str, float],
    *,
    before: Mapping[str, float] | None = None,
    errors: Mapping[str, float] | None = None,
    title: str = "Held-out rows",
    heads: tuple[str, str] = ("before", "after"),
) -> Table:
    """Lay out what evaluation measured, before and after.

    Args:
        after: Name and value, in the order of the table; shares between 0 and 1.
        before: The same at the start; None: there was no evaluation then.
        errors: Standard error of the change (paired, where rows are the same), for the names that have one.
        title: What was evaluated.
        heads: What stands above the two columns; the second alone where there is one.

    Returns:
        A table for ``Console.print``; absent values are shown as a dash.
    """
    table = Table(title=Text(printable(title)), title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for head in (*heads, "change") if before is not None else heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for name in {**after, **(before or {})}:
        table.add_row(_text(name), *_cells(name, after, before, errors or {}))
    return table


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print one line per fact, for example steps, seconds, run folder; long paths are not broken.

    Args:
        console: Where to.
        facts: Name and value.
    """
    for name, value in facts.items():
        console.print(Text(f"{printable(name)}: {printable(value)}"), soft_wrap=True)


def parameters_table(parts: Mapping[str, tuple[int, int]]) -> Table:
    """Lay out how many parameters of each part learn.

    Args:
        parts: Part and its (trainable, all) parameters, in numbers.

    Returns:
        A table with a total.
    """
    table = Table(title="Parameters", title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("part")
    for head in ("trainable", "of", "share"):
        table.add_column(head, justify="right")
    for name, (trainable, whole) in parts.items():
        table.add_row(_text(name), f"{trainable:,}", f"{whole:,}", _share(trainable, whole))
    trainable, whole = (sum(counts[i] for counts in parts.values()) for i in (0, 1))
    table.add_section()
    table.add_row("all", f"{trainable:,}", f"{whole:,}", _share(trainable, whole))
    return table


def _cells(
    name: str, after: Mapping[str, float], before: Mapping[str, float] | None, errors: Mapping[str, float]
) -> list[str]:
    now = _number(after.get(name))
    if before is None:
        return [now]
    change = ""
    if name in after and name in before and not math.isnan(after[name] - before[name]):
        change = f"{after[name] - before[name]:+.3f}"
        change += f" ± {errors[name]:.3f}" if name in errors else ""
    return [_number(before.get(name)), now, change]


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _share(trainable: int, whole: int) -> str:
    return f"{100 * trainable / whole:.1f} %" if whole else "-"


def _text(text: str) -> Text:
    return Text(printable(text))
