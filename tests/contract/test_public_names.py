"""The public face: every name imports, importing costs nothing, help is instant."""

import importlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mmgrpo

HEAVY = ("torch", "transformers", "datasets", "numpy", "PIL", "pydantic", "yaml", "rich", "jaxtyping")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", mmgrpo.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(mmgrpo, name)
    assert name == "__version__" or (value.__doc__ or "").strip()


def test_the_public_names_are_these():
    assert set(mmgrpo.__all__) >= {"train", "evaluate", "load_config", "Run", "Config", "MmgrpoError", "__version__"}
    assert sorted(mmgrpo.__all__) == list(mmgrpo.__all__)
    assert dir(mmgrpo) == list(mmgrpo.__all__)


def test_no_room_has_the_name_of_a_public_function():
    rooms = {path.stem for path in Path(mmgrpo.__file__).parent.iterdir() if path.suffix in ("", ".py")}
    assert rooms & set(mmgrpo.__all__) == set()


@pytest.mark.parametrize("module", ["mmgrpo.training.update", "mmgrpo.evaluation.evaluator", "mmgrpo.config.load"])
def test_w12_every_module_can_be_imported_by_its_dotted_name(module):
    assert run(f"import {module} as m; import mmgrpo; print(m.__name__, callable(mmgrpo.train))") == f"{module} True\n"


def test_an_unknown_name_lists_the_public_ones():
    with pytest.raises(AttributeError, match=r"public names: .*load_config"):
        mmgrpo.GRPOTrainer  # noqa: B018


def test_importing_the_package_loads_nothing_heavy():
    assert run(f"import sys, mmgrpo; print([name for name in {HEAVY!r} if name in sys.modules])") == "[]\n"


def test_reading_a_configuration_loads_no_torch():
    code = "import sys, mmgrpo; mmgrpo.load_config(None, ['model.name=tiny:x']); print('torch' in sys.modules)"
    assert run(code) == "False\n"


def test_the_command_line_loads_no_torch_until_it_must():
    code = "import sys; from mmgrpo.cli import main; main(['train', '--help']); print('torch' in sys.modules)"
    assert run(code).endswith("False\n")


def test_importing_the_api_touches_no_gpu():
    code = "import mmgrpo.api, torch; print(torch.cuda.is_initialized())"
    assert run(code) == "False\n"


def test_help_answers_within_a_second():
    def seconds():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "mmgrpo", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 1.0


def test_the_console_script_is_the_command_line():
    entry = importlib.metadata.entry_points(group="console_scripts")["mmgrpo"]
    from mmgrpo.cli import main

    assert entry.load() is main
