"""What all sections of the configuration share: strict, frozen, and every key documented with its unit.

It knows how a value is checked, not which keys there are.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator


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
        return value


def admits_none(annotation: Any) -> bool:
    """Tell whether ``null`` is a value of this annotation."""
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


def _shown(value: object) -> str:
    return f"the text {value!r}" if isinstance(value, str) else repr(value)


def _number(value: object) -> object:
    """Refuse booleans where a number is meant, and numbers in quotes."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got the boolean {str(value).lower()}")
    if isinstance(value, str):
        raise ValueError(f"expected a number, got the text {value!r}; write it without quotes")
    return value


Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
"""A finite number; neither a boolean nor text."""
Int = Annotated[int, BeforeValidator(_number)]
"""A whole number; neither a boolean nor text."""
