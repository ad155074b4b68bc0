"""What a look at every row found, and the page that says it: rows, media, tokens, answers, refusals.

Gathers facts of rows one by one and knows neither processor nor decoder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmgrpo.errors import MmgrpoError, ProcessorError, PromptTooLong

_KINDS = ("image", "video", "audio")
_LISTED_ROWS = 8
_LISTED_ANSWERS = 10
_BAR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What one row gave."""

    row: int
    media: Mapping[str, int] = field(default_factory=dict[str, int])
    """Media by kind."""
    tokens: int = 0
    """Tokens of the prompt, placeholders expanded."""
    media_tokens: int = 0
    """How many of them stand for media."""
    answer: Any = None
    error: MmgrpoError | None = None
    """Why the row cannot be used; None: it can."""
    where: str = ""
    """File and line of the row; told of rows that cannot be used."""


@dataclass(slots=True)
class Findings:
    """Facts of all rows of one source, gathered."""

    name: str
    """What messages call the source."""
    forms: Mapping[str, str]
    """Source to the form of its rows."""
    limit: int | None = None
    """``data.max_prompt_tokens``."""
    left_out: tuple[type[MmgrpoError], ...] = ()
    """Errors whose rows are left out of training and so not refused."""
    rows: int = 0
    media: Counter[tuple[tuple[str, int], ...]] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=list)
    media_tokens: list[int] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    over: list[int] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    where: dict[int, str] = field(default_factory=dict)
    """Where the rows stand that are skipped or refused."""

    def add(self, facts: RowFacts) -> None:
        """Take one row in."""
        self.rows += 1
        if facts.error is not None or (self.limit is not None and facts.tokens > self.limit):
            self.where[facts.row] = facts.where
        if facts.error is not None:
            kept = self.skipped if isinstance(facts.error, self.left_out) else self.refused
            kept[facts.row] = reason(facts.error)
            return
        self.media[tuple((kind, facts.media[kind]) for kind in _KINDS if facts.media.get(kind))] += 1
        self.tokens.append(facts.tokens)
        self.media_tokens.append(facts.media_tokens)
        self.answers[plain_answer(facts.answer)] += 1
        if self.limit is not None and facts.tokens > self.limit:
            self.over.append(facts.row)
            kept = self.skipped if PromptTooLong in self.left_out else self.refused
            kept[facts.row] = f"the prompt is longer than data.max_prompt_tokens ({self.limit})"

    @property
    def usable(self) -> int:
        """Rows that training can draw."""
        return self.rows - len(self.skipped) - len(self.refused)

    def summary(self) -> dict[str, Any]:
        """Give all numbers, for JSON."""
        return {
            "name": self.name,
            "forms": dict(self.forms),
            "rows": self.rows,
            "usable": self.usable,
            "skipped": {str(row): why for row, why in sorted(self.skipped.items())},
            "refused": {str(row): why for row, why in sorted(self.refused.items())},
            "where": {str(row): place for row, place in sorted(self.where.items())},
            "media_per_row": {_media_text(key): count for key, count in self.media.most_common()},
            "tokens": spread(self.tokens),
            "media_tokens": spread(self.media_tokens),
            "over_limit": self.over,
            "answers": dict(self.answers.most_common()),
        }


def reason(error: MmgrpoError) -> str:
    """Say in one line why a row cannot be used, in words that are the same for every row with this fault."""
    first = str(error).splitlines()[0].rstrip(".")
    if isinstance(error, ProcessorError):
        got = re.search(r"^  got: (.*)$", str(error), re.M)
        return f"{first}: {got[1][:100]}" if got and "refuses" in first else first
    return first


def plain_answer(answer: Any) -> str:
    """Write an answer as the distribution shows it: without answer tags and outer space.

    Example:
        >>> plain_answer("<answer> 3 </answer>"), plain_answer(3), plain_answer(None)
        ('3', '3', '(none)')
    """
    if answer is None:
        return "(none)"
    found = re.fullmatch(r"\s*<answer>(.*?)</answer>\s*", str(answer), re.S)
    return (found[1] if found else str(answer)).strip()[:60]


