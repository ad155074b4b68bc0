"""Rows to samples: the form read, the template filled, media named in the order of their placeholders.

Decodes nothing and changes no answer: the decoder and the rewards do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, overload

import numpy as np
from numpy.typing import NDArray

from mmgrpo.addresses import PathPolicy, locate
from mmgrpo.config.data import Columns, Template
from mmgrpo.data.formats.detect import Format
from mmgrpo.data.formats.reading import ONE_FORM, Part, Reading, filled
from mmgrpo.data.formats.values import nesting
from mmgrpo.data.forms import check_columns, form_of, template_names
from mmgrpo.data.lazy import Row, Rows
from mmgrpo.data.messages import Conversation, ask, converse
from mmgrpo.data.templates import fill
from mmgrpo.data.twins import as_twin
from mmgrpo.errors import DatasetError, MediaError, MmgrpoError, explain
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
        sample = to_sample(
            self.rows[position],
            columns=self._columns,
            template=self._template,
            where=self.rows.where(position),
            paths=self._paths,
            sample_id=self.rows.id(position),
            form=self.form,
        )
        return as_twin(sample) if self.rows.together == 2 else sample

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


def to_sample(
    row: Row,
    *,
    columns: Columns,
    template: Template,
    where: str,
    paths: PathPolicy | None = None,
    sample_id: str = "0",
    form: Format | None = None,
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
    form = form or form_of(row, columns=columns, template=template, where=where)
    check_columns(row, columns=columns, template=template, form=form, where=where)
    reading = form.read(row, columns, where)
    values = {**row, **reading.added}
    talk = _conversation(reading, values, template, where)
    if not talk.media and not any(map(_says, talk.messages)):
        raise DatasetError(explain("The prompt is empty", where=where, got=f"filled are {filled(row)}", fix=ONE_FORM))
    allowed = paths or PathPolicy(base=Path.cwd())
    own_id = row[columns.id] if columns.id else reading.id
    return Sample(
        id=sample_id if own_id is None else str(own_id),
        messages=talk.messages,
        media=tuple(_medium(part, allowed, where) for part in talk.media),
        answer=_answer(reading, values, template, where),
        extras={name: value for name, value in values.items() if name not in reading.media_columns},
    )


def _answer(reading: Reading, values: Row, template: Template, where: str) -> Any:
    if template.answer is None or reading.answer is None:
        return reading.answer
    own = {**values, "prompt": reading.prompt, "answer": reading.answer}
    return fill(template.answer, own, key="data.template.answer", where=where)


def _conversation(reading: Reading, values: Row, template: Template, where: str) -> Conversation:
    prompt = reading.prompt
    values = {**values, "prompt": prompt}
    system = None
    if template.system is not None:
        system = fill(template.system, values, key="data.template.system", where=where)
    if _is_chat(prompt):

        def rewrite(text: str) -> str:
            """Put the template around the last user text."""
            return text if template.user == _PLAIN else _user({**values, "prompt": text}, template, where)

        return converse(prompt, system=system, media=reading.media, rewrite=rewrite, where=where, tags=reading.tags)
    if "prompt" in template_names(template) and not isinstance(prompt, str):
        raise DatasetError(
            explain(
                "The prompt is not text",
                where=where,
                expected="text or chat messages",
                got=f"nothing; filled are {filled(values)}" if prompt is None else repr(prompt)[:200],
                fix=ONE_FORM if prompt is None else "",
            )
        )
    text = _user(values, template, where)
    if reading.tags:
        chat = [{"role": "user", "content": text}]
        return converse(chat, system=system, media=reading.media, rewrite=str, where=where, tags=True)
    return ask(text, system=system, media=reading.media)


def _says(message: Message) -> bool:
    """Tell whether a message that is not the system's has words."""
    content = () if message["role"] == "system" else message["content"]
    texts = [content] if isinstance(content, str) else [block.get("text", "") for block in content]
    return any(text.strip() for text in texts)


def _user(values: Mapping[str, Any], template: Template, where: str) -> str:
    return fill(template.user, values, key="data.template.user", where=where)


def _is_chat(prompt: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes)


def _medium(part: Part, paths: PathPolicy, where: str) -> Media:
    column = f"{where}, column {part.column}" if part.column else f"{where}, its messages"
    source, rate = _carried(part, column)
    source = locate(source, paths, where=column)
    name = part.name or (str(source) if isinstance(source, Path) else column)
    return Media(kind=part.kind, source=source, rate=part.rate if rate is None else rate, name=name)  # type: ignore[arg-type]


def _carried(part: Part, where: str) -> tuple[Any, float | None]:
    """Take a decoded sound (``{"array", "sampling_rate"}``) out of its dictionary, and numbers out of their lists."""
    source, rate = part.source, None
    if part.kind == "audio" and isinstance(source, Mapping) and source.get("array") is not None:
        source, rate = source["array"], source.get("sampling_rate")
    elif not nesting(source):
        return source, rate
    try:
        known = None if rate is None else float(rate)
        return (_array(source, part.kind) if isinstance(source, list | tuple) else source), known
    except (TypeError, ValueError, OverflowError) as error:
        expected = "numbers in lists of equal length"
        if part.kind == "audio":
            expected = 'numbers, and their sampling rate: {"array": […], "sampling_rate": 16000}'
        raise MediaError(
            explain(f"A {_NOUNS[part.kind]} is not made of numbers", where=where, expected=expected, got=str(error))
        ) from error


_NOUNS = {"image": "picture", "audio": "sound", "video": "clip"}


def _array(numbers: Sequence[Any], kind: str) -> NDArray[Any]:
    """Make an array of numbers in lists: floats, or pixels of 8 bits where all are whole numbers below 256."""
    if kind == "audio":
        return np.asarray(numbers, dtype=np.float32)
    found = np.asarray(numbers)
    whole = found.dtype.kind in "iu" and found.size and found.min() >= 0 and found.max() <= 255
    return found.astype(np.uint8) if whole else found.astype(np.float32)
