"""What all sections of the configuration share: strict, frozen, and every key documented with its unit.

It knows how a value is checked, not which keys there are.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from mmgrpo.errors import short_repr, shortened


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """Marks a key that belongs to a variant: ``Annotated[Float, OnlyWith("optim: adamw", lambda train: …)]``.

    Under another variant the key is not shown, and a value other than its default is refused: it would do nothing.
    """

    condition: str
    """As people write it, for example ``optim: adamw``."""
    holds: Callable[[Any], bool]
    """Asks the section that holds the key."""


class Section(BaseModel):
    """One section of the YAML. Unknown keys are refused, values cannot change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        """Read a section with nothing under it (all keys commented out) as a section of defaults."""
        return {} if value is None else value

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what pydantic would quietly turn into a boolean, and Python's None written as text."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if annotation is bool and not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {_shown(value)}")
        if value == "None" and admits_none(annotation):
            raise ValueError("expected null (or leave the key out), got the text 'None'")
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                _check_characters(text, free=_is_free(annotation))
        return value

    @model_validator(mode="after")
    def _variants(self) -> Section:
        for name in self.model_fields_set:
            field = type(self).model_fields[name]
            only = only_with(field)
            unused = only is not None and not only.holds(self)
            if only and unused and getattr(self, name) != field.get_default(call_default_factory=True):
                context = {"key": name, "condition": only.condition}
                raise PydanticCustomError("only_with", "{key} only goes with {condition}", context)
        return self

    def shows(self, name: str) -> bool:
        """Tell whether a key exists under the variant that is selected here."""
        only = only_with(type(self).model_fields[name])
        return only is None or only.holds(self)


def only_with(field: FieldInfo) -> OnlyWith | None:
    """Give the variant that a key belongs to; None: it is always there."""
    return next((mark for mark in field.metadata if isinstance(mark, OnlyWith)), None)


def admits_none(annotation: Any) -> bool:
    """Tell whether ``null`` is a value of this annotation."""
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


@dataclass(frozen=True, slots=True)
class _FreeText:
    """Marks text that names nothing, and may hold any character that can be written to a file."""


def _is_free(annotation: Any) -> bool:
    return any(isinstance(part, _FreeText) or _is_free(part) for part in get_args(annotation))


def _check_characters(text: str, *, free: bool) -> None:
    """Refuse what no file can hold, and in names and paths what no file system takes."""
    if not text.isascii() and not text.isprintable():
        lone = next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)
        if lone is not None:
            raise ValueError(f"half of a character (U+{ord(lone):04X}) stands in {_shown(text)}; write it as UTF-8")
    if "\0" in text and not free:
        raise ValueError(f"the character NUL stands in {_shown(text)}; write the name without it")


def _shown(value: object) -> str:
    return f"the text {short_repr(value)}" if isinstance(value, str) else short_repr(value)


def _number(value: object) -> object:
    """Refuse booleans where a number is meant, and numbers in quotes."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got the boolean {str(value).lower()}")
    if isinstance(value, str):
        quoted = _is_number(value)
        raise ValueError(f"expected a number, got {_shown(value)}" + ("; write it without quotes" if quoted else ""))
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
"""A finite number; neither a boolean nor text."""
Int = Annotated[int, BeforeValidator(_number)]
"""A whole number; neither a boolean nor text."""


def _plugin(value: object) -> object:
    """Refuse a file without a name in it; whether there is such a plug-in is known once it is loaded."""
    if isinstance(value, str) and value.endswith(".py"):
        what = f"{shortened(value)} names a file, and no function or class in it"
        raise ValueError(f"{what}; write {shortened(value)}:NAME")
    return value


Text = Annotated[str, _FreeText()]
"""Words for people or for the model, of any characters; a name or a path is a plain ``str``."""
Plugin = Annotated[str, BeforeValidator(_plugin)]
"""``path.py:name``, ``module:name``, or the name of an installed entry point."""
