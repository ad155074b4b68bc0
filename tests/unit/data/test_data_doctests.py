"""The examples in the docstrings of the data room run."""

import doctest
import importlib
import pkgutil

import pytest

import mmgrpo.data

NAMES = [module.name for module in pkgutil.walk_packages(mmgrpo.data.__path__, "mmgrpo.data.") if not module.ispkg]


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
