"""Each example in a docstring of the room runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import mmgrpo.grpo

MODULES = [f"mmgrpo.grpo.{m.name}" for m in pkgutil.iter_modules(mmgrpo.grpo.__path__)]
WITHOUT_EXAMPLE = set()


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_print_what_they_say(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
    assert found.attempted > 0 or name in WITHOUT_EXAMPLE
