"""What all sections of the configuration share: strict, frozen, and every key documented with its unit."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """One section of the YAML. Unknown keys are refused, values cannot change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())


def _number(value: object) -> object:
    """Refuse booleans where a number is meant (YAML's ``yes``), and numbers in quotes."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got the boolean {str(value).lower()}")
    if isinstance(value, str):
        raise ValueError(f"expected a number, got the text {value!r}; write it without quotes")
    return value


Float = Annotated[float, BeforeValidator(_number)]
"""A number; neither a boolean nor text."""
Int = Annotated[int, BeforeValidator(_number)]
"""A whole number; neither a boolean nor text."""
