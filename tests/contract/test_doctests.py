"""Every example in a docstring of the package and of the shipped plug-ins runs, and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.plugins import import_file

PACKAGE = Path(mmgrpo.__file__).resolve().parent
SHIPPED = [PACKAGE.parent / "rewards", PACKAGE.parent / "examples"]
WITH_EXAMPLES = ("mmgrpo.grpo.",)
"""Rooms in which each module has to have one."""
WITHOUT = {"mmgrpo.grpo.__init__"}


def name_of(file):
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)


def has_examples(file):
    return ">>>" in file.read_text(encoding="utf-8")


MODULES = [file for file in sorted(PACKAGE.rglob("*.py")) if has_examples(file) and file.name != "__main__.py"]
PLUGINS = [file for folder in SHIPPED for file in sorted(folder.glob("*.py")) if has_examples(file)]


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_the_examples_of_a_module_print_what_they_say(file):
    result = doctest.testmod(importlib.import_module(name_of(file).removesuffix(".__init__")))
    assert result.failed == 0  # examples that train, or ask the network, are marked +SKIP


@pytest.mark.parametrize("file", PLUGINS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_examples_of_a_shipped_plug_in_print_what_they_say(file):
    assert doctest.testmod(import_file(file)).failed == 0


def test_each_module_of_the_mathematics_has_an_example():
    without = {name_of(file) for file in PACKAGE.rglob("*.py") if name_of(file).startswith(WITH_EXAMPLES)}
    assert without - {name_of(file) for file in MODULES} <= WITHOUT
