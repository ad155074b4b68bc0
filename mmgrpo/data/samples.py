"""Rows to samples: columns mapped, template filled, media named in the order of their placeholders.

Decodes nothing and changes no answer: the decoder and the rewards do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, overload

from mmgrpo.config.data import Columns, Template
from mmgrpo.data.lazy import Row, Rows
from mmgrpo.data.messages import Conversation, Part, ask, converse
from mmgrpo.data.places import Places, locate
from mmgrpo.data.templates import fill, names
from mmgrpo.errors import DatasetError, explain
from mmgrpo.types import Media, Sample

_PLAIN = "{{ prompt }}"


class Samples(Sequence[Sample]):
    """The rows of one source as samples; each access makes a fresh one and keeps none."""

    def __init__(self, rows: Rows, *, columns: Columns, template: Template, allow_absolute_media: bool = True) -> None:
        """Map ``rows``.

        Raises:
            DatasetError: A column that is asked for does not exist.
            ConfigError: A template is malformed.
        """
        check_columns(rows.columns, columns=columns, template=template, where=rows.name)
        self.rows = rows
        self._columns, self._template = columns, template
        self._places = Places(base=rows.base, confined=rows.confined, allow_absolute=allow_absolute_media)

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
        return to_sample(
            self.rows[position],
            columns=self._columns,
            template=self._template,
            where=self.rows.where(position),
            places=self._places,
            sample_id=self.rows.id(position),
        )

    def where(self, index: int) -> str:
        """Say where sample ``index`` came from, for messages."""
        return self.rows.where(index)


def to_sample(
    row: Row,
    *,
    columns: Columns,
    template: Template,
    where: str,
    places: Places | None = None,
    sample_id: str = "0",
) -> Sample:
    """Turn one row into a sample.

    Args:
        row: Values by column.
        columns: Which column is what.
        template: The words around the row.
        where: The row's place, for messages.
        places: Which media files may be named; default: below the working folder, and absolute paths.
        sample_id: The id, unless ``columns.id`` names a column.

    Returns:
        The sample. Its extras hold every column but the picture column, by its own name: rewards may ask for each.

    Raises:
        DatasetError: A column is missing, the prompt is empty or malformed, or placeholders do not match the media.
        MediaError: A media path that may not be read.

    Example:
        >>> row = {"image": None, "problem": "1 + 1?", "solution": "<answer> 2 </answer>"}
        >>> sample = to_sample(row, columns=Columns(), template=Template(), where="row 0")
        >>> sample.messages[0]["content"], sample.answer
        ('1 + 1?', '<answer> 2 </answer>')
    """
    check_columns(row, columns=columns, template=template, where=where)
    media = [("image", source) for source in _listed(row[columns.image])] if columns.image else []
    talk = _conversation(row, columns, template, media, where)
    allowed = places or Places(base=Path.cwd())
    own_id = row[columns.id] if columns.id else None
    return Sample(
        id=sample_id if own_id is None else str(own_id),
        messages=talk.messages,
        media=tuple(_medium(part, allowed, where, columns) for part in talk.media),
        answer=row[columns.answer] if columns.answer else None,
        extras={name: value for name, value in row.items() if name != columns.image},
    )


def check_columns(have: Sequence[str] | Row, *, columns: Columns, template: Template, where: str) -> None:
    """Check that every column that will be read exists.

    Args:
        have: The columns there are.
        columns: Which column is what.
        template: Its names are columns too, beside ``prompt``.
        where: Source or row, for messages.

    Raises:
        DatasetError: One is missing.
        ConfigError: The template is malformed.
    """
    used = _template_names(template)
    wanted = {
        "columns.prompt": columns.prompt if "prompt" in used else None,
        "columns.image": columns.image,
        "columns.answer": columns.answer,
        "columns.id": columns.id,
        **{f"template ({{{{ {name} }}}})": name for name in sorted(used - {"prompt"})},
    }
    for key, column in wanted.items():
        if column is not None and column not in have:
            optional = key in ("columns.image", "columns.answer")
            raise DatasetError(
                explain(
                    f"There is no column {column!r}",
                    where=f"{where}, asked for by data.{key}",
                    expected=f"one of {', '.join(map(repr, have)) or '(no columns)'}",
                    fix=f"Set data.{key} to the right column{', or to null if there is none' if optional else ''}.",
                )
            )


def _template_names(template: Template) -> frozenset[str]:
    user = names(template.user, key="data.template.user")
    return user | names(template.system or "", key="data.template.system")


def _conversation(row: Row, columns: Columns, template: Template, media: list[Part], where: str) -> Conversation:
    prompt = row.get(columns.prompt)
    values = {**row, "prompt": prompt}
    system = None
    if template.system is not None:
        system = fill(template.system, values, key="data.template.system", where=where)
    if _is_chat(prompt):

        def rewrite(text: str) -> str:
            """Put the template around the last user text."""
            return text if template.user == _PLAIN else _user({**values, "prompt": text}, template, where)

        return converse(prompt, system=system, media=media, rewrite=rewrite, where=where)
    if "prompt" in names(template.user, key="data.template.user") and not isinstance(prompt, str):
        raise DatasetError(
            explain(
                "The prompt is not text",
                where=f"{where}, column {columns.prompt}",
                expected="text or chat messages",
                got="nothing" if prompt is None else repr(prompt)[:200],
            )
        )
    return ask(_user(values, template, where), system=system, media=media)


def _user(values: Mapping[str, Any], template: Template, where: str) -> str:
    return fill(template.user, values, key="data.template.user", where=where)


def _is_chat(prompt: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes)


def _listed(value: Any) -> list[Any]:
    """One medium or a list of them; None, "", NaN (a hole in a table) and [] are none."""
    if (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and value != value)
    ):
        return []
    if isinstance(value, list | tuple):
        return [one for one in value if one is not None]
    return [value]


def _medium(part: Part, places: Places, where: str, columns: Columns) -> Media:
    kind, value = part
    column = f"{where}, column {columns.image or columns.prompt}"
    source = locate(value, places, where=column)
    name = str(source) if isinstance(source, Path) else column
    return Media(kind=kind, source=source, name=name)  # type: ignore[arg-type]
