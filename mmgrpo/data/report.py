"""What a look at every row found, and the page that says it: rows, media, tokens, answers, refusals, overlaps.

Gathers statistics of rows one by one and knows neither processor nor decoder.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mmgrpo.errors import MmgrpoError, ProcessorError, PromptTooLong

_KINDS = ("image", "video", "audio")
_LISTED_ROWS = 8
_LISTED_ANSWERS = 10
_BAR = 30
_LONGEST_ANSWER = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStats:
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
    content: bytes = b""
    """Of question and media: equal for equal rows, whatever their names."""
    media_contents: tuple[bytes, ...] = ()
    """Of each media item, decoded."""
    control_tokens: tuple[str, ...] = ()
    """Control tokens of the model that the row's text holds."""


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
    """Where the rows stand that are skipped, refused or named."""
    contents: Counter[bytes] = field(default_factory=Counter)
    """How often each row comes, by its content."""
    media_contents: dict[bytes, None] = field(default_factory=dict)
    """Contents of all media items."""
    control_tokens: dict[str, list[int]] = field(default_factory=dict)
    """Control tokens of the model in texts of rows, and those rows."""
    truths: dict[int, str] = field(default_factory=dict)
    """Rows whose own ground truth does not earn the most with a reward, and what it earns."""
    shared: dict[str, int] = field(default_factory=dict)
    """Rows, and media items, that training has too; empty: none were compared."""
    notes: list[str] = field(default_factory=list)
    """What else is odd about the source, a line each."""

    def add(self, stats: RowStats) -> None:
        """Take one row in."""
        self.rows += 1
        if stats.error is not None or (self.limit is not None and stats.tokens > self.limit):
            self.where[stats.row] = stats.where
        if stats.error is not None:
            rows_of_kind = self.skipped if isinstance(stats.error, self.left_out) else self.refused
            rows_of_kind[stats.row] = reason(stats.error)
            return
        self.media[tuple((kind, stats.media[kind]) for kind in _KINDS if stats.media.get(kind))] += 1
        self.tokens.append(stats.tokens)
        self.media_tokens.append(stats.media_tokens)
        self.answers[plain_answer(stats.answer)] += 1
        self.contents[stats.content] += 1
        self.media_contents.update(dict.fromkeys(stats.media_contents))
        for token in stats.control_tokens:
            self.control_tokens.setdefault(token, []).append(stats.row)
            self.where[stats.row] = stats.where
        if self.limit is not None and stats.tokens > self.limit:
            self.over.append(stats.row)
            rows_of_kind = self.skipped if PromptTooLong in self.left_out else self.refused
            rows_of_kind[stats.row] = f"the prompt is longer than data.max_prompt_tokens ({self.limit})"

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
            "control_tokens": {token: len(rows) for token, rows in sorted(self.control_tokens.items())},
            "ground_truths": {str(row): fault for row, fault in sorted(self.truths.items())},
            "shared_with_training": self.shared,
            "notes": self.notes,
        }

    def compare(self, train: Findings, name: str) -> None:
        """Count the rows and the media items that training has too, by their contents.

        Args:
            train: What was found of the rows to train on.
            name: What those are called.
        """
        rows = sum(count for content, count in self.contents.items() if content in train.contents)
        media = sum(content in train.media_contents for content in self.media_contents)
        self.shared = {"rows": rows, "media": media}
        if rows or media:
            self.notes.append(
                f"{_rows(rows)} of {sum(self.contents.values()):,} and {media:,} of {len(self.media_contents):,} "
                f"different media items are in {name} too: what is measured was trained on"
            )


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
    text = str(answer)[:_LONGEST_ANSWER].strip()
    inner = text.removeprefix("<answer>").removesuffix("</answer>")
    return (inner if len(text) - len(inner) == len("<answer></answer>") else text).strip()[:60]


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


def page(findings: Findings) -> str:
    """Write the findings for people.

    Args:
        findings: Of one source.
    """
    forms = ", ".join(f"{form} ({name})" if len(findings.forms) > 1 else form for name, form in findings.forms.items())
    lines = [
        findings.name,
        f"  form       {forms}",
        f"  rows       {findings.rows:,} read, {findings.usable:,} usable, {len(findings.skipped):,} skipped, "
        f"{len(findings.refused):,} refused",
    ]
    lines += _labelled(
        "media", [f"{_media_text(key)}: {_rows(count)}" for key, count in findings.media.most_common(6)]
    )
    lines += _labelled("tokens", _tokens(findings))
    lines += _labelled("answers", _answers(findings.answers))
    lines += _labelled("skipped", _grouped(findings.skipped, findings.where))
    lines += _labelled("refused", _grouped(findings.refused, findings.where))
    lines += _labelled("truths", _grouped(findings.truths, findings.where))
    lines += _labelled("notes", [*map(printable_text, findings.notes), *_controls(findings)])
    return "\n".join(lines)


def content_of(*parts: Any) -> bytes:
    """Hash texts, images and arrays into one short key.

    Args:
        parts: Texts, bytes, Pillow images or arrays.

    Example:
        >>> content_of("a", b"b") == content_of("a", b"b"), content_of("ab") == content_of("a", "b")
        (True, False)
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, bytes):
            form, content = "bytes", part
        elif isinstance(part, str):
            form, content = "text", part.encode("utf-8", "surrogatepass")
        else:
            array = np.ascontiguousarray(part)
            form, content = f"{array.shape} {array.dtype}", array.tobytes()
        digest.update(f"{form} {len(content)} ".encode())
        digest.update(content)
    return digest.digest()


def _controls(findings: Findings) -> list[str]:
    """Say which control tokens of the model stand in texts of rows, where the model takes them for its own."""
    lines = []
    for token, rows in sorted(findings.control_tokens.items()):
        places = [findings.where[row].rsplit("/", 1)[-1] for row in rows[:_LISTED_ROWS]]
        listed = ", ".join(places) + (", …" if len(rows) > _LISTED_ROWS else "")
        lines.append(
            f"{_rows(len(rows))} ({printable_text(listed)}) with the control token {printable_text(token)} in the "
            "text: the model reads it as its own. control_tokens: text beside the path has it read as text"
        )
    return lines


def _labelled(label: str, texts: Iterable[str]) -> list[str]:
    """Put a label before the first line, and nothing before the others."""
    return [f"  {label if i == 0 else '':10} {text}" for i, text in enumerate(texts)]


def _tokens(findings: Findings) -> list[str]:
    if not findings.tokens:
        return []
    whole, media = spread(findings.tokens), spread(findings.media_tokens)
    lines = [
        "  ".join(f"{name} {value:,}" for name, value in whole.items()) + " per prompt",
        "  ".join(f"{name} {value:,}" for name, value in media.items()) + " of them for media",
    ]
    if findings.limit is not None:
        lines.append(f"{len(findings.over):,} prompts over data.max_prompt_tokens {findings.limit:,}")
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
        lines.append(f"{printable_text(answer):>{width}}  {bar} {count:,}")
    if len(answers) > len(shown):
        lines.append(f"and {len(answers) - len(shown):,} more")
    return lines


def printable_text(text: str) -> str:
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
        lines.append(f"{_rows(len(numbers))} ({printable_text(listed)}): {printable_text(why)}")
    return lines


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _media_text(key: Sequence[tuple[str, int]]) -> str:
    return " + ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in key) or "none"