def spread(values: Sequence[int]) -> dict[str, int]:
    """Give the smallest, the median, the 95th percentile and the largest; nothing for no values.

    Example:
        >>> spread([4, 1, 2, 3])
        {'min': 1, 'median': 2, 'p95': 4, 'max': 4}
    """
    if not values:
        return {}
    ranked = sorted(values)

    def at(share: float) -> int:
        """Pick the value of a rank."""
        return ranked[max(0, -int(-share * len(ranked) // 1) - 1)]

    return {"min": ranked[0], "median": at(0.5), "p95": at(0.95), "max": ranked[-1]}


def page(found: Findings) -> str:
    """Write the findings for people.

    Args:
        found: Of one source.
    """
    forms = ", ".join(f"{form} ({name})" if len(found.forms) > 1 else form for name, form in found.forms.items())
    lines = [
        found.name,
        f"  form       {forms}",
        f"  rows       {found.rows:,} read, {found.usable:,} usable, {len(found.skipped):,} skipped, "
        f"{len(found.refused):,} refused",
    ]
    lines += _labelled("media", [f"{_media_text(key)}: {_rows(count)}" for key, count in found.media.most_common(6)])
    lines += _labelled("tokens", _tokens(found))
    lines += _labelled("answers", _answers(found.answers))
    lines += _labelled("skipped", _grouped(found.skipped, found.where))
    lines += _labelled("refused", _grouped(found.refused, found.where))
    return "\n".join(lines)


def _labelled(label: str, texts: Iterable[str]) -> list[str]:
    """Put a label before the first line, and nothing before the others."""
    return [f"  {label if i == 0 else '':10} {text}" for i, text in enumerate(texts)]


def _tokens(found: Findings) -> list[str]:
    if not found.tokens:
        return []
    whole, media = spread(found.tokens), spread(found.media_tokens)
    lines = [
        "  ".join(f"{name} {value:,}" for name, value in whole.items()) + " per prompt",
        "  ".join(f"{name} {value:,}" for name, value in media.items()) + " of them for media",
    ]
    if found.limit is not None:
        lines.append(f"{len(found.over):,} prompts over data.max_prompt_tokens {found.limit:,}")
    return lines


def _answers(answers: Counter[str]) -> list[str]:
    """Show whole numbers in order with bars, anything else by how often it comes."""
    if not answers:
        return []
    counts = all(re.fullmatch(r"-?\d{1,9}", answer) for answer in answers) and len(answers) <= 40
    shown = sorted(answers.items(), key=lambda item: int(item[0])) if counts else answers.most_common(_LISTED_ANSWERS)
    most, width = max(answers.values()), max(len(answer) for answer, _ in shown)
    lines = [f"{len(answers):,} different"] if not counts else []
    for answer, count in shown:
        bar = "█" * max(1, round(_BAR * count / most))
        lines.append(f"{printable(answer):>{width}}  {bar} {count:,}")
    if len(answers) > len(shown):
        lines.append(f"and {len(answers) - len(shown):,} more")
    return lines


def printable(text: str) -> str:
    """Make text safe for a terminal: control characters become escapes."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _grouped(rows: Mapping[int, str], where: Mapping[int, str]) -> list[str]:
    """Group rows by what is wrong with them, and name some of each group as an editor would find them."""
    groups: dict[str, list[int]] = {}
    for row, why in sorted(rows.items()):
        groups.setdefault(why, []).append(row)
    lines = []
    for why, numbers in sorted(groups.items(), key=lambda group: -len(group[1])):
        places = [where[row].rsplit("/", 1)[-1] or f"row {row}" for row in numbers[:_LISTED_ROWS]]
        listed = ", ".join(places) + (", …" if len(numbers) > _LISTED_ROWS else "")
        lines.append(f"{_rows(len(numbers))} ({printable(listed)}): {printable(why)}")
    return lines


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _media_text(key: Sequence[tuple[str, int]]) -> str:
    return " + ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in key) or "none"
