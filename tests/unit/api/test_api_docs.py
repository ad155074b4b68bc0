"""The examples in the docstrings of the rooms around the loop run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["mmgrpo.api.begin", "mmgrpo.running.settings", "mmgrpo.errors"])
def test_the_examples_of_a_module_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
    assert found.attempted > 0
