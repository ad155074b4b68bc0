"""Rows to samples: the form read, the template filled, the conversation built, its media named in order.

A block ``{"type": "image"}`` stands for the next image of the row; a block that carries its media item
(``{"type": "image", "image": …}``) brings its own. Texts may be cut into blocks at tags such as ``<image>``. Decodes
nothing and changes no answer: the decoder and the rewards do.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard, overload

import numpy as np
from numpy.typing import NDArray

from mmgrpo.addresses import KINDS, PathPolicy, is_hole, locate, nesting
from mmgrpo.config.data import Columns, Template
from mmgrpo.data.formats.blocks import plain_block, split_tags
from mmgrpo.data.formats.reading import ONE_FORM, ParsedRow, RowFormat
from mmgrpo.data.formats.table import check_row_columns, form_of
from mmgrpo.data.rows import Row, Rows
from mmgrpo.data.shuffled_pairs import as_shuffled_pair
from mmgrpo.data.templates import fill, template_names
from mmgrpo.errors import DatasetError, MediaError, MmgrpoError, explain, shorten
from mmgrpo.types import Media, Message, Sample

_PLAIN = "{{ prompt }}"
_PEEK = 64
"""Rows looked at for the columns, where the first cannot be read."""


class Samples(Sequence[Sample]):
    """The rows of one source as samples; each access makes a fresh one and keeps none."""

    def __init__(
        self,
        rows: Rows,
        *,
        columns: Columns,
        template: Template,
        allow_absolute_media: bool = True,
        remote: Callable[[str], Path] | None = None,
    ) -> None:
        """Tell the form of ``rows`` and check that what will be read is there.

        Args:
            rows: The source.
            columns: Which column is what.
            template: The words around a row.
            allow_absolute_media: Read media whose path is absolute.
            remote: Downloads an ``http(s)`` address and gives the file; None: such addresses are refused.

        Raises:
            DatasetError: A column that is asked for does not exist, or the rows are of no known form.
            ConfigError: A template is malformed.
        """
        self.rows = rows
        self.form = form_of(rows, columns=columns, template=template)
        self._columns, self._template = columns, template
        self._paths = PathPolicy(
            base=rows.base, confined=rows.confined, allow_absolute=allow_absolute_media, remote=remote
        )

    @property
    def name(self) -> str:
        """What messages call the source."""
        return self.rows.name

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        """Make one sample, or a list of samples for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        try:
            sample = to_sample(
                self.rows[position],
                columns=self._columns,
                template=self._template,
                where=self.rows.where(position),
                paths=self._paths,
                sample_id=self.rows.id(position),
                form=self.form,
            )
        except RecursionError as error:
            fix = "Write the value flat, or leave the row out."
            raise DatasetError(
                explain("A row is nested too deep to be read", where=self.rows.where(position), fix=fix)
            ) from error
        if self.rows.controls_as_text:
            sample = replace(sample, controls_as_text=True)
        return as_shuffled_pair(sample) if self.rows.rows_per_block == 2 else sample

    def where(self, index: int) -> str:
        """Say where sample ``index`` came from, for messages."""
        return self.rows.where(index)

    def checkable(self) -> Sequence[int]:
        """List the samples whose media come from files: those made in code cannot be damaged."""
        return range(0 if self.rows.generated else len(self.rows))

    def forms(self) -> dict[str, str]:
        """Name the form of each source."""
        return {self.name: self.form.name}

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that rewards may ask for: every row has the same, so the first that can be read tells."""
        for index in range(min(len(self), _PEEK)):
            try:
                return tuple(self[index].extras)
            except MmgrpoError:  # the row is refused when it is drawn, or when it is checked
                continue
        return self.rows.columns

    def column(self, name: str) -> list[Any]:
        """Read one column of all rows, in order; a row without it has None."""
        return self.rows.column(name)

    def fingerprint(self) -> str:
        """Hash the number of rows and what some of them hold, in their places: other rows, or an order, differ.

        Rows made in code count by their name, which holds the seed; files of media by the path that the row names.
        """
        digest = hashlib.sha256(f"{len(self)}".encode())
        count = 0 if self.rows.generated else len(self)
        digest.update(self.name.encode("utf-8", "surrogatepass") if self.rows.generated else b"")
        for row in range(0, count, max(1, count // _PEEK)):
            try:
                digest.update(json.dumps(self.rows[row], sort_keys=True, default=_plain_bytes).encode())
            except (MmgrpoError, RecursionError, ValueError, TypeError):  # such a row is refused when it is drawn
                digest.update(b"?")
        return digest.hexdigest()[:16]


def _plain_bytes(value: Any) -> str:
    """Write what JSON cannot hold: bytes by their length and sum, an object by its type."""
    return f"{len(value)} {zlib.crc32(value)}" if isinstance(value, bytes | bytearray) else type(value).__name__


def to_sample(
    row: Row,
    *,
    columns: Columns,
    template: Template,
    where: str,
    paths: PathPolicy | None = None,
    sample_id: str = "0",
    form: RowFormat | None = None,
) -> Sample:
    """Turn one row into a sample.

    Args:
        row: Values by column.
        columns: Which column is what.
        template: The words around the row.
        where: The row's place, for messages.
        paths: Which media files may be named; default: below the working folder, and absolute paths.
        sample_id: The id, unless ``columns.id`` names a column.
        form: Of the row; default: told by its columns.

    Returns:
        The sample. Its extras hold every column but those of media, by its own name: rewards may ask for each.

    Raises:
        DatasetError: A column is missing, the prompt is empty or malformed, or placeholders do not match the media.
        MediaError: A media path that may not be read.

    Example:
        >>> row = {"image": None, "problem": "1 + 1?", "solution": "<answer> 2 </answer>"}
        >>> sample = to_sample(row, columns=Columns(), template=Template(), where="row 0")
        >>> sample.messages[0]["content"], sample.answer
        ('1 + 1?', '<answer> 2 </answer>')
    """
    if form is None:
        form = form_of(row, columns=columns, template=template, where=where)
    elif form.checks_columns:
        check_row_columns(row, columns=columns, template=template, form=form, where=where)
    parsed = form.read(row, columns, where)
    values = {**row, **parsed.added}
    messages, media = _conversation(parsed, values, template, where)
    if not media and not any(map(_says, messages)):
        raise DatasetError(_empty(row, where))
    allowed = paths or PathPolicy(base=Path.cwd())
    own_id = row[columns.id] if columns.id else parsed.id
    return Sample(
        id=sample_id if own_id is None else str(own_id),
        messages=messages,
        media=tuple(_located(item, allowed, where) for item in media),
        answer=_answer(parsed, values, template, where),
        extras={name: value for name, value in values.items() if name not in parsed.media_columns},
    )


def _answer(parsed: ParsedRow, values: Row, template: Template, where: str) -> Any:
    if template.answer is None or parsed.answer is None:
        return parsed.answer
    own = {**values, "prompt": parsed.prompt, "answer": parsed.answer}
    return fill(template.answer, own, key="data.template.answer", where=where)


def _conversation(
    parsed: ParsedRow, values: Row, template: Template, where: str
) -> tuple[tuple[Message, ...], tuple[Media, ...]]:
    """Build the messages of a row, and the media that their placeholders stand for."""
    prompt = parsed.prompt
    system = None
    if template.system is not None:
        system = fill(template.system, {**values, "prompt": prompt}, key="data.template.system", where=where)

    def rewrite(text: Any) -> str:
        """Put the template around the last user text."""
        if template.user == _PLAIN and isinstance(text, str):
            return text
        return fill(template.user, {**values, "prompt": text}, key="data.template.user", where=where)

    if _is_chat(prompt):
        return _converse(prompt, system, parsed.media, rewrite, where, tags=parsed.tags)
    if "prompt" in template_names(template) and not isinstance(prompt, str):
        raise DatasetError(
            explain(
                "The prompt is not text",
                where=where,
                expected="text or chat messages",
                got=f"nothing; filled are {_filled_columns(values)}" if prompt is None else shorten(repr(prompt)),
                fix=ONE_FORM if prompt is None else "",
            )
        )
    spoken = any(item.kind == "audio" for item in parsed.media)  # a sound may be the question
    if "prompt" in template_names(template) and not prompt.strip() and not spoken:
        raise DatasetError(_empty(values, where))
    text = rewrite(prompt)
    if parsed.tags:
        return _converse([{"role": "user", "content": text}], system, parsed.media, str, where, tags=True)
    blocks = [*({"type": item.kind} for item in parsed.media), {"type": "text", "text": text}]
    message = {"role": "user", "content": blocks if parsed.media else text}
    return (*_opening(system, ()), message), parsed.media


def _says(message: Message) -> bool:
    """Tell whether a message that is not the system's has words."""
    content = () if message["role"] == "system" else message["content"]
    texts = [content] if isinstance(content, str) else [block.get("text", "") for block in content]
    return any(text.strip() for text in texts)


