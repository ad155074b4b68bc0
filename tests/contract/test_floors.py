"""Which room may import which: a file imports from its own room and from lower floors, never sideways, never up."""

import ast
from pathlib import Path

import pytest

import mmgrpo

PACKAGE = Path(mmgrpo.__file__).resolve().parent
FLOORS = [
    {"errors", "metrics"},
    {"types", "config", "addresses"},
    {"plugins"},
    {"grpo", "parallel", "data", "media", "reward", "observe"},
    {"policy"},
    {"rollout", "training"},
    {"checks", "estimate", "evaluation", "deploy", "tune"},
    {"running"},
    {"trainer"},
    {"assemble"},
    {"api"},
    {"cli"},
]
"""From the ground up. The package itself (its version, its lazy names) stands below all of them."""
SAME_ROOM = {"contracts": "types", "__main__": "cli"}
"""Files that belong to the room of another."""
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MAY_IMPORT_INSIDE_FUNCTIONS = {"cli"}
NO_TORCH = {"errors", "config", "addresses", "metrics", "plugins", "cli"}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(parts):
    """Name the room of a dotted name's parts (``mmgrpo`` left out); None for the package itself."""
    return SAME_ROOM.get(parts[0], parts[0]) if parts else None


def parts_of(file, package=PACKAGE):
    parts = file.relative_to(package).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(tree, file_parts, is_package):
    """Yield (parts below mmgrpo, node) for each import of the package; a public name counts as its home."""
    here = file_parts if is_package else file_parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ("mmgrpo", *here[: len(here) - node.level + 1]) if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [_home(alias.name) for alias in node.names] if module == "mmgrpo" else [module]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "mmgrpo":
                yield tuple(rest), node


def _home(name):
    """Where ``from mmgrpo import name`` comes from."""
    return "mmgrpo" if name == "__version__" else mmgrpo._HOMES.get(name, f"mmgrpo.{name}")


def faults(source, file_parts, is_package=False):
    """List the imports of one file that the floors forbid."""
    tree = ast.parse(source)
    room = room_of(file_parts)
    if room is None:
        return [] if not list(imports(tree, file_parts, is_package)) else ["mmgrpo/__init__.py imports the package"]
    inner = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(outer)
    }
    found = []
    for parts, node in imports(tree, file_parts, is_package):
        other = room_of(parts)
        if id(node) in inner and room not in MAY_IMPORT_INSIDE_FUNCTIONS:
            found.append(f"line {node.lineno}: the package is imported inside a function")
        if other is None or other == room:
            continue
        if other not in FLOOR_OF:
            found.append(f"line {node.lineno}: mmgrpo.{other} has no floor")
        elif FLOOR_OF[other] == FLOOR_OF[room]:
            found.append(f"line {node.lineno}: {room} and {other} are on one floor")
        elif FLOOR_OF[other] > FLOOR_OF[room]:
            found.append(f"line {node.lineno}: {room} imports {other}, which is above it")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_from_its_own_room_and_from_lower_floors(file):
    parts = parts_of(file)
    room = room_of(parts)
    assert room is None or room in FLOOR_OF, f"{room} has no floor: give it one in FLOORS"
    assert faults(file.read_text(encoding="utf-8"), parts, file.name == "__init__.py") == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_rooms_without_torch_import_none(file):
    if room_of(parts_of(file)) not in NO_TORCH:
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    heavy = {"torch", "torchvision", "transformers", "datasets", "peft", "numpy"}
    assert {name for name in names if name.split(".")[0] in heavy} == set()


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from mmgrpo.training import update", ("policy", "x")),
        ("import mmgrpo.rollout.local", ("training", "x")),
        ("from mmgrpo import api", ("training", "x")),
        ("from ..trainer import fit", ("data", "x")),
        ("def f():\n    from mmgrpo.errors import MmgrpoError", ("data", "x")),
        ("from mmgrpo.types import Sample\nfrom mmgrpo.config.load import resolve_config", ("types",)),
        ("if TYPE_CHECKING:\n    from mmgrpo.api import Run", ("observe", "x")),
        ("from mmgrpo.nowhere import x", ("cli", "x")),
    ],
)
def test_a_forbidden_import_is_found(source, parts):
    assert faults(source, parts)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from mmgrpo import __version__", ("observe", "x")),
        ("from mmgrpo.types import Sample", ("contracts",)),
        ("from mmgrpo.policy.attention.layout import x\nfrom . import y", ("policy", "families", "x")),
        ("def f():\n    from mmgrpo import api", ("cli", "x")),
        ("def f():\n    import torch", ("data", "x")),
    ],
)
def test_an_allowed_import_is_left_alone(source, parts):
    assert faults(source, parts) == []


def test_plug_in_rewards_import_only_public_names():
    public = set(mmgrpo.__all__)
    for file in sorted((PACKAGE.parent / "rewards").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "mmgrpo":
                names = {alias.name for alias in node.names}
                assert node.module == "mmgrpo" and names <= public, f"{file.name}:{node.lineno} is not public"
