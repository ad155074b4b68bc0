"""A stand-in for the few names that ms-swift reward files import, where ms-swift is not installed.

Only names: a base class for rewards, the registries, a logger. Knows nothing of how rewards are called.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Generator
from types import ModuleType
from typing import Any


class ORM:
    """What an ms-swift reward class derives from."""

    def __init__(self, args: Any = None, **kwargs: Any) -> None:
        self.args = args


class AsyncORM(ORM):
    """What an asynchronous ms-swift reward class derives from."""


class _Anything(ModuleType):
    """A module in which every other name is an empty class, so that unrelated imports do not fail."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


_MODULES = (
    "swift",
    "swift.rewards",
    "swift.plugin",
    "swift.plugin.orm",
    "swift.rewards.orm",
    "swift.utils",
    "swift.llm",
)


@contextlib.contextmanager
def stand_in() -> Generator[None]:
    """Make ``from swift.rewards import ORM, orms`` work while a plug-in file is imported.

    Does nothing where ms-swift is installed. Nothing is left in ``sys.modules`` afterwards.
    """
    if importlib.util.find_spec("swift") is not None:
        yield
        return
    orms: dict[str, Any] = {}
    for name in _MODULES:
        module = _Anything(name)
        module.__path__ = []
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None, is_package=True)
        names = {"ORM": ORM, "AsyncORM": AsyncORM, "orms": orms, "rm_plugins": {}, "get_logger": logging.getLogger}
        for key, value in names.items():
            setattr(module, key, value)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in _MODULES:
            sys.modules.pop(name, None)