def _is_chat(prompt: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes)


def _filled_columns(row: Row) -> str:
    """List the columns of a row that hold something, for messages."""
    names = [name for name, value in row.items() if not is_hole(value)]
    return shorten(", ".join(map(repr, names)) or "none", limit=1000)


def _empty(row: Row, where: str) -> str:
    return explain("The prompt is empty", where=where, got=f"filled are {_filled_columns(row)}", fix=ONE_FORM)


@dataclass(slots=True)
class _Queue:
    """Media of the row's columns that wait for their placeholder, and all media in order so far."""

    waiting: dict[str, list[Media]]
    taken: list[Media] = field(default_factory=list)

    def take(self, block: Mapping[str, Any], where: str) -> None:
        """Fill one placeholder: with the media item that its block carries, or with the next of the row."""
        kind, options = block["type"], block.get("options", {})
        if block.get(kind) is not None:
            name = f"{where}, its messages"
            self.taken.append(Media(kind=kind, source=block[kind], name=name, options=options))
        elif self.waiting.get(kind):
            item = self.waiting[kind].pop(0)
            self.taken.append(replace(item, options={**item.options, **options}) if options else item)
        else:
            raise DatasetError(_mismatch(kind, "more placeholders than media", where))


def _converse(
    messages: Sequence[Any],
    system: str | None,
    media: Sequence[Media],
    rewrite: Callable[[str], str],
    where: str,
    *,
    tags: bool,
) -> tuple[tuple[Message, ...], tuple[Media, ...]]:
    """Build the conversation of chat messages, and give their media in order.

    Without any placeholder the row's media stand before the first user text. Where ``tags`` count, ``<image>`` and its
    kin in texts that are not the assistant's are placeholders, and those that are missing stand there too.
    """
    turns = [_turn(message, where) for message in messages]
    users = [i for i, turn in enumerate(turns) if turn["role"] == "user"]
    if not users or turns[-1]["role"] == "assistant":
        raise DatasetError(
            explain(
                "A conversation must end where the policy answers",
                where=where,
                expected="a user message, and no assistant message after it",
                got=shorten(" -> ".join(turn["role"] for turn in turns) or "no messages"),
                fix="Leave the assistant's last message out, or set format: swift, which takes it as ground truth.",
            )
        )
    turns[users[-1]]["content"] = _rewritten(turns[users[-1]]["content"], rewrite)
    if tags:
        turns = [turn if turn["role"] == "assistant" else {**turn, "content": _cut(turn["content"])} for turn in turns]
    turns[users[0]]["content"] = [*_missing(turns, media, tags), *turns[users[0]]["content"]]
    queue = _Queue({kind: [item for item in media if item.kind == kind] for kind in KINDS})
    closed = [{**turn, "content": _closed(turn["content"], queue, where)} for turn in turns]
    for kind, rest in queue.waiting.items():
        if rest:
            raise DatasetError(_mismatch(kind, f"{len(rest)} more media than placeholders", where))
    return (*_opening(system, turns), *closed), tuple(queue.taken)


