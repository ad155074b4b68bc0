"""Words around a row: Jinja templates, sandboxed, compiled once, and strict about what a row lacks.

``{{ column }}`` stands for a column of the row. Values are inserted as they are: braces inside a value are text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mmgrpo.config.data import Template as TemplateSection
from mmgrpo.errors import ConfigError, DatasetError, explain


class _EmptyValueError(Exception):
    """A template prints a value that the row has as None."""


def _printed(value: Any) -> Any:
    if value is None:
        raise _EmptyValueError
    return value


_JINJA = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, finalize=_printed, autoescape=False, keep_trailing_newline=True
)


def fill(template: str, values: Mapping[str, Any], *, key: str, where: str) -> str:
    """Fill a template with the values of one row.

    Args:
        template: Text with ``{{ column }}`` and the rest of Jinja's language.
        values: What the names stand for.
        key: The configuration key that holds the template, for messages.
        where: The row, for messages.

    Returns:
        The text.

    Raises:
        ConfigError: The template is malformed, or does what the sandbox forbids.
        DatasetError: The row has no such column, or nothing in it.

    Example:
        >>> fill("{{ prompt }} Use digits.", {"prompt": "How many?"}, key="data.template.user", where="row 0")
        'How many? Use digits.'
    """
    try:
        return _compiled(template, key).render(values)
    except UndefinedError as error:
        raise DatasetError(
            explain(
                f"The template needs what the row does not have: {error.message}",
                where=where,
                expected=f"columns that {key} names",
                got=f"columns {', '.join(map(str, values)) or '(none)'}",
                fix=f"Correct {key}.",
            )
        ) from error
    except _EmptyValueError as error:
        raise DatasetError(
            explain(
                "The template prints a column that is empty in this row",
                where=where,
                got="; ".join(
                    f"{name} is None" for name in sorted(names_in(template, key=key)) if values[name] is None
                ),
                fix=f"Write {{% if column %}}{{{{ column }}}}{{% endif %}} in {key}, or fill the column.",
            )
        ) from error
    except Exception as error:  # a template is the user's code: it may divide by zero, or loop too long
        got = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise ConfigError(explain("The template cannot be filled", where=f"{key}, {where}", got=got)) from error


@lru_cache(maxsize=256)
def names_in(template: str, *, key: str) -> frozenset[str]:
    """List the names that a template takes from the row.

    Args:
        template: Text with ``{{ column }}``.
        key: The configuration key that holds it, for messages.

    Raises:
        ConfigError: The template is malformed.

    Example:
        >>> sorted(names_in("{{ a }}{% if b %}{{ b.c }}{% endif %}", key="data.template.user"))
        ['a', 'b']
    """
    try:
        return frozenset(meta.find_undeclared_variables(_JINJA.parse(template)))
    except TemplateSyntaxError as error:
        raise ConfigError(_malformed(error, key)) from error


@lru_cache(maxsize=256)
def _compiled(template: str, key: str) -> Template:
    try:
        return _JINJA.from_string(template)
    except TemplateSyntaxError as error:
        raise ConfigError(_malformed(error, key)) from error


def _malformed(error: TemplateSyntaxError, key: str) -> str:
    return explain(
        "The template is malformed",
        where=f"{key}, line {error.lineno} of the template",
        got=str(error.message),
        fix="{{ column }} stands for a column; write {{ '{{' }} for literal braces.",
    )


def template_names(template: TemplateSection) -> frozenset[str]:
    """List the columns that the templates of a configuration take from a row.

    Example:
        >>> sorted(template_names(TemplateSection(system="{{ hint }}")))
        ['hint', 'prompt']
    """
    user = names_in(template.user, key="data.template.user")
    system = names_in(template.system or "", key="data.template.system")
    return user | system | (names_in(template.answer or "", key="data.template.answer") - {"answer"})
