import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def oracle():
    """The numpy oracle beside this file (test folders are no packages, so it is loaded by its path)."""
    spec = importlib.util.spec_from_file_location("golden_oracle", Path(__file__).with_name("oracle.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