def _opening(system: str | None, turns: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Give the system message, unless the messages bring one of their own."""
    if system is None or (turns and turns[0]["role"] == "system"):
        return ()
    return ({"role": "system", "content": system},)


def _turn(message: Any, where: str) -> dict[str, Any]:
    """Copy one message, its content as a list of blocks without None keys (arrow tables fill those in)."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DatasetError(_malformed("a message", '{"role": …, "content": …}', message, where))
    content = message.get("content")
    blocks = [content] if isinstance(content, str) else [] if content is None else content
    if not isinstance(blocks, Sequence):
        raise DatasetError(_malformed("a message's content", "text or a list of blocks", content, where))
    rest = {key: value for key, value in message.items() if value is not None}
    return {**rest, "content": [_block(block, where) for block in blocks]}


def _block(block: Any, where: str) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    expected = '{"type": "text", "text": …} or {"type": "image"}, "audio", "video"'
    if not isinstance(block, Mapping):
        raise DatasetError(_malformed("a content block", expected, block, where))
    plain = plain_block(block)
    kind = plain.get("type")
    if kind not in ("text", *KINDS) or (kind == "text" and not isinstance(plain.get("text"), str)):
        raise DatasetError(_malformed("a content block", expected, block, where))
    return plain


def _missing(turns: Sequence[Mapping[str, Any]], media: Sequence[Media], tags: bool) -> list[dict[str, Any]]:
    """Give placeholders for the media that have none: under tags each of them, else only where nothing has one."""
    blocks = [block for turn in turns for block in turn["content"] if block["type"] in KINDS]
    opened = Counter(block["type"] for block in blocks if block.get(block["type"]) is None)
    if opened and not tags:
        return []
    missing = Counter(item.kind for item in media) - opened
    return [{"type": kind} for kind in KINDS for _ in range(missing[kind])]


def _cut(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cut text blocks at their tags."""
    return [piece for b in blocks for piece in (split_tags(b["text"]) if b["type"] == "text" else [b])]


def _closed(blocks: list[dict[str, Any]], queue: _Queue, where: str) -> str | list[dict[str, Any]]:
    """Hand each placeholder its media item; content of text alone becomes text."""
    for block in blocks:
        if block["type"] in KINDS:
            queue.take(block, where)
    if all(block["type"] == "text" for block in blocks):
        return "".join(block["text"] for block in blocks)
    return [block if block["type"] == "text" else {"type": block["type"]} for block in blocks]


def _rewritten(blocks: list[dict[str, Any]], rewrite: Callable[[str], str]) -> list[dict[str, Any]]:
    last = max((i for i, block in enumerate(blocks) if block["type"] == "text"), default=None)
    if last is None:
        return blocks
    return [{**b, "text": rewrite(b["text"])} if i == last else b for i, b in enumerate(blocks)]


def _located(item: Media, paths: PathPolicy, where: str) -> Media:
    """Find what a media item names, and take arrays out of their dictionaries and numbers out of their lists."""
    source, rate = item.source, item.rate
    if item.kind == "audio" and isinstance(source, Mapping) and source.get("array") is not None:
        source, rate = source["array"], source.get("sampling_rate", rate)
    try:
        rate = None if rate is None else float(rate)
        source = _array(source, item.kind) if isinstance(source, list | tuple) and nesting(source) else source
    except (TypeError, ValueError, OverflowError) as error:
        expected = "numbers in lists of equal length"
        if item.kind == "audio":
            expected = 'numbers, and their sampling rate: {"array": […], "sampling_rate": 16000}'
        what = f"{'An' if item.kind[0] in 'ai' else 'A'} {item.kind} is not made of numbers"
        raise MediaError(explain(what, where=item.name, expected=expected, got=str(error))) from error
    source = locate(source, paths, where=item.name or where)
    name = str(source) if isinstance(source, Path) else item.name
    return replace(item, source=source, rate=rate, name=name)


def _array(numbers: Sequence[Any], kind: str) -> NDArray[Any]:
    """Make an array of numbers in lists: floats, or pixels of 8 bits where all are whole numbers below 256."""
    if kind == "audio":
        return np.asarray(numbers, dtype=np.float32)
    array = np.asarray(numbers)
    whole = array.dtype.kind in "iu" and array.size and array.min() >= 0 and array.max() <= 255
    return array.astype(np.uint8) if whole else array.astype(np.float32)


def _mismatch(kind: str, got: str, where: str) -> str:
    return explain(
        f"The {kind} placeholders of the messages do not match the row's media",
        where=where,
        expected=f'one {{"type": "{kind}"}} block, or one <{kind}> where tags count, for each {kind}; or none at all',
        got=got,
        fix=f"Give the row as many {kind}s as its text has places for them.",
    )


def _malformed(what: str, expected: str, got: Any, where: str) -> str:
    return explain(f"This is not {what}", where=where, expected=expected, got=shorten(repr(got)))
